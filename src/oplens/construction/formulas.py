"""Functions of x1, x2, ... written as text, as a command line or a results file holds them; arithmetic only, nothing is executed."""

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.errors import ArgumentError, DataError

_LONGEST = 2000  # characters; a longer text is no formula
_DEEPEST = 60
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.float_power,
    ast.Mod: np.mod,
}
_ONE: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "floor": np.floor,
    "round": np.round,
}
_MANY: dict[str, Callable[[Any, Any], Any]] = {"max": np.maximum, "min": np.minimum}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_KNOWN = f"numbers, x1, x2, ..., pi, e, + - * / ** %, {', '.join([*_ONE, *_MANY])}"


@dataclass(frozen=True)
class Formula:
    """A function of n reals, applied to points (n_points, n).

    Attributes
    ----------
    text : str
    n : int
        The largest index of a variable.
    """

    text: str
    n: int
    tree: ast.expr

    def __call__(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values (n_points,) at points (n_points, n); NaN or infinite where the formula is not defined, for the caller to refuse."""
        if x.ndim != 2 or x.shape[1] < self.n:
            raise DataError(f"{self.text}: expected points of shape (n_points, {self.n}), got {x.shape}.")
        with np.errstate(all="ignore"):
            values: NDArray[np.float64] = np.zeros(len(x)) + _value(self.tree, x)
        return values


def formula(text: str) -> Formula:
    """Read a formula such as "abs(x1 - x2)" or "max(x1, x2, x3)".

    Raises
    ------
    ArgumentError
        If it holds anything but numbers, variables, arithmetic and the functions above.

    Notes
    -----
    Accuracy: float64. Cost: O(length of the text) array operations per call.

    Examples
    --------
    >>> f = formula("abs(x1 - x2) + 2*x3**2")
    >>> f.n, f(np.array([[0.5, 0.25, 1.0], [0.0, 1.0, 0.0]])).tolist()
    (3, [2.25, 1.0])
    """
    if len(text) > _LONGEST:
        raise ArgumentError(
            f"formula: {len(text)} characters are more than {_LONGEST}; give a Python function instead."
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ArgumentError(
            f"formula({text!r}): cannot be read ({error}); write it as in Python, from {_KNOWN}."
        ) from error
    found = _variables(tree, text, 0)
    if not found:
        raise ArgumentError(f"formula({text!r}): holds no variable; they are called x1, x2, ...")
    return Formula(text, max(found), tree)


def _variables(node: ast.expr, text: str, depth: int) -> set[int]:
    """Indices of the variables below a node, everything unknown refused."""
    if depth > _DEEPEST:
        raise ArgumentError(f"formula: nested more than {_DEEPEST} deep; give a Python function instead.")
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number) if abs(number) < 10**300:
            return set()
        case ast.Name(id=name) if name in _CONSTANTS:
            return set()
        case ast.Name(id=name) if name[0] == "x" and name[1:].isdecimal() and name[1] != "0" and len(name) < 6:
            return {int(name[1:])}
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _variables(left, text, depth + 1) | _variables(right, text, depth + 1)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _variables(operand, text, depth + 1)
        case ast.Call(func=ast.Name(id=name), args=list(arguments), keywords=[]) if (
            name in _ONE and len(arguments) == 1
        ) or (name in _MANY and arguments):
            return set().union(*(_variables(argument, text, depth + 1) for argument in arguments))
    raise ArgumentError(f"formula({text!r}): {ast.unparse(node)!r} is not known here; use {_KNOWN}.")


def _value(node: ast.expr, x: NDArray[np.float64]) -> Any:
    """A checked node's value: (n_points,) or a number."""
    match node:
        case ast.Constant(value=value):
            assert isinstance(value, int | float)
            return float(value)
        case ast.Name(id=name):
            return _CONSTANTS[name] if name in _CONSTANTS else x[:, int(name[1:]) - 1]
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_value(left, x), _value(right, x))
        case ast.UnaryOp(op=op, operand=operand):
            return -_value(operand, x) if isinstance(op, ast.USub) else _value(operand, x)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            values = [_value(argument, x) for argument in arguments]
            return _ONE[name](values[0]) if name in _ONE else reduce(_MANY[name], values)
    raise AssertionError(f"{node} passed the check")
