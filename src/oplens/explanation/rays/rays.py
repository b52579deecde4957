r"""Orders along a ray: the target as a polynomial of eps on x_0 + eps (x - x_0), from a baseline (eps = 0) to the case (eps = 1).

With M(eps) the target of any architecture, node by node one ordinary pass, and T_k the Chebyshev polynomials,

    M(eps) = sum_{k=0}^K c_k T_k(2 eps - 1) + remainder,        T_k(1) = 1: at the case the terms c_k themselves sum to the target,

c_k being those of the polynomial that meets the model at the K+1 nodes eps = (1 + cos((2i+1) pi / (2K+2))) / 2, which neither end is
one of. The same polynomial in powers of eps has order 0 for the baseline's value, order 1 for the slope there, and so on; its
coefficients grow as 5.8^K and alternate, so they are left out where rounding would reach 1e-6 of the target.

The terms come from the nodes by a cosine transform; the remainder from the recurrence at eps = 1 and the barycentric formula; the target
from the model's own convolution. Source: Trefethen, Approximation Theory and Practice (2013), chapters 3 to 5 and 8.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.data import SequenceData, as_sequences
from oplens.errors import ArgumentError
from oplens.explanation.accounts.coordinates import case_coords
from oplens.explanation.accounts.explain import complete
from oplens.explanation.steps import check_pooled
from oplens.explanation.targets import Target, default_target
from oplens.explanation.training import check_channels, chunks, gather, labels_of
from oplens.models.s4d import S4D

if TYPE_CHECKING:
    import xarray as xr

    from oplens.explanation.operator import ExplicitOperator

HIGHEST = 64  # further nodes do not help where 65 did not: the model is not smooth on the ray
LARGEST_POWER_ROUNDING = 1e-6  # of the target, by the conversion to powers of eps


@dataclass(frozen=True)
class Ray:
    """What every account along a ray is asked for: cases, the baseline (n_channels, 1 or n_timepoints), and the explained target."""

    data: SequenceData
    labels: NDArray[np.str_] | None
    target: Target
    directions: NDArray[np.float64]
    start: NDArray[np.float64]
    words: str

    @classmethod
    def of(cls, op: "ExplicitOperator", call: str, X: Any, y: Any, baseline: Any, target: Target | None) -> "Ray":
        """Everything checked, with a sentence for what cannot work."""
        config = op.model.config
        check_pooled(op, call)
        data = as_sequences(X)
        check_channels(op.model, data, call)
        labels = labels_of(y if y is not None else data.y, len(data.X), f"{call}(y=...)")
        if len(config.classes) < 2 and target is None:
            raise ArgumentError(f"{call}: a model with one class has nothing to decide; pass a target of your own.")
        target = default_target(config.classes) if target is None else target
        if not isinstance(target, Target):
            raise ArgumentError(
                f"{call}(target={target!r}): give Margin(towards, against) or CentredLogits(); the classes are "
                f"{', '.join(config.classes)}."
            )
        start, words = _baseline(op, call, baseline, int(data.lengths.max()))
        return cls(data, labels, target, target.directions(config.classes), start, words)

    def starts(self, raw: Tensor) -> Tensor:
        """The baseline under a batch of cases raw (batch, length, n_channels), same shape."""
        start = torch.from_numpy(self.start).T
        return (start if len(start) == 1 else start[: raw.shape[1]]).expand_as(raw)

    def lead(self) -> tuple[str, ...]:
        """Dimensions of the explained target."""
        return ("case", "class") if self.target.per_class else ("case",)

    def variable(
        self, values: NDArray[np.float64], ahead: str | None, text: str, claim: str
    ) -> tuple[tuple[str, ...], NDArray[np.float64], dict[str, str]]:
        """Values (case, [ahead], target) as an xarray variable with `ahead` first and no target axis for a margin."""
        dims = self.lead() if ahead is None else (ahead, *self.lead())
        values = values if ahead is None else np.moveaxis(values, 1, 0)
        values = values if self.target.per_class else values[..., 0]
        return dims, values, {"units": "logit", "long_name": text, "claim": claim}

    def with_cases(self, op: "ExplicitOperator", ds: "xr.Dataset", logits: NDArray[np.float64]) -> "xr.Dataset":
        """A result with its cases' coordinates and logits (case, class)."""
        described = {"units": "logit", "long_name": "logits of the model", "claim": "exact"}
        names = np.array(op.model.config.classes, dtype=object)
        coords = {**case_coords(op, self.data, self.labels, logits), "class": ("class", names)}
        return ds.assign_coords(coords).assign(logits=(("case", "class"), logits, described))

    def attributes(self, op: "ExplicitOperator", order: int) -> dict[str, Any]:
        """Attributes of a result along the ray."""
        from oplens.results import provenance

        config = op.model.config
        return {
            **provenance(source=self.data.source),
            "order": order,
            "target": self.target.describe(),
            "architecture": config.architecture,
            "n_layers": config.n_layers,
            "training_hash": op.training.digest,
            "ray_start": self.words,
        }


