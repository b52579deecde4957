"""Finished stages of long work, kept beside what will be written: the same command continues after an interrupt."""

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oplens.cli.terminal import tell
from oplens.errors import ResultError

if TYPE_CHECKING:
    import xarray as xr

_KEY, _ENDING = "stage_key", ".stage.nc"  # no file of anybody else's ends like that


@dataclass(frozen=True)
class Stages:
    """Groups of a result, stage by stage.

    Attributes
    ----------
    folder : Path
        Holds one file per finished stage until :meth:`clear`.
    base : tuple of str
        What every stage depends on; another base, and nothing kept is used.
    """

    folder: Path
    base: tuple[str, ...]

    def groups(self, name: str, depends: tuple[str, ...], make: "Callable[[], xr.DataTree]") -> "dict[str, xr.Dataset]":
        """What `make` returns, by group, or what an earlier run kept of the very same work."""
        from oplens import __version__
        from oplens.results import read_results, write_results

        key = hashlib.sha256("\n".join((__version__, name, *self.base, *depends)).encode()).hexdigest()
        file = self.folder / f"{name}{_ENDING}"
        if file.is_file():
            try:
                kept = read_results(file)
            except ResultError:
                kept = None
            if kept is not None and kept.attrs.get(_KEY) == key:
                tell(f"  {name}: kept from before")
                return _groups(kept)
        tree = make()
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = tree.copy()
        kept.attrs[_KEY] = key
        write_results(kept, file)
        return _groups(tree)

    def clear(self) -> None:
        """The whole is written; its stages go, and the folder unless it holds files that are not ours."""
        with contextlib.suppress(OSError):
            for file in self.folder.glob(f"*{_ENDING}"):
                file.unlink(missing_ok=True)
            self.folder.rmdir()


def digest(path: Path) -> str:
    """What a file or a folder's files were when they were looked at: names, sizes and times of change."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    lines = [f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files if f.is_file()]
    return hashlib.sha256("\n".join((str(path.resolve()), *lines)).encode()).hexdigest()


def _groups(tree: "xr.DataTree") -> "dict[str, xr.Dataset]":
    found = {node.path: node.to_dataset(inherit=False) for node in tree.subtree}
    return {path: ds for path, ds in found.items() if path == "/" or ds.variables}
