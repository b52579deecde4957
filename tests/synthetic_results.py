"""Invented results that obey docs/schema.md and add up, so that pages are tested without a model.

Every tree is drawn order by order for one partition (channel x band); the other partitions split the same order totals
in their own way, and the target is the sum. Class structure is planted so that pictures look like pictures.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from oplens.results import provenance

BANDS = ((0.0, 4.0), (4.0, 8.0), (8.0, 16.0), (16.0, 32.0), (32.0, 64.0), (64.0, 128.0))
Array = np.ndarray[Any, np.dtype[Any]]


def described(long_name: str, units: str = "logit", claim: str = "exact") -> dict[str, str]:
    return {"units": units, "long_name": long_name, "claim": claim}


class Draw:
    """One invented model's order totals per case (and class), shared by all its partitions."""

    def __init__(
        self,
        seed: int,
        n_cases: int,
        channels: Sequence[str],
        classes: Sequence[str],
        *,
        margin: bool,
        rate: float | None,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.n_cases, self.channels, self.classes, self.margin, self.rate = n_cases, channels, classes, margin, rate
        self.label = np.arange(n_cases) % len(classes)
        head = (2, n_cases) if margin else (2, n_cases, len(classes))
        shape = (*head, len(channels), len(BANDS))
        noise = self.rng.normal(size=shape) * np.exp(-0.5 * np.arange(len(BANDS))) * 0.25
        pattern = self.rng.normal(size=(len(classes), *shape[2 if margin else 3 :])) * np.exp(
            -0.6 * np.arange(len(BANDS))
        )
        if margin:
            pattern[0] *= np.sign(pattern[0].sum())
            sign = np.where(self.label == 0, 1.0, -1.0)[None, :, None, None]
            planted = sign * pattern[0] * np.array([0.3, 0.18])[:, None, None, None]
        else:
            own = (self.label[:, None] == np.arange(len(classes)))[None, :, :, None, None]
            planted = np.where(own, 0.5, -0.2) * abs(pattern)[None, None] * 0.8
        self.share = noise + planted
        self.bias = self.rng.normal(size=head) * 0.05
        self.order_0 = np.broadcast_to(self.rng.normal(size=head[2:]) * 0.3, head[1:]).copy()
        self.remainder = self.rng.normal(size=head[1:]) * 0.12
        if not margin:
            for name in ("share", "bias", "order_0", "remainder"):
                value = getattr(self, name)
                axis = {"share": 2, "bias": 2, "order_0": 1, "remainder": 1}[name]
                setattr(self, name, value - value.mean(axis=axis, keepdims=True))
        self.by_order = self.share.sum((-1, -2)) + self.bias
        self.target = self.order_0 + self.by_order.sum(0) + self.remainder

    @property
    def head(self) -> tuple[str, ...]:
        return ("case",) if self.margin else ("case", "class")

    def logits(self, target: Array) -> Array:
        return np.stack([target / 2, -target / 2], axis=-1) + 0.3 if self.margin else target + 0.7

    def common(self, partition: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Variables, coordinates and attributes that all partitions share."""
        logits = self.logits(self.target)
        cut = np.stack([self.logits(self.order_0 + self.by_order[: k + 1].sum(0)) for k in range(2)])
        variables = {
            "order_0": (
                self.head,
                self.order_0,
                described("constant of the expansion and decoder bias", claim="truncated"),
            ),
            "remainder": (self.head, self.remainder, described("what the truncation leaves", claim="truncated")),
            "full_constant": (self.head, self.order_0, described("constant through the whole readout")),
            "target": (self.head, self.target, described("explained number")),
            "logits": (("case", "class"), logits, described("logits of the model")),
            "truncated_logits": (
                ("order", "case", "class"),
                cut,
                described("logits of the operator", claim="truncated"),
            ),
        }
        coords = {
            "order": [1, 2],
            "case": np.arange(self.n_cases),
            "class": list(self.classes),
            "label": ("case", np.asarray(self.classes)[self.label]),
            "predicted": ("case", np.asarray(self.classes)[logits.argmax(-1)]),
            "n_steps": ("case", np.full(self.n_cases, 896)),
        }
        names = list(self.classes)
        attributes = provenance(
            source="tests/report/synthetic_results.py",
            seed=0,
            created_at="2026-01-01T00:00:00Z",
            family="hermite",
            order=2,
            partition=partition,
            target=f"margin: {names[0]} - {names[1]}" if self.margin else "class-centred logits",
            architecture="plain",
            training_hash="0" * 16,
            sampling_rate=self.rate,
            account="exact",
        )
        return variables, coords, attributes

    def split(self, total: Array, n: int, spread: float = 0.04, weights: Array | None = None) -> Array:
        """Cut `total` into `n` parts along a new last axis; the parts add up to it."""
        weights = self.rng.dirichlet(np.ones(n)) if weights is None else weights
        wobble = self.rng.normal(size=(*total.shape, n)) * spread
        return total[..., None] * weights + wobble - wobble.mean(-1, keepdims=True)

    def finish(
        self, partition: str, parts: tuple[str, ...], share: Array, sources: dict[str, Array], coords: dict[str, Any]
    ) -> xr.Dataset:
        """Add the shares, their sources, the exact full share and the checks to the common variables."""
        variables, common, attributes = self.common(partition)
        names = list(sources)
        source = np.stack([sources[name] for name in names], axis=-1)
        axes = tuple(range(-len(parts), 0))
        size = float(np.prod(share.shape[-len(parts) :]))
        tail = np.broadcast_to(
            (self.remainder / size)[(..., *(None,) * len(parts))], (*self.remainder.shape, *share.shape[-len(parts) :])
        )
        total = abs(share).sum((0, *axes)) + abs(source).sum((0, -1)) + abs(self.order_0) + abs(self.remainder)
        residual = self.order_0 + share.sum((0, *axes)) + source.sum((0, -1)) + self.remainder - self.target
        variables |= {
            "share": (("order", *self.head, *parts), share, described("share of a part", claim="truncated")),
            "source_share": (
                ("order", *self.head, "source"),
                source,
                described("lines that are no part", claim="truncated"),
            ),
            "full_share": ((*self.head, *parts), share.sum(0) + tail, described("share through the whole readout")),
            "source_full_share": ((*self.head, "source"), source.sum(0), described("lines that are no part")),
            "sum_abs_terms": (self.head, total, described("sum of absolute terms")),
            "completeness_residual": (self.head, residual, described("terms minus target", claim="measured")),
            "cancellation_ratio": (self.head, total / abs(self.target), described("cancellation", "1", "measured")),
        }
        return xr.Dataset(variables, coords={**common, "source": names, **coords}, attrs=attributes)

    def channels_bands(self) -> xr.Dataset:
        zero = np.zeros_like(self.bias)
        coords = {"channel": list(self.channels), **octaves(self.rate)}
        return self.finish("channels_bands", ("channel", "band"), self.share, {"bias": self.bias, "rest": zero}, coords)

    def windows(self, n: int = 8) -> xr.Dataset:
        weights = np.exp(-0.5 * ((np.arange(n) - 0.6 * n) / (0.2 * n)) ** 2)
        share = self.split(self.by_order - self.bias, n, 0.08, weights / weights.sum())
        edges = np.linspace(0, 1, n + 1)
        coords = {
            "window": [f"{100 * a:.0f}-{100 * b:.0f} %" for a, b in pairwise(edges)],
            "window_start": ("window", edges[:-1], {"units": "fraction of the case"}),
            "window_stop": ("window", edges[1:], {"units": "fraction of the case"}),
        }
        return self.finish("windows", ("window",), share, {"bias": self.bias, "rest": np.zeros_like(self.bias)}, coords)

    def waves(self, n_features: int = 16, n_waves: int = 16) -> xr.Dataset:
        skip = 0.1 * (self.by_order - self.bias)
        weights = self.rng.dirichlet(np.full(n_features * n_waves, 0.15))
        share = self.split(self.by_order - self.bias - skip, n_features * n_waves, 0.004, weights)
        share = share.reshape(*share.shape[:-1], n_features, n_waves)
        scale = self.rate or 1.0
        dt = np.geomspace(0.001, 0.15, n_features)[:, None]
        turn = np.pi * np.arange(n_waves)[None] * dt * 8
        wrapped = abs((turn + np.pi) % (2 * np.pi) - np.pi)
        where = ("feature", "wave")
        coords = {
            "frequency": (where, wrapped / (2 * np.pi) * scale, {"units": "Hz" if self.rate else "cycles/step"}),
            "decay_time": (
                where,
                np.broadcast_to(2 / dt, turn.shape) / scale,
                {"units": "s" if self.rate else "steps"},
            ),
            "aliased": (where, turn > np.pi),
        }
        return self.finish("waves", where, share, {"bias": self.bias, "skip": skip}, coords)

    def pairs_channels(self) -> xr.Dataset:
        """Order 2 of channel pairs: symmetric, row sums (with the bias column) equal to the channel shares."""
        share = self.share[1].sum(-1)
        off = self.rng.normal(size=(*share.shape, share.shape[-1])) * 0.05
        off = off + np.swapaxes(off, -1, -2)
        with_bias = self.rng.normal(size=share.shape) * 0.01
        index = np.arange(share.shape[-1])
        off[..., index, index] = 0.0
        off[..., index, index] = share - off.sum(-1) - with_bias
        _, coords, attributes = self.common("pairs_channels")
        coords = {
            key: value for key, value in coords.items() if key not in ("order", *(["class"] if self.margin else []))
        }
        head = ("order", *self.head)
        return xr.Dataset(
            {
                "pair_share": (
                    (*head, "channel", "channel_2"),
                    off[None],
                    described("share of a pair", claim="truncated"),
                ),
                "pair_source_share": (
                    (*head, "channel", "source"),
                    with_bias[None, ..., None],
                    described("pair with a source"),
                ),
            },
            coords={
                **coords,
                "order": [2],
                "channel": list(self.channels),
                "channel_2": list(self.channels),
                "source": ["bias"],
            },
            attrs=attributes,
        )

    def pairs_waves(self, waves: xr.Dataset) -> xr.Dataset:
        """Class means of wave pairs inside each feature."""
        share = waves["share"].values[1]
        means = np.stack([share[self.label == k].mean(0) for k in range(len(self.classes))])
        pair = np.einsum("cfn,cfm->cfnm", means, means) * np.sign(means)[..., None] * 20
        pair = pair + np.swapaxes(pair, -1, -2)
        coords = {
            "order": [2],
            "class": list(self.classes),
            "frequency": waves["frequency"],
            "decay_time": waves["decay_time"],
            "aliased": waves["aliased"],
        }
        dims = ("order", "class", "feature", "wave", "wave_2")
        share_attrs = described("share of a pair of waves, mean over each class", claim="truncated")
        return xr.Dataset({"pair_share": (dims, pair[None], share_attrs)}, coords=coords, attrs=waves.attrs)

    def pairs_top(self, k: int = 12) -> xr.Dataset:
        """The largest pairs of channel x band parts, case by case."""
        names = np.array([f"{channel} · {low:g}-{high:g} Hz" for channel in self.channels for low, high in BANDS])
        members = self.rng.integers(0, min(9, len(names)), size=(2, self.n_cases, k))
        values = -np.sort(-abs(self.rng.normal(size=(self.n_cases, k)))) * self.rng.choice(
            [-1.0, 1.0], (self.n_cases, k)
        )
        _, coords, attributes = self.common("pairs_channels_bands")
        keep = {key: coords[key] for key in ("case", "label", "predicted")}
        return xr.Dataset(
            {"pair_share": (("case", "rank"), values, described("content of an unordered pair", claim="truncated"))},
            coords=keep
            | {f"member{end}": (("case", "rank"), names[m]) for end, m in zip(("", "_2"), members, strict=True)},
            attrs=attributes,
        )

    def summary(self) -> xr.Dataset:
        logits = self.logits(self.target)
        cut = [self.logits(self.order_0 + self.by_order[: k + 1].sum(0)) for k in range(2)]
        model = float(np.mean(logits.argmax(-1) == self.label))
        accuracy = np.array([np.mean(c.argmax(-1) == self.label) for c in cut])
        agreement = np.array([np.mean(c.argmax(-1) == logits.argmax(-1)) for c in cut])
        r2 = [1 - np.var(logits[:, 0] - c[:, 0]) / np.var(logits[:, 0]) for c in cut]
        m = "measured"
        return xr.Dataset(
            {
                "accuracy": ("order", accuracy, described("accuracy of the truncated operator", "1", m)),
                "relative_accuracy": ("order", accuracy / model, described("accuracy relative to the model", "1", m)),
                "agreement": ("order", agreement, described("cases decided as the model decides", "1", m)),
                "margin_r2": ("order", np.array(r2), described("R2 of the truncated margin", "1", m)),
                "model_accuracy": ((), model, described("accuracy of the model", "1", m)),
                "channel_mean_r2": ((), 0.94, described("variance of the margin explained by channel means", "1", m)),
                "accuracy_beyond_means": ("quantity", np.array([0.85, 0.86]), described("logistic regression", "1", m)),
                "completeness": ((), 3.1e-15, described("largest relative completeness residual", "1", m)),
                "cancellation": ((), 4.2, described("median cancellation ratio", "1", m)),
            },
            coords={"order": [1, 2], "quantity": ["channel means", "channel means + explained margin"]},
        )

    def baselines(self, headline: str) -> xr.Dataset:
        names = [
            "channel means",
            "64-step window means",
            "band powers",
            "majority class",
            "best two channel means (hindsight)",
        ]
        model = float(np.mean(self.logits(self.target).argmax(-1) == self.label))
        return xr.Dataset(
            {
                "accuracy": (
                    "baseline",
                    np.array([0.85, 0.86, 0.78, 0.5, 0.94]),
                    described("test accuracy", "1", "measured"),
                ),
                "cv_accuracy": (
                    "baseline",
                    np.array([0.84, 0.87, 0.76, 0.5, np.nan]),
                    described("cross-validated", "1", "measured"),
                ),
                "model_accuracy": ((), model, described("accuracy of the model", "1", "measured")),
            },
            coords={"baseline": names, "hindsight": ("baseline", np.array([False, False, False, False, True]))},
            attrs={"headline": headline},
        )

    def inputs(self, length: int = 896) -> xr.Dataset:
        chosen = np.linspace(0, self.n_cases - 1, 12).round().astype(int)
        t = np.arange(length) / (self.rate or 1.0)
        phase = self.rng.uniform(0, 6.28, (12, len(self.channels), 1))
        drift = np.cumsum(self.rng.normal(size=(12, len(self.channels), length)), -1)
        signal = drift * 0.6 + 8 * np.sin(2 * np.pi * (10.0 if self.rate else 0.05) * t + phase)
        signal[3, :, length * 3 // 4 :] = np.nan
        predicted = self.logits(self.target).argmax(-1)
        names = np.asarray(self.classes)
        return xr.Dataset(
            {"signal": (("case", "channel", "time"), signal, described("raw signal", "uV", "measured"))},
            coords={
                "case": chosen,
                "channel": list(self.channels),
                "time": t,
                "label": ("case", names[self.label[chosen]]),
                "predicted": ("case", names[predicted[chosen]]),
                "why": ("case", np.array(["largest margin"] * 4 + ["smallest margin"] * 4 + ["wrong or first"] * 4)),
            },
            attrs={
                "rule": "the 4 cases with the largest margin, the 4 with the smallest, and the first 4 decided wrongly"
            },
        )

    def root(self, title: str, headline: str, model: dict[str, Any]) -> xr.Dataset:
        counts = {name: int((self.label == k).sum()) for k, name in enumerate(self.classes)}
        data = {
            "name": title.split(":")[0],
            "cases": self.n_cases,
            "channels": list(self.channels),
            "length": 896,
            "sampling_rate": self.rate,
            "class_counts": counts,
        }
        attributes = provenance(source="tests/report/synthetic_results.py", created_at="2026-01-01T00:00:00Z")
        return xr.Dataset(
            attrs={
                **attributes,
                "title": title,
                "headline": headline,
                "model": json.dumps(model),
                "data": json.dumps(data),
            }
        )


def octaves(rate: float | None) -> dict[str, Any]:
    scale = 1.0 if rate else 1 / 256
    units = {"units": "Hz" if rate else "cycles/step"}
    low, high = (np.array([edge[k] * scale for edge in BANDS]) for k in range(2))
    names = [f"{a:g}-{b:g}" for a, b in zip(low, high, strict=True)]
    return {"band": names, "band_low": ("band", low, units), "band_high": ("band", high, units)}


MODEL = {
    "architecture": "plain",
    "n_layers": 1,
    "d_model": 16,
    "d_state": 32,
    "n_parameters": 1234,
    "discretisation": "zoh",
}
SCP1_CHANNELS = ("A1", "A2", "C3-front", "C3-back", "C4-front", "C4-back")


def two_class(
    channels: Sequence[str] = SCP1_CHANNELS,
    classes: Sequence[str] = ("negativity", "positivity"),
    title: str = "Slow cortical potentials: what decides",
    n_cases: int = 120,
) -> xr.DataTree:
    """A two-class margin at 256 Hz with every group, pairs of channels, and class means of wave pairs."""
    draw = Draw(7, n_cases, channels, classes, margin=True, rate=256.0)
    waves = draw.waves()
    headline = "A baseline beats the model: two channel means chosen with hindsight reach 94 %, the model less."
    return xr.DataTree.from_dict(
        {
            "/": draw.root(title, headline, MODEL),
            "/summary": draw.summary(),
            "/baselines": draw.baselines(headline),
            "/inputs": draw.inputs(),
            "/channels_bands": draw.channels_bands(),
            "/windows": draw.windows(),
            "/waves": waves,
            "/pairs_channels": draw.pairs_channels(),
            "/pairs_waves": draw.pairs_waves(waves),
        }
    )