def ray(
    op: "ExplicitOperator",
    X: Any,
    order: int = 8,
    baseline: Any = None,
    y: Any = None,
    target: Target | None = None,
) -> "xr.Dataset":
    """The target of any architecture as a polynomial of eps along x_0 + eps (x - x_0), from a baseline (0) to the case (1).

    Parameters
    ----------
    X, y, target
        As for :meth:`explain`.
    order : int
        Degree of the polynomial, 1 to 64; it meets the model at order + 1 Chebyshev nodes.
    baseline : array (n_channels,) or (n_channels, n_timepoints), or "zero", optional
        x_0 in the units of the data; samples must reach as far as the longest case. "zero": a preprocessed input of zeros.
        Default: the mean of every channel over the training set.

    Returns
    -------
    xarray.Dataset
        `ray_order` (order, case, [class]): Chebyshev terms at the case, which sum with `remainder` to `target`; `ray_error`
        (order, case, [class]): largest miss of the expansion cut after each order, at the positions; `model_course` and
        `expansion_course` (position, case, [class]); `power_order` (order, case, [class]): the same polynomial in powers of eps.

    Raises
    ------
    ArgumentError, DataError
        With a sentence.

    Notes
    -----
    Claim: *truncated*; the courses of the model are *exact*, the misses *measured*. Cost: 2 order + 4 passes.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from oplens import S4D, S4DConfig, expand
    >>> model = S4D(S4DConfig(d_input=2, n_classes=2, d_model=4, d_state=8, n_layers=2, architecture="reference"))
    >>> X = np.random.default_rng(0).normal(size=(5, 2, 40))
    >>> ds = expand(model, X).ray(X)
    >>> bool(abs(ds.ray_order.sum("order") + ds.remainder - ds.target).max() < 1e-12)
    True
    """
    import xarray as xr

    check_order("ray", order, HIGHEST)
    setting = Ray.of(op, "ray", X, y, baseline, target)
    data, config = setting.data, op.model.config
    positions = _positions(order)
    towards = torch.from_numpy(setting.directions)
    found = gather(
        (
            _passes(op.model, setting.starts(raw), raw, steps, positions, towards)
            for _, raw, steps in chunks(data.X, data.lengths, config.d_model)
        ),
        {},
    )
    basis = np.cos(np.arange(order + 1) * np.arccos(2 * positions - 1)[:, None])  # (position, order)
    course = found["course"]  # (case, position, target)
    _check_finite(course)
    terms = _terms(course[:, 1::2], basis[1::2])
    expansion, errors = np.zeros_like(course), []
    for k in range(order + 1):
        expansion += basis[:, k, None] * terms[:, None, k]
        errors.append(np.abs(expansion - course).max(1))
    remainder = found["recurrence"] - _at_the_case(course[:, 1::2], positions[1::2])
    rows: dict[str, tuple[NDArray[np.float64], str | None, str, str]] = {
        "ray_order": (terms, "order", "Chebyshev term of the target along the ray, at the case", "truncated"),
        "remainder": (remainder, None, "what the expansion leaves at the case, the model run by its recurrence", "truncated"),
        "target": (course[:, -1], None, "explained number, from the model's own convolution", "exact"),
        "ray_error": (
            np.stack(errors, 1), "order", "largest miss of the expansion cut after each order, over the positions", "measured"
        ),
        "model_course": (course, "position", "target of the model along the ray", "exact"),
        "expansion_course": (expansion, "position", "target of the expansion along the ray", "truncated"),
    }  # fmt: skip
    powers, words = _powers(terms)
    if powers is not None:
        text = "coefficient of eps^order of the expansion (changes with its degree); order 0: its value at the baseline"
        rows["power_order"] = (powers, "order", text, "truncated")
    account = f"truncated: polynomial of degree {order} in eps through {order + 1} passes of the model"
    ds = xr.Dataset(
        {name: setting.variable(*row) for name, row in rows.items()},
        coords={"order": ("order", np.arange(order + 1)), **_position_coords(positions)},
        attrs={**setting.attributes(op, order), "account": account, "powers": words},
    )
    return complete(setting.with_cases(op, ds, found["logits"]), ("ray_order", "remainder"))


