"""Labelled sequences of equal or unequal length, checked once when they enter."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.errors import DataError

_AXES = "(n_cases, n_channels, n_timepoints)"
_CASE_AXES = "(n_channels, n_timepoints)"


@dataclass(frozen=True, eq=False)
class SequenceData:
    """Labelled sequences, zero-padded on the right to one array.

    Parameters
    ----------
    X : ndarray of float64, (n_cases, n_channels, n_timepoints)
        Finite values, in the unit they were recorded in; exactly zero from step ``lengths[i]`` on.
    lengths : ndarray of int64, (n_cases,)
        Number of steps of each case that are data.
    y : ndarray of str, (n_cases,), or None
        Labels exactly as in their source; None where there are none.
    channels : tuple of str, (n_channels,)
    classes : tuple of str
        Every class a label may take, in the order the source states, else sorted; empty without labels.
    sampling_rate : float or None
        Steps per second (Hz), None when unknown.
    name, source : str
        What the data are called, and where they came from.

    Raises
    ------
    DataError
        When the parts do not fit each other.

    Examples
    --------
    >>> import numpy as np
    >>> data = as_sequences([np.ones((2, 5)), np.ones((2, 3))])
    >>> data.X.shape, data.lengths.tolist(), data.channels
    ((2, 2, 5), [5, 3], ('channel 1', 'channel 2'))
    >>> data.cases()[1].shape
    (2, 3)
    """

    X: NDArray[np.float64]
    lengths: NDArray[np.int64]
    y: NDArray[np.str_] | None
    channels: tuple[str, ...]
    classes: tuple[str, ...]
    sampling_rate: float | None
    name: str
    source: str

    def __post_init__(self) -> None:
        if not isinstance(self.X, np.ndarray) or self.X.dtype != np.float64 or self.X.ndim != 3 or 0 in self.X.shape:
            got = f"{self.X.dtype} of shape {self.X.shape}" if isinstance(self.X, np.ndarray) else type(self.X).__name__
            raise DataError(f"SequenceData: X must be a non-empty float64 array {_AXES}, got {got}.")
        n_cases, n_channels, n_timepoints = self.X.shape
        lengths = self.lengths
        if not isinstance(lengths, np.ndarray) or lengths.dtype != np.int64 or lengths.shape != (n_cases,):
            raise DataError(f"SequenceData: lengths must be an int64 array of shape ({n_cases},), one per case.")
        if lengths.min() < 1 or lengths.max() > n_timepoints:
            case = int(np.flatnonzero((lengths < 1) | (lengths > n_timepoints))[0])
            raise DataError(
                f"SequenceData: case {case} has length {lengths[case]}, expected between 1 and the "
                f"{n_timepoints} steps that X holds."
            )
        _refuse_non_finite(self.X, "SequenceData")
        padding = np.arange(n_timepoints) >= lengths[:, None]
        dirty = (np.any(self.X != 0, axis=1) & padding).any(axis=1)
        if dirty.any():
            case = int(np.flatnonzero(dirty)[0])
            raise DataError(
                f"SequenceData: case {case} has values other than zero past its length {lengths[case]}; "
                "padding must be zero, so that it can take no share."
            )
        _check_names(self.channels, "channels", n_channels)
        _check_names(self.classes, "classes", None)
        self._check_labels(n_cases)
        rate = self.sampling_rate
        if rate is not None and not (isinstance(rate, float) and 0 < rate < float("inf")):
            raise DataError(f"SequenceData: sampling_rate must be a positive float in Hz or None, got {rate!r}.")

    def _check_labels(self, n_cases: int) -> None:
        y = self.y
        if y is None:
            return
        if not isinstance(y, np.ndarray) or y.dtype.kind != "U" or y.shape != (n_cases,):
            raise DataError(f"SequenceData: y must be an array of {n_cases} strings, one label per case, or None.")
        for case, label in enumerate(y):
            if label not in self.classes:
                raise DataError(
                    f"SequenceData: case {case} is labelled {str(label)!r}, which is not among the classes "
                    f"{', '.join(self.classes) or '(none)'}."
                )

    @property
    def n_cases(self) -> int:
        """Number of cases."""
        return int(self.X.shape[0])

    @property
    def n_channels(self) -> int:
        """Number of input channels."""
        return int(self.X.shape[1])

    @property
    def n_timepoints(self) -> int:
        """Number of steps of the padded array."""
        return int(self.X.shape[2])

    def cases(self) -> list[NDArray[np.float64]]:
        """Return the cases without padding, each (n_channels, length), as views of `X`."""
        return [x[:, :length] for x, length in zip(self.X, self.lengths.tolist(), strict=True)]

    def means(self) -> NDArray[np.float64]:
        """Return the mean of every channel over a case's own steps, (n_cases, n_channels).

        Examples
        --------
        >>> import numpy as np
        >>> as_sequences([np.array([[1.0, 3.0]]), np.array([[5.0]])]).means().tolist()
        [[2.0], [5.0]]
        """
        return np.asarray(self.X.sum(axis=2) / self.lengths[:, None])

    def select(self, cases: Sequence[int] | NDArray[np.int64] | NDArray[np.bool_]) -> "SequenceData":
        """Return the cases with these indices, in this order; padded length, names and classes stay."""
        index = np.asarray(cases)
        if index.dtype == bool and index.shape == (self.n_cases,):
            index = np.flatnonzero(index)
        if index.ndim != 1 or index.size == 0 or index.dtype.kind not in "iu":
            raise DataError(f"SequenceData.select: expected a non-empty list of case numbers, got {cases!r}.")
        if index.min() < -self.n_cases or index.max() >= self.n_cases:
            raise DataError(f"SequenceData.select: there are cases 0 to {self.n_cases - 1}, got {cases!r}.")
        return SequenceData(
            X=self.X[index],
            lengths=self.lengths[index],
            y=None if self.y is None else self.y[index],
            channels=self.channels,
            classes=self.classes,
            sampling_rate=self.sampling_rate,
            name=self.name,
            source=self.source,
        )


def as_sequences(X: object) -> SequenceData:
    """Return arrays in memory as `SequenceData` without labels.

    Which axis of a bare array is time cannot be seen from the numbers: the order is always
    (n_cases, n_channels, n_timepoints), as in aeon, never (n_cases, n_timepoints, n_channels).

    Parameters
    ----------
    X : SequenceData, ndarray or tensor (n_cases, n_channels, n_timepoints), or list of (n_channels, n_timepoints)
        Real numbers (float, integer or boolean), all finite. A list may hold cases of unequal length. An
        `xarray.DataArray` is accepted when its dimensions are called case, channel and time, in any order.

    Returns
    -------
    SequenceData
        The argument itself when it is one; otherwise a float64 copy, zero-padded on the right.

    Raises
    ------
    DataError
        For anything else, naming case, channel and step (counted from 0) where one value is to blame.

    Accuracy
    --------
    Exact: float64, float32, booleans and integers below 2**53 keep their values.

    Examples
    --------
    >>> import numpy as np
    >>> as_sequences(np.zeros((4, 6, 100), dtype=np.float32)).X.dtype
    dtype('float64')
    >>> as_sequences(np.zeros((4, 100)))
    Traceback (most recent call last):
    ...
    oplens.errors.DataError: as_sequences: expected an array (n_cases, n_channels, n_timepoints), got shape (4, 100); \
