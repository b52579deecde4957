"""A table of a function in a CSV or Parquet file, read with its row numbers for what it refuses."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from oplens.construction.function import check_size
from oplens.errors import ArgumentError, DataError
from oplens.files import kind_of

_TRUTH = {"true": 1.0, "false": 0.0}


def read_table(
    path: Path,
    outputs: Sequence[str] | None,
    vocabulary: int | Sequence[str] | None,
    labels: int | None,
    memory_limit: float,
) -> dict[str, Any]:
    """Arguments of a FunctionTable: rows in any order, each input once."""
    frame = _read(path)
    inputs, values = _columns(path, frame, outputs)
    symbols = _symbols(path, frame[inputs], vocabulary)
    V, n = len(symbols), len(inputs)
    check_size(f"from_file({path})", V, n, len(values), memory_limit)
    index = {symbol: number for number, symbol in enumerate(symbols)}
    rows = np.zeros(len(frame), dtype=np.int64)
    for column in inputs:
        codes = frame[column].map(index)
        if codes.isna().any():
            row = int(np.flatnonzero(codes.isna())[0])
            raise DataError(
                f"{path}, row {row + 1}, column {column!r}: symbol {frame[column].iloc[row]!r} is outside the vocabulary "
                f"{_listed(symbols)}."
            )
        rows = rows * V + codes.to_numpy(dtype=np.int64)
    _check_rows(path, rows, list(inputs), V, symbols)
    table = np.empty((V**n, len(values)))
    for place, column in enumerate(values):
        table[rows, place] = _numbers(path, frame[column], labels)
    named = None if symbols == [str(i) for i in range(V)] else tuple(symbols)
    return {"vocabulary": V, "length": n, "values": table, "name": path.stem, "labels": labels, "symbols": named}


def _read(path: Path) -> pd.DataFrame:
    """All cells as text, "" where there is nothing."""
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from error
    if path.suffix.lower() == ".parquet" or head.startswith(b"PAR1"):
        frame = _read_parquet(path)
    else:
        kind = kind_of(head)
        if kind and kind != "json":
            raise DataError(f"{path}: not a CSV file but {kind}; give a CSV with a header line, or a .parquet file.")
        try:
            frame = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: not a CSV table ({error}).") from error
        if not isinstance(frame.index, pd.RangeIndex):
            raise DataError(f"{path}: rows have more cells than the header line; name every column.")
    names = [str(column).strip() for column in frame.columns]
    frame.columns = pd.Index(names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path}: columns {', '.join(twice)} are given twice.")
    if not len(frame):
        raise DataError(f"{path}: no rows below the header line.")
    frame = pd.DataFrame({name: column.fillna("").astype(str).str.strip() for name, column in frame.items()})
    for column in frame.columns:
        empty = np.flatnonzero((frame[column] == "").to_numpy())
        if len(empty):
            raise DataError(
                f"{path}, row {empty[0] + 1}, column {column!r}: no value ({len(empty)} empty cells there)."
            )
    return frame


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise DataError(
            f"{path}: reading Parquet needs pyarrow, which is not installed; `pip install pyarrow`, or save the table as CSV."
        ) from error
    try:
        frame = pd.read_parquet(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise DataError(f"{path}: not a Parquet file ({error}).") from error
    return pd.DataFrame({name: column.map(_text, na_action="ignore").astype(object) for name, column in frame.items()})


def _text(value: Any) -> str:
    """As a CSV file would hold it; whole floats, which a column with gaps turns whole numbers into, as whole numbers."""
    whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def _columns(path: Path, frame: pd.DataFrame, outputs: Sequence[str] | None) -> tuple[list[str], list[str]]:
    names = list(frame.columns)
    if isinstance(outputs, str):
        raise ArgumentError(f"from_file(outputs={outputs!r}): give a list of column names, [{outputs!r}].")
    values = names[-1:] if outputs is None else list(outputs)
    missing = [name for name in values if name not in names]
    if missing or not values or len(set(values)) != len(values):
        raise ArgumentError(f"from_file(outputs={outputs!r}): {path} has the columns {', '.join(names)}.")
    inputs = [name for name in names if name not in values]
    if not inputs:
        raise DataError(
            f"{path}: no column is left for the symbols; there must be one per position, and one for the value."
        )
    return inputs, values


def _symbols(path: Path, inputs: pd.DataFrame, vocabulary: int | Sequence[str] | None) -> list[str]:
    if isinstance(vocabulary, (int, np.integer)) and not isinstance(vocabulary, bool):
        if not 2 <= vocabulary <= 2**20:
            raise ArgumentError(f"from_file(vocabulary={vocabulary}): a whole number from 2 to {2**20} is needed.")
        return [str(symbol) for symbol in range(int(vocabulary))]
    if vocabulary is not None:
        if isinstance(vocabulary, (bool, str)):
            raise ArgumentError(
                f"from_file(vocabulary={vocabulary!r}): give a number of symbols or a list of their names."
            )
        symbols = [str(symbol).strip() for symbol in vocabulary]
        if len(symbols) < 2 or len(set(symbols)) != len(symbols) or "" in symbols:
            raise ArgumentError(
                f"from_file(vocabulary={vocabulary!r}): at least two different, non-empty symbols are needed."
            )
        return symbols
    found = sorted(set(pd.unique(inputs.to_numpy().ravel())))
    if len(found) < 2:
        raise DataError(f"{path}: only the symbol {found[0]!r} occurs; give the vocabulary if there are others.")
    # Numbers in the order of numbers: "10" after "9".
    return sorted(found, key=int) if all(symbol.isdecimal() for symbol in found) else found


def _check_rows(path: Path, rows: NDArray[np.int64], columns: list[str], V: int, symbols: list[str]) -> None:
    """Every input once; `columns` hold its symbols, which all but the outputs do."""
    n = len(columns)

    def shown(row: int) -> str:
        return " ".join(symbols[row // V ** (n - 1 - i) % V] for i in range(n))

    order = np.argsort(rows, kind="stable")
    same = np.flatnonzero(np.diff(rows[order]) == 0)
    if len(same):
        first, second = sorted(order[same[0] : same[0] + 2])
        raise DataError(
            f"{path}, rows {first + 1} and {second + 1}: input {shown(int(rows[first]))} is given twice "
            f"({len(same)} rows repeat an earlier one)."
        )
    if len(rows) < V**n:
        there = np.zeros(V**n, dtype=bool)
        there[rows] = True
        gap = int(np.flatnonzero(~there)[0])
        raise DataError(
            f"{path}: {V**n - len(rows)} of the {V}^{n} = {V**n} inputs over {_listed(symbols)} are missing, first {shown(gap)}; "
            f"the function must have a value everywhere (columns {_listed(columns, 'columns')} hold its symbols)."
        )


def _numbers(path: Path, column: pd.Series, labels: int | None) -> NDArray[np.float64]:
    found = np.empty(len(column))
    for row, cell in enumerate(column):
        try:
            found[row] = _TRUTH[cell.lower()] if cell.lower() in _TRUTH else float(cell)
        except ValueError:
            found[row] = math.nan
        if not math.isfinite(found[row]):
            raise DataError(f"{path}, row {row + 1}, column {column.name!r}: {cell!r} is no finite number.")
        if labels is not None and not (found[row].is_integer() and 0 <= found[row] < labels):
            raise DataError(
                f"{path}, row {row + 1}, column {column.name!r}: {cell!r} is no label from 0 to {labels - 1}."
            )
    return found


def _listed(names: list[str], kind: str = "symbols") -> str:
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:4])}, ... ({len(names)} {kind})"
