"""Arrays in (numpy, torch, lists), float64 out; masks that leave padding out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.errors import ArgumentError, DataError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def plain(call: str, name: str, value: Any) -> NDArray[Any]:
    """Any array of real numbers or booleans as numpy; bfloat16 becomes float32, which holds all its values."""
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
        value = value.numpy()
    try:
        array = np.asarray(value)
    except ValueError:
        raise ArgumentError(f"{call}({name}=...): rows of different lengths; pad them and give a mask.") from None
    if array.dtype.kind not in "biuf":
        raise ArgumentError(f"{call}({name} of {array.dtype}): give real numbers.")
    return array


def precision(value: Any) -> float:
    """Spacing of the numbers as given: the measured array is no more exact than the dtype it was kept in."""
    import torch

    if isinstance(value, torch.Tensor):
        return float(torch.finfo(value.dtype).eps) if value.is_floating_point() else float(np.finfo(float).eps)
    dtype = np.asarray(value).dtype
    return float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps)


def floats(call: str, name: str, value: Any, dims: tuple[int, ...], shape: str, finite: bool = True) -> Floats:
    """Float64 copy with one of the numbers of dimensions `dims`, described by `shape`; refuses NaN and infinities if `finite`."""
    array = plain(call, name, value).astype(np.float64)
    if array.ndim not in dims:
        raise ArgumentError(f"{call}({name} of shape {array.shape}): expected {shape}.")
    if finite and not np.isfinite(array).all():
        raise DataError(
            f"{call}({name}): holds NaN or infinite values; they would make every number NaN. Find where they arise."
        )
    return array


def validity(call: str, mask: Any, shape: tuple[int, ...], axes: str) -> Bools:
    """Mask of `shape`, True where something real stands; None: everywhere. Tokenizers' 0 and 1 are taken as well."""
    if mask is None:
        return np.ones(shape, dtype=bool)
    array = plain(call, "mask", mask)
    if array.shape != shape:
        raise ArgumentError(f"{call}(mask of shape {array.shape}): expected {axes} = {shape}.")
    if array.dtype.kind != "b" and not np.isin(array, (0, 1)).all():
        raise ArgumentError(
            f"{call}(mask of {array.dtype}): give booleans or 0 and 1, 1 where a position is real; this looks like an additive mask."
        )
    return array.astype(bool)


def points(call: str, name: str, value: Any, mask: Any = None) -> Floats:
    """Points (n, n_features) of an array (..., n_features) whose leading axes the mask shares; padding may hold anything."""
    array = floats(
        call, name, value, tuple(range(2, 9)), "(n_points, n_features) or (batch, length, n_features)", False
    )
    if array.shape[-1] == 0:
        raise ArgumentError(f"{call}({name} of shape {array.shape}): there are no features.")
    kept = array[validity(call, mask, array.shape[:-1], "the leading axes")]
    if not np.isfinite(kept).all():
        raise DataError(f"{call}({name}): NaN or infinite values outside the padding; if they are padding, give mask=.")
    return kept


def whole(call: str, name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ArgumentError(f"{call}({name}={value!r}): give a whole number of at least {least}.")
    return int(value)


def fraction(call: str, name: str, value: Any) -> float:
    """A number strictly between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ArgumentError(f"{call}({name}={value!r}): give a number between 0 and 1, such as 0.95.")
    return float(value)
