r"""Homogeneous orders: the power series of a whole model in eps along x_0 + eps (x - x_0), about the baseline eps = 0.

    M(eps) = sum_k m_k eps^k:   m_0 the baseline's value, m_1 linear in x - x_0, m_2 quadratic, ...  (multilinear forms of the case)

Series are propagated through preprocessing, encoder, diagonal systems (linear: order by order), readout, GLU, residual stream,
LayerNorm and pooling (oplens.operators.jets). At eps = 1 they mean something only where the series converges, and its radius is set
by the nearest complex eps at which a LayerNorm or a gate stops being analytic (oplens.explanation.rays.singularities). Under LayerNorm the
radius is mostly far below 1: no orders are given there, nor where the coefficients still grow at the highest order computed.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.explanation.accounts.explain import complete
from oplens.explanation.rays.rays import Ray, check_order
from oplens.explanation.rays.singularities import Nearest, disc_is_free
from oplens.explanation.targets import Target
from oplens.explanation.training import chunks, gather
from oplens.models.s4d import S4D
from oplens.operators import diagonal, jets

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

HIGHEST = 40
RADIUS_ORDER = 32  # degree at which zeros are looked for; on real models 24 already agrees to a percent
BISECTIONS = 6
LISTED = 12  # refused cases named in a sentence


def target_series(
    model: S4D, start: Tensor, end: Tensor, lengths: Tensor, order: int
) -> tuple[Tensor, list[float], list[str]]:
    """Series of the logits (order + 1, batch, n_classes), distance to the nearest singularity, and where it lies ("none": nowhere).

    Parameters
    ----------
    start, end : Tensor, (batch, length, d_input)
        Raw values at eps = 0 and 1.
    """
    nearest = Nearest(lengths)
    (first, mask), (last, _) = model.preprocess(start, lengths), model.preprocess(end, lengths)
    keep = mask[..., None]
    hidden = _affine(jets.line(first, last, order), model.encoder.weight, model.encoder.bias) * keep
    reference, prenorm = model.config.architecture == "reference", model.config.prenorm
    for index in range(model.config.n_layers):
        u = _norm(model, index, hidden, nearest) * keep if prenorm else hidden
        response = diagonal.kernel(model.layer(index).system(), u.shape[-2], skip=True)
        z = diagonal.convolve(u.transpose(-1, -2), response).transpose(-1, -2)
        active = jets.gelu(z) if model.config.readout == "gelu" else jets.polynomial(model.polynomial, z)
        if not reference:
            hidden = active
            continue
        convolution = model.layer(index).convolution
        assert convolution.bias is not None
        mixed, gate = _affine(active, convolution.weight[..., 0], convolution.bias).chunk(2, dim=-1)
        nearest.gate(index, gate)
        hidden = hidden + jets.product(mixed, jets.sigmoid(gate))
        hidden = (hidden if prenorm else _norm(model, index, hidden, nearest)) * keep
    pooled = (hidden * keep).sum(-2) / mask.sum(-1, keepdim=True)
    return _affine(pooled, model.decoder.weight, model.decoder.bias), nearest.radius, nearest.place


def _affine(series: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    series = series @ weight.T
    series[0] += bias
    return series


def _norm(model: S4D, index: int, hidden: Tensor, nearest: Nearest) -> Tensor:
    norm = model.norm(index)
    centred = hidden - hidden.mean(-1, keepdim=True)
    variance = jets.product(centred, centred).mean(-1)
    variance[0] += norm.eps
    nearest.norm(index, variance)
    scaled = jets.product(centred, jets.rsqrt(variance)[..., None]) * norm.weight
    scaled[0] += norm.bias
    return scaled


@dataclass(frozen=True)
class _Found:
    """Of all cases: terms (case, order, target), radius and growth (case,), where the nearest singularity lies, logits, target."""

    terms: NDArray[np.float64]
    radius: NDArray[np.float64]
    growth: NDArray[np.float64]
    place: NDArray[Any]
    logits: NDArray[np.float64]
    recurrence: NDArray[np.float64]


def _find(op: "ExplicitOperator", setting: Ray, order: int) -> _Found:
    data, config = setting.data, op.model.config
    towards = torch.from_numpy(setting.directions)
    places: list[str] = []

    def terms() -> Any:
        # A dozen series of (length, d_model) arrays are alive at once.
        for _, raw, lengths in chunks(data.X, data.lengths, config.d_model * (order + 1)):
            with torch.no_grad():
                start = setting.starts(raw)
                series, radius, place = target_series(op.model, start, raw, lengths, order)
                radius = [_checked(op.model, start[i], raw[i], lengths[i], r) for i, r in enumerate(radius)]
                places.extend(place)
                yield {
                    "terms": (series @ towards.T).transpose(0, 1),
                    "radius": torch.tensor(radius, dtype=torch.float64),
                    "logits": op.model(raw, lengths),
                    "recurrence": op.model.trace(raw, lengths, mode="recurrence").logits @ towards.T,
                }

    found = gather(terms(), {})
    return _Found(growth=_growth(found["terms"]), place=np.array(places, dtype=object), **found)


def _checked(model: S4D, start: Tensor, end: Tensor, steps: Tensor, radius: float) -> float:
    """A radius above 1 only where the disc abs(eps) <= 1 is free of singularities; else below 1, by bisection."""
    if not 1 < radius < math.inf:
        return radius
    (first, _), (last, _) = (model.preprocess(values[None, :steps], steps[None]) for values in (start, end))
    if disc_is_free(model, first[0], last[0], 1.0):
        return radius
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if disc_is_free(model, first[0], last[0], middle) else (low, middle)
    return high


def _growth(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / rho of the last half of the coefficients, which grow as rho^k: (case,)."""
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        size = np.log(np.abs(terms).max(-1))
        # A pair of complex singularities makes every few coefficients small: the larger of three neighbours does not.
        size = np.maximum(np.maximum(size[:, 2:], size[:, 1:-1]), size[:, :-2])
        half = size.shape[1] // 2
        slope = (size[:, -1] - size[:, -1 - half]) / half
        # Lost coefficients (inf - inf) grew without limit; vanished ones (log 0) have none.
        growth = np.where(np.isneginf(size[:, -1]), np.inf, np.exp(-slope))
    return np.asarray(np.where(np.isnan(growth), 0.0, growth))


