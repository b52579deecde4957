"""Who made a result, when, from what: the attributes that every Dataset carries."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from oplens.errors import ResultError

Attribute = str | int | float | np.ndarray | list[str]


def provenance(
    *,
    source: str,
    dtype: str = "float64",
    seed: int | None = None,
    created_at: str | None = None,
    **more: Any,
) -> dict[str, Attribute]:
    """Return the attributes `created_at, oplens_version, dtype, seed, source` and the given ones, ready for NetCDF.

    Parameters
    ----------
    source
        What the numbers were computed from: a file, a model, a seed.
    dtype
        Precision of the computation (not of the storage).
    seed
        Left out where nothing was random.
    created_at
        ISO 8601 in UTC; the current second by default.
    more
        Further attributes. None is left out, a bool becomes 0 or 1, a mapping becomes JSON text.

    Raises
    ------
    ResultError
        An attribute that no NetCDF file can hold.

    Examples
    --------
    >>> from oplens.results import provenance
    >>> p = provenance(source="noise, seed 3", seed=3, created_at="2026-01-01T00:00:00Z", order=2, family="hermite")
    >>> p["seed"], p["order"], p["family"], p["dtype"]
    (3, 2, 'hermite', 'float64')
    """
    from oplens import __version__

    attributes: dict[str, Any] = {
        "created_at": created_at or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "oplens_version": __version__,
        "dtype": dtype,
        "seed": seed,
        "source": source,
        **more,
    }
    return {name: storable(name, value) for name, value in attributes.items() if value is not None}


def storable(name: str, value: Any, where: str = "provenance") -> Attribute:
    """Return `value` as NetCDF can keep it as an attribute, or raise a ResultError that names the attribute."""
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, str):
        return _text(name, value, where)
    if isinstance(value, (int, float, np.integer, np.floating)):
        return value.item() if isinstance(value, np.generic) else value
    if isinstance(value, Mapping):
        try:
            return json.dumps(dict(value), ensure_ascii=True, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ResultError(f"{where}: attribute {name!r} is a mapping that JSON cannot hold ({error}).") from None
    if isinstance(value, (list, tuple, np.ndarray)):
        array = np.asarray(value)
        if array.ndim == 1 and array.size and all(isinstance(item, str) for item in array.tolist()):
            return [_text(name, item, where) for item in array.tolist()]
        if array.ndim == 1 and array.dtype.kind in "iufb":
            return array.astype(np.int8) if array.dtype.kind == "b" else array
    raise ResultError(
        f"{where}: attribute {name!r} is of type {type(value).__name__}, which NetCDF cannot hold; "
        "give text, a number, a one-dimensional array, a list of texts or a mapping (kept as JSON)."
    )


def _text(name: str, value: str, where: str) -> str:
    if "\0" in value:
        raise ResultError(f"{where}: attribute {name!r} contains a NUL character, which NetCDF cannot hold; remove it.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ResultError(f"{where}: attribute {name!r} is no valid Unicode text ({error.reason}).") from None
    return str(value)
