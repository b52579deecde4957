"""What the verbs share: lines and progress on stderr, warnings as lines, folders, sequences from files."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from oplens.errors import ArgumentError

if TYPE_CHECKING:
    from oplens.data import SequenceData

console = Console(stderr=True, highlight=False)


def tell(line: str) -> None:
    """A line as it is: a path or a name may hold what rich reads as markup."""
    console.print(line, markup=False, soft_wrap=True)


def say(line: str) -> None:
    """What is being done now."""
    tell(f"  {line} ...")


@contextlib.contextmanager
def notes() -> Iterator[None]:
    """Warnings of the library as lines, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, UserWarning)):
        tell(f"note: {message}")


@contextlib.contextmanager
def progress(words: str) -> Iterator[Callable[[int, int], None]]:
    """A bar at a terminal, a line at every quarter elsewhere; yields what is told how much of how much is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task, told = bar.add_task(words, total=None), -1

        def tick(done: int, total: int) -> None:
            nonlocal told
            bar.update(task, completed=done, total=total)
            quarter = 4 * done // max(total, 1)
            if not console.is_terminal and quarter > told:
                told = quarter
                tell(f"  {words}: {done:,} of {total:,}")

        yield tick


def check_folder(out: Path) -> None:
    """Refuse what is no folder before any work."""
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"--out {out}: this is a file; give a folder.")
    above = next((folder for folder in out.absolute().parents if folder.exists()), None)
    if above is not None and not above.is_dir():
        raise ArgumentError(f"--out {out}: {above} is a file, and holds no folders; give another folder.")


def new_folder(out: Path) -> Path:
    """The folder to write into."""
    check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    return out


def read_series(path: Path, sampling_rate: float | None, impute: str | None) -> "SequenceData":
    """Read a .ts file; its warnings become lines."""
    from oplens.data import read_ts

    if impute not in (None, "linear", "mean"):
        raise ArgumentError(f"--impute {impute}: choose linear or mean.")
    with notes():
        return read_ts(path, impute=impute, sampling_rate=sampling_rate)  # type: ignore[arg-type]
