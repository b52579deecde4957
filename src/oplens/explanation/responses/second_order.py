r"""What the operator's kernels do, from their factors: stretches of the second-order kernel, and what a sinusoid changes.

With c_h(s) = a~_h2(s) / length and K~_h of :mod:`oplens.explanation.responses.kernels`,

    h2[d, t; d', t']  = sum_h W_h E_hd E_hd' sum_{s >= t, t'} c_h(s) K~_h[s - t] K~_h[s - t']
    square gain       = 1/2 sum_h W_h E_hd^2 sum_s c_h(s) abs( sum_{l <= s} K~_h[l] exp(-i omega l) )^2
    linear gain       = abs( sum_t h1[d, t] exp(i omega t) )

The square gain is what the second order adds to the target, on average over phases, when channel d is a sinusoid of amplitude 1 (in the
preprocessed input) and the others are 0; the linear gain is the most that the first order adds at any phase. Transients are included.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.errors import ArgumentError
from oplens.explanation.targets import Target, default_target

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

Array = NDArray[np.float64]

POINTS = 48  # steps that a picture of h2 shows
PAIRS = 6  # pairs of channels whose h2 is kept for a page
SINUSOIDS = 160  # frequencies of the gains
LONGEST = 1000  # points of h1 kept for a page
MEANINGFUL = 0.95  # share of the kernels' energy below the Nyquist frequency of a picture's steps
_BYTES = 32 * 2**20


def second_order_kernel(
    kernels: "xr.Dataset",
    channel: str,
    channel_2: str | None = None,
    target: Target | None = None,
    points: int | Sequence[int] = POINTS,
) -> "xr.Dataset":
    """A stretch of the second-order kernel of one pair of channels, as a matrix.

    Parameters
    ----------
    kernels : Dataset
        Of `op.kernels(length)`, with order 2 or more.
    channel, channel_2 : str
        Names; the same channel twice by default.
    target : Target, optional
        Default: the margin of the second class over the first, or class-centred logits.
    points : int or sequence of int
        The steps of the input to evaluate at, or how many: these then lie in the middle of the case, as far apart as fits where the
        kernels are slow, and so near that at least 95 % of the kernels' energy oscillates slower than twice their distance.

    Returns
    -------
    xarray.Dataset
        `h2 ([class], position, position_2)`, logit per squared unit of the preprocessed input; claim *exact* (of the operator).

    Raises
    ------
    ArgumentError
        Unknown channels, steps outside the case, or an operator of order 1.

    Notes
    -----
    Cost: O(d_model length points^2). The whole kernel has (d_input length)^2 cells and is never formed.

    Examples
    --------
    >>> import numpy as np
    >>> from oplens import S4D, S4DConfig, expand
    >>> from oplens.explanation.responses.second_order import second_order_kernel
    >>> op = expand(S4D(S4DConfig(d_input=2, n_classes=2, d_model=4, d_state=4)), np.ones((2, 2, 10)))
    >>> ds = second_order_kernel(op.kernels(10), "channel 1", "channel 2", points=[2, 5, 9])
    >>> ds.h2.dims, ds.h2.shape
    (('position', 'position_2'), (3, 3))
    """
    import xarray as xr

    factors = _Factors.of(kernels, target, "second_order_kernel")
    pair = [factors.channel(name, "second_order_kernel") for name in (channel, channel_2 or channel)]
    steps = _steps(factors, points)
    weights = factors.readout * factors.encoder[:, pair[0]] * factors.encoder[:, pair[1]]
    h2 = np.einsum("th,hij->tij", weights, _grams(factors, steps))
    lead = ("class",) if factors.target.per_class else ()
    text = {"units": "logit per squared input unit", "long_name": "second-order kernel", "claim": "exact"}
    names = (factors.channels[pair[0]], factors.channels[pair[1]])
    return xr.Dataset(
        {"h2": ((*lead, "position", "position_2"), h2 if lead else h2[0], text)},
        coords=_position_coords(kernels, steps) | _class_coords(factors),
        attrs={**kernels.attrs, "target": factors.target.describe(), "channel": names[0], "channel_2": names[1]},
    )


def summarise_kernels(
    op: "ExplicitOperator", target: Target | None = None, length: int | None = None, points: int = POINTS
) -> "xr.Dataset":
    """What a page shows of an operator's kernels, small whatever the length of the cases and the number of channels.

    Parameters
    ----------
    op : ExplicitOperator
        Plain architecture.
    target : Target, optional
        Default: the margin of the second class over the first, or class-centred logits.
    length : int, optional
        Steps of a case; default: the longest training case.
    points : int
        Steps that h2 is evaluated at.

    Returns
    -------
    xarray.Dataset
        Group `/kernels`: `h1 ([class], channel, time)`, means over blocks of `block` steps when cases are long; `linear_gain ([class],
        channel, stimulus)`; and from order 2 on `square_gain ([class], channel, stimulus)`, `h2_size ([class], channel, channel_2)` (root of
        the sum of squares over the shown steps) and `h2 ([class], pair, position, position_2)` of the largest pairs of channels,
        named by `member` and `member_2`. Claim *exact* (of the operator).

    Notes
    -----
    Cost: O(d_model length (points^2 + number of frequencies)).

    Examples
    --------
    >>> import numpy as np
    >>> from oplens import S4D, S4DConfig, expand
    >>> from oplens.explanation.responses.second_order import summarise_kernels
    >>> op = expand(S4D(S4DConfig(d_input=2, n_classes=2, d_model=4, d_state=4)), np.ones((2, 2, 10)))
    >>> sorted(summarise_kernels(op).data_vars)
    ['h1', 'h2', 'h2_size', 'linear_gain', 'square_gain']
    """
    import xarray as xr

    kernels = op.kernels(int(op.training.lengths.max()) if length is None else length)
    factors = _Factors.of(kernels, target, "summarise_kernels", order=1)
    rate = op.model.config.sampling_rate or 1.0
    lead = ("class",) if factors.target.per_class else ()
    directions = factors.target.directions(factors.classes)
    h1 = np.einsum("tc,cdl->tdl", directions, kernels["h1"].values)
    block = math.ceil(h1.shape[-1] / LONGEST)
    frequency = np.geomspace(0.5 / h1.shape[-1], 0.5, SINUSOIDS)
    gain = np.abs(h1 @ np.exp(2j * np.pi * np.outer(np.arange(h1.shape[-1]), frequency)))
    unit, per = "logit per input unit", "Hz" if op.model.config.sampling_rate else "cycles/step"
    found: dict[str, tuple[tuple[str, ...], Array, str, str]] = {
        "h1": (("channel", "time"), _blocks(h1, block), "first-order kernel", unit),
        "linear_gain": (("channel", "stimulus"), gain, "most that order 1 adds for a sinusoid of amplitude 1", "logit"),
    }
    time = {**kernels["time"].attrs, "long_name": "time of the input"}
    coords: dict[str, Any] = {
        "channel": kernels["channel"],
        "time": ("time", _blocks(kernels["time"].values[None], block)[0], time),
        "stimulus": ("stimulus", np.arange(SINUSOIDS)),
        "frequency": (
            "stimulus",
            rate * frequency,
            {"units": per, "long_name": "frequency of the sinusoid", "claim": "exact"},
        ),
        **_class_coords(factors),
    }
    if op.order >= 2:
        second, more = _second(factors, kernels, frequency, points)
        found |= second
        coords |= more
    variables = {
        name: ((*lead, *dims), values if lead else values[0], {"units": units, "long_name": text, "claim": "exact"})
        for name, (dims, values, text, units) in found.items()
    }
    return xr.Dataset(
        variables,
        coords=coords,
        attrs={**kernels.attrs, "target": factors.target.describe(), "block": block, "n_steps": kernels.sizes["time"]},
    )


@dataclass(frozen=True)
class _Factors:
    """Factors of h2: readout (T, d_model) of the targets, encoder (d_model, d_input), curvature c and response (d_model, length)."""

    target: Target
    classes: tuple[str, ...]
    channels: tuple[str, ...]
    readout: Array
    encoder: Array
    curvature: Array
    response: Array

    @classmethod
    def of(cls, kernels: "xr.Dataset", target: Target | None, call: str, order: int = 2) -> "_Factors":
        """Read what `op.kernels` returned."""
        missing = [name for name in ("readout", "encoder", "coefficient", "response") if name not in kernels]
        if missing:
            raise ArgumentError(
                f"{call}: the Dataset holds no {', '.join(missing)}; give what op.kernels(length) returns."
            )
        if "time" not in kernels.dims:
            raise ArgumentError(
                f"{call}: the model answers at every step, so its kernels are of lags and no case's length enters them; read h1 and h2 of "
                "op.kernels(length) themselves."
            )
        if kernels.sizes["order"] <= order:
            raise ArgumentError(
                f"{call}: the operator has order 1 and no second-order kernel; expand the model with order=2 or more."
            )
        classes = tuple(str(name) for name in kernels["class"].values)
        if len(classes) < 2 and target is None:
            raise ArgumentError(f"{call}: a model with one class has nothing to decide; pass a target of your own.")
        target = default_target(classes) if target is None else target
        length = kernels.sizes["lag"]
        second = kernels["coefficient"].values[2] if kernels.sizes["order"] > 2 else 0 * kernels["response"].values
        return cls(
            target,
            classes,
            tuple(str(name) for name in kernels["channel"].values),
            target.directions(classes) @ kernels["readout"].values,
            kernels["encoder"].values,
            second / length,
            kernels["response"].values,
        )

    def channel(self, name: str, call: str) -> int:
        """Index of a channel by its name."""
        if name not in self.channels:
            raise ArgumentError(f"{call}: the model has no channel {name!r}; it has {', '.join(self.channels)}.")
        return self.channels.index(name)


def _second(
    factors: _Factors, kernels: "xr.Dataset", frequency: Array, points: int
) -> tuple[dict[str, tuple[tuple[str, ...], Array, str, str]], dict[str, Any]]:
    """Variables and coordinates of the second order."""
    steps = _steps(factors, points)
    grams = _grams(factors, steps)
    E, m, d_input = factors.encoder, len(steps), factors.encoder.shape[1]
    size = np.empty((len(factors.readout), d_input, d_input))
    for target, row in enumerate(factors.readout):
        for d in range(d_input):
            cells = (row * E[:, d])[:, None] * E  # (d_model, d_input)
            size[target, d] = np.sqrt(((cells.T @ grams.reshape(-1, m * m)) ** 2).sum(-1))
    # A pair of two channels stands in h2 twice, above and below the diagonal.
    total = np.triu((size**2).sum(0)) * (4 - 3 * np.eye(d_input))
    largest = [
        divmod(int(i), d_input) for i in np.argsort(-total, axis=None)[: min(PAIRS, d_input * (d_input + 1) // 2)]
    ]
    h2 = np.stack([np.einsum("th,hij->tij", factors.readout * E[:, d] * E[:, e], grams) for d, e in largest], axis=1)
    square = "logit per squared input unit"
    gain = 0.5 * np.einsum("th,hd,hf->tdf", factors.readout, E**2, _heard(factors, frequency))
    text = "what order 2 adds on average over phases for a sinusoid of amplitude 1"
    variables = {
        "square_gain": (("channel", "stimulus"), gain, text, "logit"),
        "h2_size": (("channel", "channel_2"), size, "root of the sum of squares of h2 over the shown steps", square),
        "h2": (("pair", "position", "position_2"), h2, "second-order kernel", square),
    }
    names = np.array(factors.channels, dtype=object)
    coords = _position_coords(kernels, steps) | {
        "channel_2": ("channel_2", names),
        "pair": ("pair", np.arange(len(largest))),
        "member": ("pair", names[[d for d, _ in largest]]),
        "member_2": ("pair", names[[e for _, e in largest]]),
    }
    return variables, coords


def _grams(factors: _Factors, steps: NDArray[np.int64]) -> Array:
    """sum_s c(s) K~[s - t] K~[s - t'] over pairs of steps: (d_model, m, m)."""
    length = factors.response.shape[1]
    lag = np.arange(length) - steps[:, None]
    inside, lag = lag >= 0, lag.clip(min=0)
    size = max(1, _BYTES // (8 * len(steps) * length))
    parts = []
    for start in range(0, len(factors.response), size):
        rows = slice(start, start + size)
        shifted = np.where(inside, factors.response[rows][:, lag], 0.0)  # (features, m, length)
        parts.append((shifted * factors.curvature[rows, None]) @ shifted.transpose(0, 2, 1))
    return np.concatenate(parts)


def _heard(factors: _Factors, frequency: Array) -> Array:
    """sum_s c(s) abs(running transform of K~)^2: (d_model, n_frequencies)."""
    steps = np.arange(factors.response.shape[1])
    columns = []
    for f in frequency:
        running = np.cumsum(factors.response * np.exp(-2j * np.pi * f * steps), axis=-1)
        columns.append((factors.curvature * np.abs(running) ** 2).sum(-1))
    return np.stack(columns, axis=-1)


def _steps(factors: _Factors, points: int | Sequence[int]) -> NDArray[np.int64]:
    """Steps of the input to evaluate h2 at, checked or chosen."""
    length = factors.response.shape[1]
    if isinstance(points, int | np.integer) and not isinstance(points, bool):
        if points < 1:
            raise ArgumentError(f"second_order_kernel(points={points}): give at least one step.")
        count = min(int(points), length)
        apart = min(_spacing(factors), max(1, length // count))
        return (length - 1 - (count - 1) * apart) // 2 + apart * np.arange(count)
    steps = np.asarray(points)
    if steps.ndim != 1 or steps.size == 0 or steps.dtype.kind not in "iu" or steps.min() < 0 or steps.max() >= length:
        raise ArgumentError(
            f"second_order_kernel(points={points!r}): give how many steps to show, or the steps themselves, whole numbers from 0 to "
            f"{length - 1}."
        )
    return steps.astype(np.int64)


def _spacing(factors: _Factors) -> int:
    """Widest distance of steps at which the kernels' oscillations can still be seen."""
    length = factors.response.shape[1]
    delayed = np.where(np.arange(length) > 0, factors.response, 0.0)  # the skip is one step long at any rate
    weight = np.abs(factors.readout).sum(0) * (factors.encoder**2).sum(1) * np.abs(factors.curvature).sum(1)
    power = (weight[:, None] * np.abs(np.fft.rfft(delayed, n=4 * length)) ** 2).sum(0)
    if power.sum() == 0:
        return 1
    fastest = np.searchsorted(np.cumsum(power) / power.sum(), MEANINGFUL) / (4 * length)  # cycles per step
    return max(1, int(0.5 / max(float(fastest), 0.5 / length)))


def _blocks(values: Array, block: int) -> Array:
    """Means over blocks of the last axis; a last, shorter block is the mean of what it holds."""
    if block == 1:
        return values
    edges = np.arange(0, values.shape[-1], block)
    sizes = np.diff(np.append(edges, values.shape[-1]))
    means: Array = np.add.reduceat(values, edges, axis=-1) / sizes
    return means


def _position_coords(kernels: "xr.Dataset", steps: NDArray[np.int64]) -> dict[str, Any]:
    time = kernels["time"]
    text = {**time.attrs, "long_name": "time of the input", "claim": "exact"}
    return {name: (name, time.values[steps], text) for name in ("position", "position_2")}


def _class_coords(factors: _Factors) -> dict[str, Any]:
    return {"class": ("class", np.array(factors.classes, dtype=object))} if factors.target.per_class else {}
