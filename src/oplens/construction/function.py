"""A function of symbol sequences as a whole table: from Python, from a file, or by name; refused before any work when it is not one."""

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.construction.families import NAMED, resolve_options
from oplens.errors import ArgumentError, DataError

MEMORY_LIMIT = 2**32  # bytes that a table, or a model's weights, may take unless more is allowed
_AT_ONCE = 2**16


@dataclass(frozen=True, eq=False)
class FunctionTable:
    """f of all V^n sequences of n symbols from V, in lexicographic order.

    Parameters
    ----------
    vocabulary, length : int
        V >= 2 symbols, written 0 to V - 1; n >= 1 of them.
    values : array, (V^n, m) float64
        Row sum_i x_i V^(n-1-i) holds f(x), m numbers. Finite.
    name : str
    labels : int, optional
        The values are whole numbers below it (and m = 1).
    symbols : tuple of str, optional
        What the symbols are called in the file that they came from.

    Examples
    --------
    >>> table = FunctionTable.from_function(lambda x: x[0] & x[1], vocabulary=2, length=2)
    >>> table.values[:, 0].tolist()
    [0.0, 0.0, 0.0, 1.0]
    >>> FunctionTable.from_family("parity", vocabulary=2, length=3)([[1, 0, 0], [1, 1, 0]])[:, 0].tolist()
    [1.0, 0.0]
    """

    vocabulary: int
    length: int
    values: NDArray[np.float64]
    name: str = "table"
    labels: int | None = None
    symbols: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        call = "FunctionTable"
        vocabulary, length = _sizes(call, self.vocabulary, self.length)
        values = np.array(self.values, dtype=np.float64)
        values = values[:, None] if values.ndim == 1 else values
        # Lengths are compared before V^n is formed: it may have millions of digits.
        fits = values.ndim == 2 and values.shape[1] >= 1 and length <= 64 and len(values) == vocabulary**length
        if not fits:
            raise ArgumentError(
                f"{call}: values of shape {np.shape(self.values)}; expected one row for each of the {vocabulary}^{length} inputs, "
                "in lexicographic order, and at least one number in each."
            )
        bad = np.flatnonzero(~np.isfinite(values).all(1))
        if len(bad):
            raise DataError(
                f"{call}: no finite value at input {_shown(bad[0], vocabulary, length)} ({len(bad)} in all)."
            )
        _check_labels(call, values, self.labels, vocabulary, length)
        values.setflags(write=False)
        for name, value in (("vocabulary", vocabulary), ("length", length), ("values", values)):
            object.__setattr__(self, name, value)

    @classmethod
    def from_function(
        cls,
        function: Callable[[tuple[int, ...]], Any],
        vocabulary: int,
        length: int,
        *,
        labels: int | None = None,
        name: str | None = None,
        memory_limit: float = MEMORY_LIMIT,
    ) -> "FunctionTable":
        """Call a Python function on every input, a tuple of `length` whole numbers below `vocabulary`.

        Raises
        ------
        ArgumentError
            If the table would exceed `memory_limit` bytes; before the first call.
        DataError
            If the function raises, or returns None, NaN, infinity, no number, or numbers of another count than before.

        Notes
        -----
        Cost: V^n calls.
        """
        vocabulary, length = _sizes("from_function", vocabulary, length)
        check_size("from_function", vocabulary, length, 1, memory_limit)
        first = _outputs(function, _symbols(np.zeros(1, dtype=np.int64), vocabulary, length)[0])
        check_size("from_function", vocabulary, length, len(first), memory_limit)
        values = np.empty((vocabulary**length, len(first)))
        for start in range(0, len(values), _AT_ONCE):
            inputs = _symbols(np.arange(start, min(start + _AT_ONCE, len(values))), vocabulary, length)
            for row, x in enumerate(inputs, start):
                found = _outputs(function, x)
                if len(found) != len(first):
                    raise DataError(
                        f"from_function: {len(found)} numbers at input {tuple(x.tolist())}, {len(first)} at the first; "
                        "the function must always return as many."
                    )
                values[row] = found
        return cls(vocabulary, length, values, name or str(getattr(function, "__name__", "function")), labels)

    @classmethod
    def from_family(
        cls, name: str, vocabulary: int, length: int, *, memory_limit: float = MEMORY_LIMIT, **options: Any
    ) -> "FunctionTable":
        """A named function (:data:`oplens.construction.families.NAMED`) with its options: hops, modulus, threshold, seed, labels."""
        vocabulary, length = _sizes("from_family", vocabulary, length)
        options = resolve_options(name, vocabulary, length, options)
        check_size("from_family", vocabulary, length, 1, memory_limit)
        count, family = vocabulary**length, NAMED[name]
        labels = family.labels(vocabulary, length, **options)
        if name == "random":
            values = np.random.default_rng(options["seed"]).integers(0, labels, count).astype(np.float64)
        else:
            values = np.empty(count)
            for start in range(0, count, _AT_ONCE):
                inputs = _symbols(np.arange(start, min(start + _AT_ONCE, count)), vocabulary, length)
                values[start : start + len(inputs)] = family.evaluate(inputs, vocabulary, **options)
        shown = "".join(f", {option}={value}" for option, value in options.items())
        return cls(vocabulary, length, values, f"{name}(V={vocabulary}, n={length}{shown})", labels)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        outputs: Sequence[str] | None = None,
        vocabulary: int | Sequence[str] | None = None,
        labels: int | None = None,
        memory_limit: float = MEMORY_LIMIT,
    ) -> "FunctionTable":
        """Read a CSV file with a header line, or a Parquet file (extra `files`): a column per position, then the value.

        Parameters
        ----------
        outputs : sequence of str, optional
            Columns that hold values; the last one when omitted.
        vocabulary : int or sequence of str, optional
            Number of symbols, or their names in order; when omitted, the symbols that occur.
        labels : int, optional
            Values must be whole numbers below it.

        Raises
        ------
        DataError
            If inputs are missing or given twice, a cell is empty or no finite number, a symbol or label is outside its vocabulary, or
            the file cannot be read.
        """
        from oplens.construction.files import read_table

        return cls(**read_table(Path(path), outputs, vocabulary, labels, memory_limit))

    @property
    def outputs(self) -> int:
        """Numbers m per input."""
        return int(self.values.shape[1])

    def __len__(self) -> int:
        return len(self.values)

    def inputs(self, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """Inputs number `start` to `stop`, exclusive: (count, n)."""
        return _symbols(np.arange(start, len(self) if stop is None else stop), self.vocabulary, self.length)

    def inputs_at(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Inputs of the given numbers: (count, n)."""
        return _symbols(rows, self.vocabulary, self.length)

    def __call__(self, inputs: Any) -> NDArray[np.float64]:
        """f of inputs (count, n): (count, m)."""
        x = np.asarray(inputs)
        if x.ndim != 2 or x.shape[1] != self.length or not np.issubdtype(x.dtype, np.integer):
            raise ArgumentError(
                f"FunctionTable: expected whole numbers (count, {self.length}), got {x.shape} of {x.dtype}."
            )
        if len(x) and not 0 <= x.min() <= x.max() < self.vocabulary:
            raise ArgumentError(f"FunctionTable: symbols are 0 to {self.vocabulary - 1}; got {x.min()} to {x.max()}.")
        powers = self.vocabulary ** np.arange(self.length - 1, -1, -1)
        return np.asarray(self.values[x @ powers])

    def one_hot(self) -> "FunctionTable":
        """The same function with m = `labels` outputs, 1 at the label and 0 elsewhere: a classifier's logits."""
        if self.labels is None:
            raise ArgumentError("FunctionTable.one_hot: the table has no labels; give labels when it is made.")
        values = np.eye(self.labels)[self.values[:, 0].astype(np.int64)]
        return dataclasses.replace(self, values=values, labels=None, name=f"{self.name}, one-hot")


def check_size(call: str, vocabulary: int, length: int, outputs: int, limit: float) -> None:
    """Refuse a table that would exceed `limit` bytes, and say how many it needs."""
    logarithm = length * math.log2(vocabulary) + math.log2(8 * outputs)
    if logarithm > 62 or 8 * outputs * vocabulary**length > limit:
        size = f"{8 * outputs * vocabulary**length:,}" if logarithm <= 62 else f"about 2^{logarithm:.0f}"
        raise ArgumentError(
            f"{call}: a table of {vocabulary}^{length} inputs with {outputs} number(s) each needs {size} bytes, above the limit of "
            f"{limit:,.0f}; use a smaller vocabulary or length, or raise memory_limit."
        )


def _sizes(call: str, vocabulary: Any, length: Any) -> tuple[int, int]:
    found = []
    for name, value, least in (("vocabulary", vocabulary, 2), ("length", length, 1)):
        try:
            whole = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            whole = None
        if whole is None or whole < least:
            raise ArgumentError(f"{call}({name}={value!r}): a whole number of at least {least} is needed.")
        found.append(whole)
    return found[0], found[1]


def _symbols(rows: NDArray[np.int64], vocabulary: int, length: int) -> NDArray[np.int64]:
    powers = vocabulary ** np.arange(length - 1, -1, -1)
    return np.asarray(rows)[:, None] // powers % vocabulary


def _shown(row: int, vocabulary: int, length: int) -> tuple[int, ...]:
    return tuple(_symbols(np.array([row]), vocabulary, length)[0].tolist())


def _outputs(function: Callable[[tuple[int, ...]], Any], x: NDArray[np.int64]) -> list[float]:
    """The function's numbers at one input."""
    given = tuple(x.tolist())
    try:
        value = function(given)
    except Exception as error:
        raise DataError(
            f"from_function: the function raised {type(error).__name__} at input {given}: {error}"
        ) from error
    several = list(value) if isinstance(value, (list, tuple, np.ndarray)) and np.ndim(value) else [value]
    try:
        # A string such as "3" is no number; None is refused by float.
        numbers = [math.nan if isinstance(item, (str, bytes)) else float(item) for item in several]
    except (TypeError, ValueError, OverflowError):
        numbers = [math.nan]
    if not numbers or not all(math.isfinite(item) for item in numbers):
        raise DataError(
            f"from_function: the function returned {value!r} at input {given}; a finite number, or several, is needed everywhere."
        )
    return numbers


def _check_labels(call: str, values: NDArray[np.float64], labels: int | None, vocabulary: int, length: int) -> None:
    if labels is None:
        return
    if isinstance(labels, bool) or not isinstance(labels, (int, np.integer)) or labels < 1:
        raise ArgumentError(f"{call}(labels={labels!r}): a whole number of at least 1 is needed.")
    if values.shape[1] != 1:
        raise ArgumentError(f"{call}(labels={labels}): labels are one number per input, not {values.shape[1]}.")
    bad = np.flatnonzero((values[:, 0] != np.floor(values[:, 0])) | (values[:, 0] < 0) | (values[:, 0] >= labels))
    if len(bad):
        raise DataError(
            f"{call}: value {values[bad[0], 0]:g} at input {_shown(bad[0], vocabulary, length)} is no label from 0 to {labels - 1} "
            f"({len(bad)} in all)."
        )
