"""Cases of tokens, checked once when they enter: padded on the right, each with its length, its bytes of text and labels where known."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.data.texts import Tokenizer
from oplens.errors import ArgumentError, DataError

Integers = NDArray[np.int64]
LONGEST_BY_DEFAULT = 512  # attention of a case costs the square of its length


@dataclass(frozen=True)
class TokenBatch:
    """Some cases, cut to the longest of them.

    Attributes
    ----------
    ids : ndarray of int64, (batch, length)
    mask : ndarray of bool, (batch, length)
    n_bytes : ndarray of int64, (batch,), or None
    text_mask : ndarray of bool, (batch, length), or None
    """

    ids: Integers
    mask: NDArray[np.bool_]
    n_bytes: Integers | None
    text_mask: NDArray[np.bool_] | None = None


@dataclass(frozen=True, eq=False)
class Tokens:
    """Cases of tokens.

    Parameters
    ----------
    ids : ndarray of int64, (n_cases, length)
        Not negative; 0 from `lengths[i]` on.
    lengths : ndarray of int64, (n_cases,)
        At least 1.
    n_bytes : ndarray of int64, (n_cases,), or None
        UTF-8 bytes of text that the predictions of a case cover: those of all its tokens but the first. None where unknown.
    tokenizer : Tokenizer or None
    name, source : str
        What the data are called, and where they came from.
    notes : tuple of str
        Sentences a reader has to know, such as how a text was cut.
    extra : mapping
        Further facts, ready for JSON.
    text_mask : ndarray of bool, (n_cases, length), or None
        True where a token stands for text: `n_bytes` are the bytes of these, special tokens have none. None: everywhere.

    Raises
    ------
    DataError
        When the parts do not fit each other.

    Examples
    --------
    >>> tokens = as_tokens([[5, 3, 8], [2, 7]])
    >>> tokens.ids.tolist(), tokens.lengths.tolist(), tokens.labels(1)
    ([[5, 3, 8], [2, 7, 0]], [3, 2], ('2', '7'))
    >>> [batch.mask.tolist() for batch in tokens.batches(1)]
    [[[True, True, True]], [[True, True]]]
    """

    ids: Integers
    lengths: Integers
    n_bytes: Integers | None = None
    tokenizer: Tokenizer | None = None
    name: str = "tokens"
    source: str = "array"
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    text_mask: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        ids, lengths = self.ids, self.lengths
        if ids.dtype != np.int64 or ids.ndim != 2 or 0 in ids.shape:
            raise DataError(
                f"Tokens(ids of shape {ids.shape}, {ids.dtype}): expected a non-empty int64 array (n_cases, length)."
            )
        if lengths.dtype != np.int64 or lengths.shape != ids.shape[:1]:
            raise DataError(f"Tokens(lengths of shape {lengths.shape}): expected {ids.shape[:1]} whole numbers.")
        if lengths.min() < 1 or lengths.max() > ids.shape[1]:
            case = int(np.flatnonzero((lengths < 1) | (lengths > ids.shape[1]))[0])
            raise DataError(f"Tokens: case {case} has length {lengths[case]}; lengths are 1 to {ids.shape[1]}.")
        if ids.min() < 0:
            case = int(np.flatnonzero((ids < 0).any(1))[0])
            raise DataError(f"Tokens: case {case} holds {ids[case].min()}; tokens are not negative.")
        if (ids[np.arange(ids.shape[1]) >= lengths[:, None]] != 0).any():
            raise DataError("Tokens: ids other than 0 past a case's length; padding must be 0.")
        if self.n_bytes is not None and (self.n_bytes.shape != lengths.shape or self.n_bytes.min() < 0):
            raise DataError(f"Tokens: n_bytes must be {len(lengths)} whole numbers, one per case.")
        if self.text_mask is not None and (self.text_mask.shape != ids.shape or self.text_mask.dtype != bool):
            raise DataError(f"Tokens: text_mask must be booleans of shape {ids.shape}, one per token.")

    @property
    def n_cases(self) -> int:
        """Number of cases."""
        return len(self.ids)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """True where a token is real, (n_cases, length)."""
        return np.asarray(np.arange(self.ids.shape[1]) < self.lengths[:, None])

    @property
    def facts(self) -> dict[str, Any]:
        """What the data are, ready for JSON."""
        return {
            "name": self.name,
            "source": self.source,
            "cases": self.n_cases,
            "tokens": int(self.lengths.sum()),
            "shortest": int(self.lengths.min()),
            "longest": int(self.lengths.max()),
            **({} if self.tokenizer is None else {"tokenizer": self.tokenizer.name}),
            **({} if self.n_bytes is None else {"bytes": int(self.n_bytes.sum())}),
            **self.extra,
        }

    def batches(self, size: int) -> Iterator[TokenBatch]:
        """Batches of at most `size` cases, in order."""
        for start in range(0, self.n_cases, size):
            rows = slice(start, start + size)
            longest = int(self.lengths[rows].max())
            mask = np.arange(longest) < self.lengths[rows, None]
            yield TokenBatch(
                self.ids[rows, :longest],
                mask,
                None if self.n_bytes is None else self.n_bytes[rows],
                None if self.text_mask is None else self.text_mask[rows, :longest],
            )

    def labels(self, case: int, longest: int | None = None) -> tuple[str, ...]:
        """Text of each token of a case, or its number where no tokenizer is known; of the first `longest` alone if given."""
        row = self.ids[case, : self.lengths[case]][:longest].tolist()
        return tuple(map(str, row)) if self.tokenizer is None else tuple(self.tokenizer.labels(row))

    def first(self, n_cases: int) -> "Tokens":
        """The first cases alone."""
        if isinstance(n_cases, bool) or not isinstance(n_cases, int) or n_cases < 1:
            raise ArgumentError(f"Tokens.first({n_cases!r}): give a whole number of at least 1.")
        if n_cases >= self.n_cases:
            return self
        longest = int(self.lengths[:n_cases].max())
        return replace(
            self,
            ids=self.ids[:n_cases, :longest],
            lengths=self.lengths[:n_cases],
            n_bytes=None if self.n_bytes is None else self.n_bytes[:n_cases],
            text_mask=None if self.text_mask is None else self.text_mask[:n_cases, :longest],
            notes=(*self.notes, f"The first {n_cases} of {self.n_cases} cases are measured."),
        )


def as_tokens(
    rows: Any,
    tokenizer: Tokenizer | None = None,
    *,
    lengths: Any = None,
    window: int | None = None,
    max_length: int | None = None,
    vocabulary: int | None = None,
    name: str = "tokens",
    source: str = "array",
) -> Tokens:
    """Tokens in memory as :class:`Tokens`.

    Parameters
    ----------
    rows : integer array (n_cases, length) or (n,), or list of lists of int
        A single row is a stream, cut into windows.
    tokenizer : Tokenizer, optional
        For labels and numbers of bytes.
    lengths : array of int, (n_cases,), optional
        Real tokens of each row; the rest is padding.
    window : int, optional
        Rows are cut into windows of this many tokens. By default streams alone are, into min(`max_length`, 512).
    max_length, vocabulary : int, optional
        What the model takes.

    Raises
    ------
    DataError
        Negative tokens or ones outside the vocabulary, numbers that are not whole, rows longer than the model takes, nothing at all.

    Examples
    --------
    >>> as_tokens(range(7), window=3).ids.tolist()  # a last window of one token predicts nothing
    [[0, 1, 2], [3, 4, 5]]
    """
    call = f"tokens of {source}"
    window = checked_window(window, max_length)
    cases, stream = _rows(call, rows)
    if lengths is not None:
        cases = _shortened(call, cases, lengths)
    check_range(call, cases, vocabulary if tokenizer is None or vocabulary is not None else tokenizer.size)
    notes: list[str] = []
    if stream and window is None:
        window = min(max_length or LONGEST_BY_DEFAULT, LONGEST_BY_DEFAULT)
    if window is not None:
        cases, notes = _windows(call, cases, window)
    longest = max(map(len, cases))
    if max_length is not None and longest > max_length:
        raise DataError(
            f"{call}: a case has {longest} tokens, the model takes at most {max_length}; cut the cases into windows, window={max_length}."
        )
    ids, sizes = padded(cases)
    n_bytes, text = None, None
    if tokenizer is not None:
        text = ~np.isin(ids, list(tokenizer.special)) & (np.arange(ids.shape[1]) < sizes[:, None])
        n_bytes, note = _covered(cases, text, tokenizer)
        notes += note
    return Tokens(ids, sizes, n_bytes, tokenizer, name, source, tuple(notes), text_mask=text)


def checked_window(window: Any, max_length: int | None) -> int | None:
    """Refuse a window that cannot be."""
    if window is None:
        return None
    if isinstance(window, bool) or not isinstance(window, int) or window < 2:
        raise ArgumentError(f"window={window!r}: give a whole number of at least 2, the tokens of a window.")
    if max_length is not None and window > max_length:
        raise ArgumentError(f"window={window}: the model takes at most {max_length} tokens; give a smaller window.")
    return window


def check_range(call: str, cases: Sequence[Integers], vocabulary: int | None) -> None:
    """Refuse negative tokens and ones that the model does not have."""
    for number, case in enumerate(cases):
        low, high = int(case.min()), int(case.max())
        if low < 0:
            raise DataError(
                f"{call}: case {number} holds {low}; tokens are not negative. Where negative numbers mark padding, give lengths or a mask."
            )
        if vocabulary is not None and high >= vocabulary:
            raise DataError(
                f"{call}: case {number} holds {high}, the vocabulary is 0 to {vocabulary - 1}; these are tokens of another tokenizer."
            )


def padded(cases: Sequence[Integers]) -> tuple[Integers, Integers]:
    """Stack rows, zeros on the right; with their lengths."""
    lengths = np.array([len(case) for case in cases], dtype=np.int64)
    ids = np.zeros((len(cases), int(lengths.max())), dtype=np.int64)
    for row, case in zip(ids, cases, strict=True):
        row[: len(case)] = case
    return ids, lengths


def _rows(call: str, rows: Any) -> tuple[list[Integers], bool]:
    """Rows one by one; whether they are one stream."""
    if isinstance(rows, list | tuple) and rows and all(isinstance(row, list | tuple) for row in rows):
        for number, row in enumerate(rows):
            if not row:
                raise DataError(f"{call}: case {number} is empty; leave it out.")
            if not all(isinstance(t, int | np.integer) and not isinstance(t, bool) for t in row):
                raise DataError(f"{call}: case {number} holds something other than whole numbers; give token ids.")
        try:
            return [np.array(row, dtype=np.int64) for row in rows], False
        except OverflowError:
            raise DataError(f"{call}: holds numbers beyond 2^63; no vocabulary is that large.") from None
    array = np.asarray(list(rows) if isinstance(rows, range) else rows)
    if array.dtype.kind == "O":
        raise DataError(
            f"{call}: an array of Python objects, such as rows of different lengths; give a list of lists, or pad the rows and give lengths."
        )
    if array.dtype.kind not in "iu":
        raise DataError(
            f"{call}: numbers of type {array.dtype}; token ids are whole numbers. Real sequences are for models of series."
        )
    if array.ndim not in (1, 2) or 0 in array.shape:
        raise DataError(f"{call}: shape {array.shape}; expected a non-empty array (n_cases, length).")
    if array.dtype == np.uint64 and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{call}: holds {array.max()}; no vocabulary is that large.")
    return list(np.atleast_2d(array).astype(np.int64)), array.ndim == 1


def _shortened(call: str, cases: list[Integers], lengths: Any) -> list[Integers]:
    sizes = np.asarray(lengths)
    if sizes.shape != (len(cases),) or sizes.dtype.kind not in "iu":
        raise DataError(
            f"{call}: lengths of shape {sizes.shape}, {sizes.dtype}; expected {len(cases)} whole numbers, one per case."
        )
    for number, (case, size) in enumerate(zip(cases, sizes.tolist(), strict=True)):
        if not 1 <= size <= len(case):
            raise DataError(f"{call}: case {number} has length {size}; lengths are 1 to {len(case)}.")
    return [case[:size] for case, size in zip(cases, sizes.tolist(), strict=True)]


def _windows(call: str, cases: list[Integers], size: int) -> tuple[list[Integers], list[str]]:
    if max(map(len, cases)) <= size:
        return cases, []
    pieces = [case[start : start + size] for case in cases for start in range(0, len(case), size)]
    kept = [piece for piece in pieces if len(piece) > 1]
    if not kept:
        raise DataError(f"{call}: no window has two tokens, so nothing is predicted.")
    notes = [
        f"{len(cases)} rows are cut into {len(kept)} windows of at most {size} tokens that do not overlap; the first token of each is not "
        "predicted."
    ]
    if len(kept) < len(pieces):
        notes.append(f"{len(pieces) - len(kept)} pieces of a single token are left out: they predict nothing.")
    return kept, notes


def _covered(cases: list[Integers], text: NDArray[np.bool_], tokenizer: Tokenizer) -> tuple[Integers | None, list[str]]:
    """Bytes of every token but the first, by case."""
    counts = []
    for case in cases:
        pieces = tokenizer.pieces(case.tolist())
        if pieces is None:
            return None, ["The tokenizer does not say which bytes a token stands for, so bits per byte are not given."]
        counts.append(sum(map(len, pieces[1:])))
    return usable(np.array([len(case) for case in cases]), text, counts)


def usable(lengths: Integers, text: NDArray[np.bool_], counts: list[int]) -> tuple[Integers | None, list[str]]:
    """Bytes by case where they can be set against the cost of predicting them; and what a reader has to know."""
    predicted = text[:, 1:].sum(1)
    special = int((lengths - 1 - predicted).sum())
    bare = np.flatnonzero((predicted > 0) & (np.array(counts) == 0))
    if len(bare):
        return None, [f"Case {bare[0]} predicts tokens that stand for no byte, so bits per byte are not given."]
    if not predicted.any():
        return None, []
    notes = [
        f"{special:,} predicted tokens are special and stand for no text: they count in perplexity, not in bits per byte."
    ]
    return np.array(counts, dtype=np.int64), notes if special else []
