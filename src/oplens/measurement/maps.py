"""Attention of some heads in one case: which heads stand out, by rules that are said."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr

LONGEST = 64  # tokens that a map can show
_RULES = (
    ("shortest distance", "distance", 1),
    ("most on first position", "first_mass", -1),
    ("most on the previous token", "previous_mass", -1),
    ("lowest normalised entropy", "normalised_entropy", 1),
    ("widest", "normalised_entropy", -1),
    ("longest distance", "distance", -1),
    ("highest effective rank", "relative_rank", -1),
    ("lowest effective rank", "relative_rank", 1),
)


def choose_heads(attention: "xr.Dataset", count: int) -> list[tuple[int, int, str]]:
    """Heads that stand out in one statistic over all cases: each rule in turn gives the first of those not yet chosen.

    Parameters
    ----------
    attention : xarray.Dataset
        Over `layer` and `head`.
    count : int

    Returns
    -------
    list of (layer, head, why)

    Examples
    --------
    >>> import xarray as xr
    >>> values = {"distance": [[3.0, 1.0]], "first_mass": [[0.2, 0.9]], "normalised_entropy": [[0.5, 0.1]]}
    >>> ds = xr.Dataset({k: (("layer", "head"), v) for k, v in values.items()}, coords={"layer": [1], "head": [0, 1]})
    >>> choose_heads(ds, 5)
    [(1, 1, 'shortest distance'), (1, 0, 'widest')]
    """
    layers, heads = attention["layer"].values, attention["head"].values

    def key(place: Any) -> tuple[int, int]:
        return int(layers[place[0]]), int(heads[place[1]])

    queues = []
    for why, name, sign in _RULES:
        if name in attention:
            values = sign * attention[name].transpose("layer", "head").values
            ranked = [np.unravel_index(i, values.shape) for i in np.argsort(values, axis=None, kind="stable")]
            finite = [place for place in ranked if np.isfinite(values[place])]
            half = finite[: (len(finite) + 1) // 2]  # a head stands out in nothing by being last but one
            queues.append((why, list(enumerate(half, 1))))
    chosen: dict[tuple[int, int], str] = {}
    while len(chosen) < count and any(queue for _, queue in queues):
        for why, queue in queues:
            left = [(number, place) for number, place in queue if key(place) not in chosen]
            queue[:] = left[1:]
            if left and len(chosen) < count:
                number, place = left[0]
                chosen[key(place)] = why if number == 1 else f"{why}, number {number}"
    return [(layer, head, why) for (layer, head), why in chosen.items()]


def choose_case(lengths: Sequence[int]) -> int:
    """The first case of at least 16 tokens, or else the longest.

    Examples
    --------
    >>> choose_case([3, 20, 64]), choose_case([3, 7, 5])
    (1, 1)
    """
    sizes = np.asarray(lengths)
    return int(np.argmax(sizes >= 16)) if (sizes >= 16).any() else int(np.argmax(sizes))


def map_dataset(
    heads: Sequence[tuple[int, int, str]], attentions: Sequence[Any], labels: Sequence[str], case: str
) -> "xr.Dataset":
    """The group `/attention_maps`.

    Parameters
    ----------
    heads : sequence of (layer, head, why)
        Layers count from 1.
    attentions : sequence of Tensor or None, (1, n_heads, length, length)
        Of every layer, for the one case.
    labels : sequence of str, (length,)
    case : str
        Which case, in words.
    """
    import xarray as xr

    weights = []
    for layer, head, _ in heads:
        attention = attentions[layer - 1]
        assert attention is not None, "heads are chosen among layers with attention"
        weights.append(attention[0, head].float().numpy())
    return xr.Dataset(
        {"weight": variable(("rank", "token", "token_2"), np.stack(weights).astype(np.float32), "attention weight")},
        coords={
            "rank": np.arange(len(heads)),
            "layer_of": ("rank", [layer for layer, _, _ in heads]),
            "head_of": ("rank", [head for _, head, _ in heads]),
            "why": ("rank", np.array([why for _, _, why in heads], dtype=object)),
            "token": np.arange(len(labels)),
            "token_2": np.arange(len(labels)),
            "text": ("token", np.array(list(labels), dtype=object)),
        },
        attrs={"case": case},
    )