def _position_coords(positions: NDArray[np.float64]) -> dict[str, Any]:
    node = np.arange(len(positions)) % 2 == 1
    text = {"units": "1", "claim": "exact"}
    return {
        "position": ("position", positions, {**text, "long_name": "eps: 0 at the baseline, 1 at the case"}),
        "node": ("position", node, {**text, "long_name": "the expansion meets the model here"}),
    }


def _check_finite(course: NDArray[np.float64]) -> None:
    lost = ~np.isfinite(course).all((1, 2))
    if lost.any():
        raise ArgumentError(
            f"ray: on the way from the baseline to case {int(lost.argmax())} the model leaves double precision; give a baseline as "
            "near to the cases as training data are."
        )


def check_order(call: str, order: Any, highest: int) -> None:
    """Refuse what is no order, or one beyond what its account can give."""
    if isinstance(order, bool) or not isinstance(order, int | np.integer) or not 1 <= order <= highest:
        raise ArgumentError(f"{call}(order={order!r}): give a whole number from 1 to {highest}.")


def _baseline(op: "ExplicitOperator", call: str, baseline: Any, longest: int) -> tuple[NDArray[np.float64], str]:
    """Baseline (n_channels, 1 or n_timepoints) in the units of the data, and what it is in words."""
    config = op.model.config
    cure = "one value per channel, samples (n_channels, n_timepoints), or 'zero'"
    if baseline is None:
        if op.training.X is None:
            raise ArgumentError(
                f"{call}: the operator's training set ({op.training.source}) was above 64 MB and is not kept in it, so its channel "
                f"means are not known; pass baseline=: {cure}."
            )
        total = op.training.X.sum((0, 2), dtype=np.float64) / op.training.lengths.sum()
        return total[:, None], "mean of every channel over the training set"
    if isinstance(baseline, str) and baseline == "zero":
        assert config.preprocessing is not None
        if config.preprocessing.remove_offset and any(config.preprocessing.mean):
            raise ArgumentError(
                f"{call}(baseline='zero'): no data become zeros, for this model subtracts a mean after each case's own offset; "
                "give one value per channel."
            )
        return np.array(config.preprocessing.mean)[:, None], "preprocessed input of zeros"
    try:
        values = np.asarray(baseline)
    except ValueError as error:
        raise ArgumentError(f"{call}(baseline=...): rows of unequal length; give {cure}.") from error
    shape, n = values.shape, config.d_input
    if values.dtype.kind not in "iuf" or not (shape == (n,) or (len(shape) == 2 and shape[0] == n)):
        got = f"shape {shape}" if values.dtype.kind in "iuf" else repr(baseline)[:60]
        raise ArgumentError(f"{call}(baseline=...): expected {cure}, for {n} channels; got {got}.")
    if len(shape) == 2 and shape[1] < longest:
        raise ArgumentError(
            f"{call}(baseline=...): {shape[1]} steps, but the longest case has {longest}; give at least as many (shorter cases "
            "use the first steps), or one value per channel."
        )
    if not np.isfinite(values).all():
        raise ArgumentError(f"{call}(baseline=...): it holds NaN or infinite values; give finite ones.")
    words = "given value of every channel" if len(shape) == 1 else "given samples"
    return values.astype(np.float64).reshape(n, -1), words