for one channel per case add the axis, X[:, np.newaxis, :]; for a single case of several channels pass X[np.newaxis].
    """
    if isinstance(X, SequenceData):
        return X
    channels: tuple[str, ...] | None = None
    library = type(X).__module__.partition(".")[0]
    if library in ("pandas", "polars", "scipy", "mne"):
        raise DataError(_foreign(library, type(X).__name__))
    if library == "xarray":
        X, channels = _from_xarray(X)
    elif _is_tensor(X):
        X = _from_torch(X)
    if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1:
        X = list(X)
    if isinstance(X, np.ndarray):
        values, lengths = _from_array(X)
    elif isinstance(X, list | tuple):
        values, lengths = _from_list(X)
    else:
        raise DataError(
            f"as_sequences: expected an array {_AXES} or a list of arrays {_CASE_AXES}, got {_describe(X)}."
        )
    _refuse_non_finite(values, "as_sequences")
    return SequenceData(
        X=values,
        lengths=lengths,
        y=None,
        channels=channels or default_channels(values.shape[1]),
        classes=(),
        sampling_rate=None,
        name="array",
        source="array",
    )


def default_channels(n_channels: int) -> tuple[str, ...]:
    """Return the names of channels whose source has none: ``channel 1``, ``channel 2``, ..."""
    return tuple(f"channel {i + 1}" for i in range(n_channels))


def pad(cases: Sequence[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Stack cases (n_channels, length) into one array, zeros on the right, and return it with the lengths."""
    lengths = np.array([case.shape[1] for case in cases], dtype=np.int64)
    values = np.zeros((len(cases), cases[0].shape[0], int(lengths.max())))
    for row, case in zip(values, cases, strict=True):
        row[:, : case.shape[1]] = case
    return values, lengths


