"""Filters in files: NumPy arrays (.npy) and text, one row a line, numbers apart by commas, semicolons or blanks."""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oplens.errors import DataError
from oplens.files import kind_of

_LARGEST = 2**26  # bytes


def read_rows(path: Path) -> list[NDArray[np.float64]]:
    """Rows of real, finite numbers, of any lengths in text files.

    Raises
    ------
    DataError
        If the file cannot be read, is too large, or holds anything else; with the line where it is text.
    """
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise DataError(f"{path}: {size / 2**20:.0f} MiB are more than filters take ({_LARGEST // 2**20} MiB).")
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    kind = kind_of(content[:512])
    if kind == "numpy":
        rows = _from_array(path)
    elif kind:
        raise DataError(f"{path}: this is {kind}; give a .npy array or a text file of numbers.")
    else:
        rows = _from_text(path, content)
    if not rows or not all(len(row) for row in rows):
        raise DataError(f"{path}: holds no numbers.")
    return rows


def read_matrix(path: Path) -> NDArray[np.float64]:
    """Rows of equal length, (n_rows, n_columns)."""
    rows = read_rows(path)
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        raise DataError(f"{path}: rows of {min(lengths)} and of {max(lengths)} numbers; expected a matrix.")
    return np.stack(rows)


def read_series(path: Path) -> NDArray[np.float64]:
    """One row or one column of numbers, (length,)."""
    matrix = read_matrix(path)
    if 1 not in matrix.shape:
        raise DataError(f"{path}: expected one row or one column of numbers, got shape {matrix.shape}.")
    return matrix.ravel()


def _from_array(path: Path) -> list[NDArray[np.float64]]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path}: holds Python objects, which could run code when read; save plain numbers, array.astype(float)."
            ) from error
        raise DataError(f"{path}: damaged NumPy file ({error}).") from error
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise DataError(
            f"{path}: expected one or two dimensions of real numbers, got {array.dtype} of shape {array.shape}."
        )
    array = np.atleast_2d(array.astype(np.float64))
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise DataError(f"{path}: value {array[where]} at {where}; all must be finite.")
    return list(array)


def _from_text(path: Path, content: bytes) -> list[NDArray[np.float64]]:
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: neither a NumPy array nor text.") from error
    rows = []
    for place, line in enumerate(lines, start=1):
        cells = [cell for cell in re.split(r"[,;\s]+", line.split("#")[0].strip()) if cell]
        if not cells:
            continue
        try:
            row = np.array([float(cell) for cell in cells])
        except ValueError as error:
            raise DataError(f"{path}, line {place}: {line.strip()[:60]!r} is no row of numbers.") from error
        if not np.isfinite(row).all():
            raise DataError(f"{path}, line {place}: all numbers must be finite.")
        rows.append(row)
    return rows