def convergence(
    op: "ExplicitOperator", X: Any, baseline: Any = None, y: Any = None, target: Target | None = None
) -> "xr.Dataset":
    """How far the power series about the baseline reaches along the ray: the radius of convergence of every case.

    Parameters
    ----------
    X, baseline, y, target
        As for :meth:`ray`.

    Returns
    -------
    xarray.Dataset
        `convergence_radius` (case): distance to the nearest complex eps at which a LayerNorm's variance or a gate's denominator
        vanishes (infinite: nowhere), with the coordinate `nearest` saying which; `growth_radius` (case): 1 / growth of the
        target's last coefficients. In eps: 0 is the baseline, 1 the case.

    Raises
    ------
    ArgumentError, DataError
        With a sentence.

    Notes
    -----
    Claim: *measured*, from series of degree 32 (up to some percent too large where zeros crowd); a radius above 1 is confirmed by
    the argument principle on the circle abs(eps) = 1. Cost: about 500 products of (length, d_model) arrays per layer and case.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from oplens import S4D, S4DConfig, expand
    >>> model = S4D(S4DConfig(d_input=1, n_classes=2, d_model=4, d_state=8, architecture="reference"))
    >>> X = np.random.default_rng(0).normal(size=(3, 1, 20))
    >>> bool((expand(model, X).convergence(X).convergence_radius > 0).all())
    True
    """
    setting = Ray.of(op, "convergence", X, y, baseline, target)
    found = _find(op, setting, RADIUS_ORDER)
    account = "measured: zeros of LayerNorm variances and gates, from series cut at this order"
    return _radii(op, setting, found).assign_attrs(**setting.attributes(op, RADIUS_ORDER), account=account)


