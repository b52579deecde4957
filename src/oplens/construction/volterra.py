"""A finite Volterra series of order two as a list of features, in the order in which a model stores them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from oplens.construction.filters import Kernel
from oplens.construction.second_order_kernel import SecondOrderKernel
from oplens.errors import ArgumentError
from oplens.theory.statement import number

LARGEST = 4096  # features


@dataclass(frozen=True)
class Feature:
    """weight ((kernel * sum_d mixing_d x_d)(t))^order, a term of one output."""

    kernel: Kernel
    mixing: tuple[float, ...]
    output: int
    weight: float
    order: int


@dataclass(frozen=True)
class Volterra:
    """y_c = constants_c + the features of output c; `left_over` bounds, per output, the L1 norm of what second-order kernels leave out."""

    features: tuple[Feature, ...]
    constants: tuple[float, ...]
    left_over: tuple[float, ...]
    n_channels: int

    @property
    def n_outputs(self) -> int:
        """Numbers per step."""
        return len(self.constants)


def volterra(call: str, kernel1: Any, kernel2: Any, constant: Any) -> Volterra:
    """Sizes checked against each other; first-order features before second-order ones, output by output.

    Examples
    --------
    >>> from oplens.construction.filters import ExponentialSum
    >>> fast, slow = ExponentialSum([0.5], [1.0]), ExponentialSum([0.9], [1.0])
    >>> series = volterra("example", [[fast, None], [slow, slow]], None, 0.0)
    >>> [(feature.output, feature.mixing) for feature in series.features]
    [(0, (1.0, 0.0)), (1, (1.0, 0.0)), (1, (0.0, 1.0))]
    """
    first, second = _first(call, kernel1), _second(call, kernel2)
    if not any(item for row in first for item in row) and not any(second):
        raise ArgumentError(f"{call}: no kernel was given; give kernel1, kernel2 or both.")
    constants = _constants(call, constant)
    sizes = {"kernel1": len(first), "kernel2": len(second), "constant": len(constants)}
    known = {name: size for name, size in sizes.items() if size > 1}
    n_outputs = max([1, *known.values()])
    if any(size != n_outputs for size in known.values()) or any(
        0 < size < n_outputs for size in (len(first), len(second))
    ):
        listed = ", ".join(f"{name} for {size}" for name, size in sizes.items() if size)
        raise ArgumentError(f"{call}: {listed} outputs; give each for the same number of outputs.")
    constants = constants * n_outputs if len(constants) == 1 else constants
    channels = {len(row) for row in first} | {item.n_channels for item in second if item and item.mixing is not None}
    n_channels = max(channels, default=1)
    if channels - {n_channels}:
        raise ArgumentError(
            f"{call}: kernels are given for {' and '.join(map(str, sorted(channels)))} channels; give every output's filters, and every "
            "mixing, for the same channels, None or 0 where one does not act."
        )
    features = []
    for output, row in enumerate(first):
        for channel, kernel in enumerate(row):
            if kernel is not None:
                features.append(Feature(kernel, _unit(channel, n_channels), output, 1.0, 1))
    for output, item in enumerate(second):
        if item is not None:
            mixing = item.mixing or (_unit(0, n_channels),) * len(item.filters)
            parts = zip(item.filters, mixing, item.weights, strict=True)
            features += [Feature(kernel, row, output, weight, 2) for kernel, row, weight in parts]
    if len(features) > LARGEST:
        raise ArgumentError(
            f"{call}: {len(features)} features, one per filter, are more than {LARGEST}; give a lower rank of the second-order kernel."
        )
    left_over = tuple(second[c].left_over if c < len(second) and second[c] else 0.0 for c in range(n_outputs))
    return Volterra(tuple(features), constants, left_over, n_channels)


def _unit(channel: int, n_channels: int) -> tuple[float, ...]:
    return tuple(float(d == channel) for d in range(n_channels))


def _first(call: str, kernel1: Any) -> list[list[Any]]:
    """[output][channel]."""
    if kernel1 is None:
        return []
    if isinstance(kernel1, Kernel):
        return [[kernel1]]
    rows = [list(row) if _listed(row) else [row] for row in kernel1] if _listed(kernel1) else [[kernel1]]
    wrong = next((item for row in rows for item in row if item is not None and not isinstance(item, Kernel)), None)
    if wrong is not None or not rows or not all(rows):
        shown = type(wrong).__name__ if wrong is not None else "nothing"
        raise ArgumentError(
            f"{call}(kernel1=...): expected an ExponentialSum or a FiniteKernel, or [output][channel] of them, got {shown}; an array of "
            "samples is FiniteKernel(array), second-order sections are ExponentialSum.from_sos(array)."
        )
    return rows


def _second(call: str, kernel2: Any) -> list[Any]:
    """[output]."""
    if kernel2 is None:
        return []
    items = list(kernel2) if _listed(kernel2) else [kernel2]
    wrong = next((item for item in items if item is not None and not isinstance(item, SecondOrderKernel)), None)
    if wrong is not None or not items:
        raise ArgumentError(
            f"{call}(kernel2=...): expected a SecondOrderKernel or one per output, got {type(wrong).__name__}; a matrix over lags is "
            "SecondOrderKernel.from_matrix(array)."
        )
    return items


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _constants(call: str, constant: Any) -> tuple[float, ...]:
    values = list(constant) if isinstance(constant, Iterable) and not isinstance(constant, str) else [constant]
    if not values:
        raise ArgumentError(f"{call}(constant=[]): give one number per output.")
    return tuple(number(call, "constant", value, -math.inf) for value in values)
