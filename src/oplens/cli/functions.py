"""Functions as a command line names them: a family, a formula, a table, or a function in a Python file of the user's own."""

import runpy
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oplens.construction import NAMED, FunctionTable
from oplens.construction.formulas import formula
from oplens.errors import ArgumentError, DataError

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Wanted:
    """A function of symbols, as asked for; `options` are those of the named families."""

    kind: str
    function: str | None
    python: str | None
    table: Path | None
    length: int | None
    vocabulary: str | None
    options: Mapping[str, int | None]
    labels: int | None
    outputs: Sequence[str] | None
    one_hot: bool
    memory_limit: int
    seed: int

    def read(self) -> FunctionTable:
        """The whole table, or a sentence that says what is missing or too much."""
        call = f"build {self.kind}"
        given = [name for name in ("function", "python", "table") if getattr(self, name) is not None]
        if len(given) != 1:
            told = f", not {' and '.join(f'--{name}' for name in given)} together" if given else ""
            raise ArgumentError(
                f"{call}: give --function NAME or --python FILE.py:NAME, each with --length N, or --table FILE{told}."
            )
        self._refuse_others(given[0])
        if self.table is not None:
            names = None if self.vocabulary is None else self._symbols()
            found = FunctionTable.from_file(
                self.table, outputs=self.outputs, vocabulary=names, labels=self.labels, memory_limit=self.memory_limit
            )
        else:
            found = self._evaluated(call)
        return found.one_hot() if self.one_hot else found

    def _evaluated(self, call: str) -> FunctionTable:
        if self.length is None:
            raise ArgumentError(
                f"{call}(--{'function' if self.function else 'python'}): --length is missing, the number of symbols of an input."
            )
        size = self._symbols() if self.vocabulary is not None else 2
        if not isinstance(size, int):
            raise ArgumentError(
                f"{call}(--vocabulary {self.vocabulary}): give the number of symbols; names are for --table."
            )
        if self.python is not None:
            f = python_function(self.python)
            return FunctionTable.from_function(f, size, self.length, labels=self.labels, memory_limit=self.memory_limit)
        assert self.function is not None
        options = {name: value for name, value in self.options.items() if value is not None}
        if self.labels is not None:
            options["labels"] = self.labels
        name = self.function.replace("_", "-")
        if name == "random":
            options["seed"] = self.seed
        return FunctionTable.from_family(
            name if name in NAMED else self.function, size, self.length, memory_limit=self.memory_limit, **options
        )

    def _refuse_others(self, given: str) -> None:
        """An option that would change nothing is a mistake."""
        family = [name for name, value in self.options.items() if value is not None]
        idle = family if given != "function" else []
        idle += ["output"] if self.outputs and given != "table" else []
        idle += ["length"] if self.length is not None and given == "table" else []
        if idle:
            raise ArgumentError(f"build {self.kind}(--{given}): --{idle[0]} means nothing here; leave it out.")

    def _symbols(self) -> int | list[str]:
        """A number of symbols, or their names."""
        assert self.vocabulary is not None
        parts = [part.strip() for part in self.vocabulary.split(",")]
        if len(parts) > 1:
            return parts
        try:
            return int(parts[0])
        except ValueError:
            raise ArgumentError(
                f"--vocabulary {self.vocabulary}: give a number of symbols, or their names separated by commas."
            ) from None


def real_function(
    kind: str, text: str | None, python: str | None, variables: int | None
) -> tuple[Callable[..., Any], int, str]:
    """A function of reals from a formula or a Python file: itself, its number of variables, its name."""
    if (text is None) == (python is None):
        raise ArgumentError(f'build {kind}: give --function "FORMULA", or --python FILE.py:NAME with --variables N.')
    if text is not None:
        f = formula(text)
        if variables is not None and variables < f.n:
            raise ArgumentError(
                f"build {kind}(--variables {variables}): {text} has {f.n} variables; leave the option out."
            )
        return f, variables or f.n, text
    assert python is not None
    if variables is None:
        raise ArgumentError(
            f"build {kind}(--python {python}): --variables is missing, the number of variables of the function."
        )
    return python_function(python), variables, python.rpartition(":")[2]


def python_function(place: str) -> Callable[..., Any]:
    """The function NAME of FILE.py, given as FILE.py:NAME; the file is run, as `python FILE.py` would."""
    file, _, name = place.rpartition(":")
    if not file or not name.isidentifier():
        raise ArgumentError(f"--python {place}: give a file and the name of a function in it, such as mine.py:f.")
    path = Path(file)
    if not path.is_file():
        raise ArgumentError(f"--python {place}: there is no file {file}.")
    try:
        found = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = f", line {lines[-1]}" if lines else ""
        raise DataError(f"{file}{line}: running it raised {type(error).__name__}: {error}") from error
    f = found.get(name)
    if not callable(f):
        names = [key for key, value in found.items() if callable(value) and not key.startswith("_")]
        raise ArgumentError(
            f"--python {place}: {file} has no function {name!r}"
            + (f"; it has {', '.join(names[:8])}." if names else ", and no other function.")
        )
    function: Callable[..., Any] = f
    return function


def read_bytes(text: str) -> int:
    """A number of bytes such as 500M or 4G, in powers of 1024.

    Examples
    --------
    >>> read_bytes("4G"), read_bytes("1.5K"), read_bytes("100")
    (4294967296, 1536, 100)
    """
    plain = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = _UNITS.get(plain[-1:], 1)
    try:
        value = float(plain[:-1] if unit > 1 else plain) * unit
        whole = int(value)
    except (ValueError, OverflowError):
        whole = 0
    if whole < 1:
        raise ArgumentError(f"--memory-limit {text}: give a number of bytes, such as 500M or 4G.")
    return whole