def _positions(order: int) -> NDArray[np.float64]:
    """0 to 1 in 2 order + 3 steps: every second one a node, between them the points where T_{order+1}, and so the error, is largest."""
    count = 2 * order + 2
    return np.asarray(np.sin(np.arange(count + 1) * (np.pi / (2 * count))) ** 2)


def _passes(
    model: S4D, start: Tensor, end: Tensor, lengths: Tensor, positions: NDArray[np.float64], directions: Tensor
) -> dict[str, Tensor]:
    """Target at all positions (case, position, target), the case's own logits, and its target by the recurrence."""
    with torch.no_grad():
        logits = [model((1 - eps) * start + eps * end, lengths) for eps in positions.tolist()]
        recurred = model.trace(end, lengths, mode="recurrence").logits
    return {
        "course": torch.stack(logits, dim=1) @ directions.T,
        "recurrence": recurred @ directions.T,
        "logits": logits[-1],
    }


def _terms(values: NDArray[np.float64], basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Chebyshev coefficients (case, order, target) from the values at the nodes (case, node, target); basis (node, order)."""
    terms = 2 / len(basis) * np.einsum("nk,bnt->bkt", basis, values)
    terms[:, 0] /= 2
    return terms


def _at_the_case(values: NDArray[np.float64], nodes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The polynomial through the nodes at eps = 1 by the barycentric formula: no coefficient enters."""
    n = len(nodes)
    weights = (-1.0) ** np.arange(n) * np.sin((2 * np.arange(n) + 1) * np.pi / (2 * n)) / (1 - nodes)
    return np.asarray(np.einsum("n,bnt->bt", weights, values) / weights.sum())


def powers_of_eps(order: int) -> NDArray[np.float64]:
    """T_k(2 eps - 1) in powers of eps: (order + 1, order + 1) integers, row k holding T_k.

    Examples
    --------
    >>> powers_of_eps(2).tolist()
    [[1.0, 0.0, 0.0], [-1.0, 2.0, 0.0], [1.0, -8.0, 8.0]]
    """
    rows = [[1] + [0] * order, [-1, 2] + [0] * (order - 1)]
    for _ in range(2, order + 1):
        shifted = [0, *rows[-1][:-1]]
        rows.append([4 * a - 2 * b - c for a, b, c in zip(shifted, rows[-1], rows[-2], strict=True)])
    return np.array(rows, dtype=np.float64)


def _powers(terms: NDArray[np.float64]) -> tuple[NDArray[np.float64] | None, str]:
    """Coefficients of powers of eps (case, order, target), or None where the conversion loses too many digits; and how many, in words."""
    order = terms.shape[1] - 1
    change = powers_of_eps(order)
    rounding = float(np.finfo(float).eps * np.abs(change).sum(1).max())
    if rounding > LARGEST_POWER_ROUNDING:
        return None, f"left out: at degree {order} the conversion loses {rounding:.1g} of the largest target"
    powers = np.einsum("km,bkt->bmt", change, terms)
    return powers, f"rounded to about {rounding:.1g} of the largest target along the ray"
