"""A variable of a result with the three attributes that each must carry."""

from typing import Any

Variable = tuple[Any, Any, dict[str, str]]


def variable(dims: Any, values: Any, long_name: str, units: str = "1", claim: str = "measured") -> Variable:
    """Return what xarray makes a variable of.

    Examples
    --------
    >>> variable("case", [1.0], "distance", "position")
    ('case', [1.0], {'units': 'position', 'long_name': 'distance', 'claim': 'measured'})
    """
    return dims, values, {"units": units, "long_name": long_name, "claim": claim}