def homogeneous(
    op: "ExplicitOperator", X: Any, order: int = 8, baseline: Any = None, y: Any = None, target: Target | None = None
) -> "xr.Dataset":
    """Homogeneous orders of the whole model: the term of degree k in x - x_0, where these terms sum to the target.

    Parameters
    ----------
    X, baseline, y, target
        As for :meth:`ray`.
    order : int
        1 to 40.

    Returns
    -------
    xarray.Dataset
        `homogeneous_order` (order, case, [class]), order 0 being the baseline's value, which sum with `remainder` to `target`; for
        the cases whose series converges beyond eps = 1 and whose coefficients no longer grow. The attribute `refused` names the
        others; :meth:`convergence` holds every case's radius.

    Raises
    ------
    ArgumentError, DataError
        Where no case is left, which under LayerNorm is the rule; orders below 1 or above 40.

    Notes
    -----
    Claim: *truncated*. Cost: as :meth:`convergence`.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from oplens import S4D, S4DConfig, expand
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> op = expand(S4D(S4DConfig(d_input=1, n_classes=2, d_model=4, d_state=8)), np.ones((1, 1, 20)))
    >>> ds = op.homogeneous(1 + 0.1 * np.random.default_rng(0).normal(size=(2, 1, 20)), order=4)
    >>> bool(abs(ds.homogeneous_order.sum("order") + ds.remainder - ds.target).max() < 1e-12)
    True
    """
    check_order("homogeneous", order, HIGHEST)
    setting = Ray.of(op, "homogeneous", X, y, baseline, target)
    found = _find(op, setting, max(order, RADIUS_ORDER))
    # An entire series, as the plain architecture's, may grow for hundreds of orders before it falls: those sum to nothing either.
    reach = np.minimum(found.radius, found.growth)
    keep = reach > 1
    refused = _refused(reach, keep)
    if not keep.any():
        raise ArgumentError(
            f"homogeneous: the power series about the baseline ({setting.words}) does not converge at eps = 1, or still grows at order "
            f"{found.terms.shape[1] - 1}, in every case ({refused}; smaller of the radius of convergence and of growth), so its orders "
            "do not sum to the target; use ray(X), which needs no such radius, or a baseline nearer to the cases."
        )
    kept = found.terms[keep, : order + 1]
    if not np.isfinite(kept).all():
        raise ArgumentError(f"homogeneous(order={order}): the orders leave double precision; lower the order.")
    explained = found.logits[keep] @ setting.directions.T
    rows: dict[str, tuple[NDArray[np.float64], str | None, str, str]] = {
        "homogeneous_order": (
            kept, "order", "term of that degree in x - x_0, of the model's power series about the baseline", "truncated"
        ),
        "remainder": (
            found.recurrence[keep] - kept.sum(1), None, "what the orders leave, the model run by its recurrence", "truncated"
        ),
        "target": (explained, None, "explained number, from the model's own convolution", "exact"),
    }  # fmt: skip
    ds = _radii(op, setting, found).isel(case=np.flatnonzero(keep))
    ds = ds.assign({name: setting.variable(*row) for name, row in rows.items()})
    ds = ds.assign_coords(order=np.arange(order + 1)).assign_attrs(
        **setting.attributes(op, order),
        account="truncated: power series of the whole model about the baseline, cut at the order",
        refused=refused or "none",
    )
    return complete(ds, ("homogeneous_order", "remainder"))


def _radii(op: "ExplicitOperator", setting: Ray, found: _Found) -> "xr.Dataset":
    import xarray as xr

    rows = {
        "convergence_radius": (
            found.radius,
            "radius of convergence in eps: distance to the nearest singularity of a LayerNorm or gate",
        ),
        "growth_radius": (found.growth, "1 / growth per order of the target's last coefficients"),
    }
    variables = {
        name: (("case",), values, {"units": "1", "long_name": text, "claim": "measured"})
        for name, (values, text) in rows.items()
    }
    ds = xr.Dataset(variables, coords={"nearest": ("case", found.place)})
    return setting.with_cases(op, ds, found.logits)


def _refused(reach: NDArray[np.float64], keep: NDArray[np.bool_]) -> str:
    """The cases without orders and how far their series reach, the first of them by name; empty when there are none."""
    cases = np.flatnonzero(~keep)
    if not len(cases):
        return ""
    listed = ", ".join(f"case {case}: {reach[case]:.2g}" for case in cases[:LISTED])
    return f"{len(cases)} of {len(keep)} cases; {listed}{', ...' if len(cases) > LISTED else ''}"