def _from_array(X: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    if X.ndim != 3:
        cure = {
            1: "one univariate case is X[np.newaxis, np.newaxis, :]",
            2: "for one channel per case add the axis, X[:, np.newaxis, :]; "
            "for a single case of several channels pass X[np.newaxis]",
        }.get(X.ndim, "reshape it so that the last axis is time and the one before it the channels")
        raise DataError(f"as_sequences: expected an array {_AXES}, got shape {X.shape}; {cure}.")
    for size, what in zip(X.shape, ("cases", "channels", "time steps"), strict=True):
        if size == 0:
            raise DataError(f"as_sequences: the array has no {what}: shape {X.shape}, expected {_AXES}.")
    values = _real(X, "the array")
    return values, np.full(len(values), values.shape[2], dtype=np.int64)


def _from_list(X: Sequence[object]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    if not X:
        raise DataError(f"as_sequences: the list is empty; expected at least one array {_CASE_AXES}.")
    cases: list[NDArray[np.float64]] = []
    for i, entry in enumerate(X):
        item = _from_torch(entry) if _is_tensor(entry) else entry
        if not isinstance(item, np.ndarray | list | tuple):
            raise DataError(f"as_sequences: case {i} is {_describe(item)}, expected an array {_CASE_AXES}.")
        try:
            case = np.asarray(item)
        except ValueError:
            raise DataError(
                f"as_sequences: the channels of case {i} differ in length; every channel of a case needs a value "
                "at every step."
            ) from None
        case = _real(case, f"case {i}")
        if case.ndim != 2:
            cure = "one channel is x[np.newaxis, :]" if case.ndim == 1 else "pass one array per case"
            raise DataError(f"as_sequences: case {i} has shape {case.shape}, expected {_CASE_AXES}; {cure}.")
        for size, what in zip(case.shape, ("channels", "time steps"), strict=True):
            if size == 0:
                raise DataError(f"as_sequences: case {i} has no {what}: shape {case.shape}, expected {_CASE_AXES}.")
        cases.append(case)
    n_channels = cases[0].shape[0]
    for i, case in enumerate(cases):
        if case.shape[0] != n_channels:
            swapped = len({c.shape[1] for c in cases}) == 1
            cure = (
                "; the second axis is the same in all cases, so the axes look swapped: pass [x.T for x in X]"
                if swapped
                else "; give every case the same channels"
            )
            raise DataError(
                f"as_sequences: case {i} has {case.shape[0]} channels, case 0 has {n_channels} "
                f"(expected arrays {_CASE_AXES}){cure}."
            )
    return pad(cases)


def _real(values: NDArray[Any], what: str) -> NDArray[np.float64]:
    kind = values.dtype.kind
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DataError(f"as_sequences: {what} has masked values; fill them or remove the cases that hold them.")
    if kind == "c":
        raise DataError(f"as_sequences: {what} is complex; pass real signals, for example abs(X) or X.real.")
    if kind not in "fiub":
        named = {"O": "Python objects", "U": "text", "S": "bytes", "M": "dates", "m": "time differences"}
        raise DataError(
            f"as_sequences: {what} holds {named.get(kind, str(values.dtype))}, expected real numbers; "
            "convert with X.astype(float) once every entry is a number."
        )
    with np.errstate(over="ignore"):  # a long double too large for float64 is named as infinite by the caller
        return np.array(values, dtype=np.float64, subok=False)


def _refuse_non_finite(X: NDArray[np.float64], caller: str) -> None:
    bad = ~np.isfinite(X)
    if not bad.any():
        return
    case, channel, step = (int(i) for i in np.argwhere(bad)[0])
    what = "NaN" if np.isnan(X[case, channel, step]) else "infinite"
    count = int(bad.sum())
    total = "" if count == 1 else f"; {count} values of {int(bad.any(axis=(1, 2)).sum())} case(s) are not finite"
    cure = "fill the gap or leave the case out"
    if what == "NaN" and np.isnan(X[case, :, step:]).all():
        cure = "if NaN pads shorter cases, pass a list of unpadded arrays instead"
    raise DataError(
        f"{caller}: the value at case {case}, channel {channel}, step {step} (counted from 0) is {what}{total}; {cure}."
    )


def _check_names(names: object, what: str, count: int | None) -> None:
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise DataError(f"SequenceData: {what} must be a tuple of strings, got {names!r}.")
    if count is not None and len(names) != count:
        raise DataError(f"SequenceData: {len(names)} names in channels, but X has {count} channels.")
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise DataError(f"SequenceData: {what} names {name!r} twice; names must differ.")


def _is_tensor(X: object) -> bool:
    # a tensor can only exist once torch is imported, so torch need not be imported to look for one
    return "torch" in sys.modules and isinstance(X, sys.modules["torch"].Tensor)


def _from_torch(X: Any) -> NDArray[np.float64]:
    if X.is_complex():
        raise DataError("as_sequences: the tensor is complex; pass real signals, for example X.abs() or X.real.")
    values: NDArray[np.float64] = X.detach().cpu().double().numpy()
    return values


def _from_xarray(X: Any) -> tuple[NDArray[Any], tuple[str, ...] | None]:
    import xarray as xr

    if not isinstance(X, xr.DataArray):
        raise DataError(f"as_sequences: got an xarray {type(X).__name__}; pass one of its variables, ds['signal'].")
    if set(X.dims) != {"case", "channel", "time"}:
        raise DataError(
            "as_sequences: the dimensions of a DataArray must be called case, channel and time, got "
            f"{', '.join(map(str, X.dims))}; rename them, for example X.rename(trial='case')."
        )
    channels = tuple(str(name) for name in X["channel"].values) if "channel" in X.coords else None
    return X.transpose("case", "channel", "time").values, channels


def _foreign(library: str, kind: str) -> str:
    if library == "mne":
        return (
            f"as_sequences: got an MNE {kind}; pass epochs.get_data(), an array (n_epochs, n_channels, n_times) "
            "in volts, scaled as the model was trained (for microvolts multiply by 1e6)."
        )
    if library == "scipy":
        return f"as_sequences: got a {kind}; sparse arrays have no time axis: pass X.toarray() reshaped to {_AXES}."
    return (
        f"as_sequences: got a {library} {kind}, whose rows may be cases or time steps; pass an array {_AXES}, "
        "for example df.to_numpy()[:, np.newaxis, :] when each row is a univariate case."
    )


def _describe(value: object) -> str:
    if isinstance(value, str | bytes):
        return "text; oplens.data.read_ts(path) reads a .ts file"
    if value is None:
        return "None"
    if isinstance(value, dict):
        return "a dict; pass one of its entries"
    return f"a {type(value).__name__}"
