"""How far a built model is from its function of reals: along lines, and over two variables."""

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from oplens.construction.cases import VALUE
from oplens.construction.real_functions import MeasuredError, evaluate
from oplens.models.transformer import Transformer
from oplens.results.variables import variable

_POINTS, _SIDE = 241, 49  # of a line; of a map's side


def error_slices(
    model: Transformer, f: Callable[..., Any], found: MeasuredError, bounds: tuple[float, float]
) -> xr.Dataset:
    """Lines along every axis through the point of the largest error."""
    low, high = bounds
    point = np.array(found.point)
    grid = np.stack([np.sort(np.append(np.linspace(low, high, _POINTS - 1), value)) for value in point])
    along, model_values, wanted = [], [], []
    for axis, places in enumerate(grid):
        points = np.tile(point, (len(places), 1))
        points[:, axis] = places
        others = ", ".join(f"x{j + 1} = {value:.3g}" for j, value in enumerate(point) if j != axis)
        along.append(f"x{axis + 1}" + (f" at {others}" if others else ""))
        model_values.append(evaluate(model, points, bounds))
        wanted.append(np.asarray(f(points), dtype=np.float64))
    dims = ("rank", "position")
    answers, values = np.stack(model_values), np.stack(wanted)
    return xr.Dataset(
        {
            "answer": variable(dims, answers, "the model's output", VALUE, claim="exact"),
            "wanted": variable(dims, values, "the function's value", VALUE, claim="exact"),
            "error": variable(dims, np.abs(answers - values), "abs(model - function)", VALUE, "measured"),
            "largest_error": variable((), found.value, "largest error found", VALUE, "measured"),
        },
        {"place": (dims, grid), "along": ("rank", along), "worst": ("rank", point)},
    )


def error_surface(
    model: Transformer, f: Callable[..., Any], found: MeasuredError, bounds: tuple[float, float]
) -> xr.Dataset:
    """The error over the first two variables, the others where the largest error was found."""
    places = np.linspace(*bounds, _SIDE)
    points = np.tile(np.array(found.point), (_SIDE**2, 1))
    points[:, 0], points[:, 1] = (axis.ravel() for axis in np.meshgrid(places, places, indexing="ij"))
    error = np.abs(evaluate(model, points, bounds) - np.asarray(f(points))).reshape(_SIDE, _SIDE)
    return xr.Dataset(
        {"error": variable(("position", "position_2"), error, "abs(model - function)", VALUE, "measured")},
        {"position": places, "position_2": places},
        {"point": np.array(found.point)},
    )
