"""What is added up per layer while a model runs: attention of its heads, the cloud of its points, moments of pairs of layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.errors import DataError
from oplens.measurement.arrays import Floats
from oplens.measurement.attention import AttentionRanks, AttentionTotals
from oplens.measurement.dimensions import PointCloud
from oplens.measurement.moments import PairMoments
from oplens.measurement.neighbours import PointSample, merged, mle_dimension, two_nn
from oplens.measurement.similarity import CKATotals
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr

_LINEAR = {
    "d_int": "d_int of the paper: (sum of singular values)^2 / sum of squares, not centred",
    "d_int_centred": "d_int of the centred points",
    "participation_ratio": "participation ratio, biased down for few points",
    "participation_ratio_corrected": "participation ratio from unbiased traces",
    "effective_rank": "effective rank of the centred points",
    "stable_rank": "stable rank of the centred points",
    "numerical_rank": "numerical rank of the centred points",
}
_TWO_NN = {
    "two_nn": ("dimension", "TwoNN dimension of the sample, slope of the line"),
    "two_nn_likelihood": ("dimension_likelihood", "TwoNN dimension of the sample, maximum likelihood"),
    "two_nn_low": ("dimension_low", "lower end of the interval of the TwoNN likelihood"),
    "two_nn_high": ("dimension_high", "upper end of the interval of the TwoNN likelihood"),
}
_MLE = {
    "mle": ("dimension", "maximum-likelihood dimension of the sample, 20 neighbours"),
    "mle_error": ("dimension_error", "standard error of mle as if neighbourhoods were independent; a lower bound"),
}


_WEIGHTS = 2**19  # measured at a time: arrays beyond the processor's cache take twice as long


@dataclass(frozen=True)
class HeadTotals:
    """Attention of one layer over all batches so far.

    Attributes
    ----------
    totals : AttentionTotals
    ranks : AttentionRanks or None
        Of the first cases alone where they cost too much.
    """

    totals: AttentionTotals
    ranks: AttentionRanks | None

    @classmethod
    def of(
        cls, weights: Any, lengths: Sequence[int], n_ranked: int, causal: bool, visible: Callable[[int], Any]
    ) -> "HeadTotals":
        """Of one batch, padding on the right.

        Parameters
        ----------
        weights : Tensor, (batch, n_heads, length, length)
        lengths : sequence of int
            Cases of one length are measured together, cut to it: padding takes part in nothing, not even in the tolerance of a rank.
        n_ranked : int
            So many of the first cases have their ranks measured.
        visible : callable
            Pattern of a length, or None.
        """
        found: HeadTotals | None = None
        for length in sorted(set(lengths)):
            same = [i for i, n in enumerate(lengths) if n == length]
            size = max(1, _WEIGHTS // (weights.shape[1] * length**2))
            for rows in (same[k : k + size] for k in range(0, len(same), size)):
                part = cls._equal(
                    weights[rows, :, :length, :length], sum(i < n_ranked for i in rows), causal, visible(length)
                )
                found = part if found is None else found + part
        assert found is not None, "a batch has cases"
        return found

    @classmethod
    def _equal(cls, weights: Any, n_ranked: int, causal: bool, visible: Any) -> "HeadTotals":
        """Of cases of one length."""
        totals = AttentionTotals.of(weights, causal=causal, visible=visible)
        ranks = AttentionRanks.of(weights[:n_ranked], causal=causal, visible=visible) if n_ranked > 0 else None
        return cls(totals, ranks)

    def __add__(self, other: "HeadTotals") -> "HeadTotals":
        """Both together."""
        one, two = self.ranks, other.ranks
        ranks = one + two if one is not None and two is not None else one if one is not None else two
        return HeadTotals(self.totals + other.totals, ranks)

    def statistics(self, level: float) -> "xr.Dataset":
        """All statistics over `head`."""
        ds = self.totals.statistics(level)
        return ds if self.ranks is None else ds.merge(self.ranks.statistics(level), combine_attrs="override")


@dataclass(frozen=True)
class LayerPoints:
    """Points of the embedding and of every layer over all batches so far.

    Attributes
    ----------
    clouds : tuple of PointCloud
    samples : tuple of PointSample
        Of all layers at the same positions, because they draw from one seed.
    pairs : dict of (int, int) to PairMoments, or None
        Of layers k < l, over all points; None: similarity is measured on the samples, or not at all.
    """

    clouds: tuple[PointCloud, ...]
    samples: tuple[PointSample, ...]
    pairs: dict[tuple[int, int], PairMoments] | None

    @classmethod
    def of(cls, points: Sequence[Floats], sample: int, seed: int, pairs: bool, spacing: float) -> "LayerPoints":
        """Of the points of the layers in one batch.

        Parameters
        ----------
        points : sequence of ndarray, (n, d)
            Row i of all layers belongs to the same position.
        sample, seed : int
        pairs : bool
            Whether to keep moments of pairs of layers.
        spacing : float
            Of the numbers the model ran in: points that differ by its rounding alone are one point.
        """
        return cls(
            tuple(PointCloud.of(x, spacing=spacing) for x in points),
            tuple(PointSample(sample, seed).add(x) for x in points),
            _pairs(points) if pairs else None,
        )

    def add(self, points: Sequence[Floats], spacing: float) -> "LayerPoints":
        """After the points of the next batch as well."""
        pairs = None
        if self.pairs is not None:
            pairs = {key: self.pairs[key] + part for key, part in _pairs(points).items()}
        return LayerPoints(
            tuple(cloud + PointCloud.of(x, spacing=spacing) for cloud, x in zip(self.clouds, points, strict=True)),
            tuple(one.add(x) for one, x in zip(self.samples, points, strict=True)),
            pairs,
        )

    def dimensions(self, level: float) -> "xr.Dataset":
        """Linear dimensions of all points and nonlinear ones of the sample, over `layer`; NaN where there is none, the attribute says why."""
        import xarray as xr

        why: list[str] = []
        columns: dict[str, list[float]] = {name: [] for name in (*_LINEAR, *_TWO_NN, *_MLE, "n_sampled", "n_repeated")}
        for layer, (cloud, sample) in enumerate(zip(self.clouds, self.samples, strict=True)):
            spacing = cloud.moments.spacing
            unique = merged(sample.x, spacing)
            nearest = _reasons(why, f"layer {layer}, TwoNN", partial(two_nn, sample.x, level=level, spacing=spacing))
            likely = _reasons(why, f"layer {layer}, mle", partial(mle_dimension, sample.x, spacing=spacing))
            linear = _reasons(why, f"layer {layer}", cloud.dimensions)
            for name in _LINEAR:
                columns[name].append(_value(linear, name))
            for table, ds in ((_TWO_NN, nearest), (_MLE, likely)):
                for name, (source, _) in table.items():
                    columns[name].append(_value(ds, source))
            columns["n_sampled"].append(len(unique))
            columns["n_repeated"].append(len(sample.x) - len(unique))
        texts = {
            **{name: (text, "measured") for name, text in _LINEAR.items()},
            **{name: (text, "fitted") for name, (_, text) in (_TWO_NN | _MLE).items()},
            "mle_error": (_MLE["mle_error"][1], "bound"),
        }
        variables = {name: variable("layer", columns[name], text, claim=claim) for name, (text, claim) in texts.items()}
        counts = {
            "n_points": ([cloud.count for cloud in self.clouds], "points measured"),
            "n_sampled": (columns["n_sampled"], "different points in the sample"),
            "n_repeated": (columns["n_repeated"], "points of the sample that repeat another up to rounding, left out"),
        }
        variables |= {name: variable("layer", value, text, claim="exact") for name, (value, text) in counts.items()}
        attributes = {"level": level, **({"undefined": why} if why else {})}
        return xr.Dataset(variables, coords={"layer": np.arange(len(self.clouds))}, attrs=attributes)

    def similarity(self) -> "xr.Dataset":
        """Linear CKA of all pairs of layers, over `layer` and `layer_2`; NaN with the reason where a layer is constant."""
        import xarray as xr

        n = len(self.clouds)
        own = [cloud.moments for cloud in self.clouds]
        pairs = self.pairs
        if pairs is None:
            own = [PairMoments.of(one.x, one.x, whole.spacing) for one, whole in zip(self.samples, own, strict=True)]
            pairs = _pairs([one.x for one in self.samples])
        values = np.full((2, n, n), np.nan)
        varied = [k for k in range(n) if not own[k].constant]
        why = [
            f"layer {k}: the same at all points; nothing is similar to a constant." for k in range(n) if k not in varied
        ]
        for k in varied:
            for other in (m for m in varied if m >= k):
                both = own[k] if k == other else pairs[k, other]
                totals = CKATotals(both, own[k], own[other])
                ds = _reasons(why, f"layers {k} and {other}", totals.statistics)
                values[:, k, other] = values[:, other, k] = _value(ds, "cka"), _value(ds, "cka_unbiased")
        dims = ("layer", "layer_2")
        kind = (
            "all points"
            if self.pairs is not None
            else f"a uniform sample of {own[0].count} of {self.clouds[0].count} points"
        )
        return xr.Dataset(
            {
                "cka": variable(dims, values[0], "linear CKA, biased up for few points"),
                "cka_unbiased": variable(dims, values[1], "linear CKA from unbiased HSIC"),
                "n_points": variable((), own[0].count, "points compared", claim="exact"),
            },
            coords={"layer": np.arange(n), "layer_2": np.arange(n)},
            attrs={"points": kind, **({"undefined": why} if why else {})},
        )


def affordable(widths: Sequence[int], n_points: int) -> bool:
    """Whether moments of all pairs of layers fit: at most 1 GiB kept and 5e12 multiplications, minutes on one core."""
    products = sum(a * b for k, a in enumerate(widths) for b in widths[k + 1 :])
    return products * 8 <= 2**30 and products * n_points <= 5e12


def _pairs(points: Sequence[Floats]) -> dict[tuple[int, int], PairMoments]:
    n = len(points)
    return {(k, other): PairMoments.of(points[k], points[other]) for k in range(n) for other in range(k + 1, n)}


def _reasons(why: list[str], where: str, measurement: Callable[[], "xr.Dataset"]) -> "xr.Dataset | None":
    """What it gives, or None and a line that says why not."""
    try:
        return measurement()
    except DataError as error:
        why.append(f"{where}: {error}")
        return None


def _value(ds: "xr.Dataset | None", name: str) -> float:
    return float("nan") if ds is None else float(ds[name])
