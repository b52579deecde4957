"""Errors of a model against a target, another model or known values, streamed in batches over the same inputs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.errors import ArgumentError, DataError
from oplens.measurement.arrays import Bools, Floats, floats, fraction, plain, whole
from oplens.measurement.batches import Inputs
from oplens.measurement.errors import ErrorTotals
from oplens.measurement.ratios import RatioTotals
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr
    from torch import Tensor

    from oplens.models.recording import Recorder

CALL = "errors_against"
OUTPUTS = ("output", "probabilities")


def errors_against(
    recorder: "Recorder",
    inputs: Any,
    target: Any,
    *,
    outputs: str = "output",
    exhaustive: bool | None = None,
    batch_size: int = 16,
    level: float = 0.95,
    progress: Callable[[int, int], None] | None = None,
) -> "xr.Dataset":
    r"""The paper's EAM (1/N) sum_i norm(f(x_i) - T(x_i))_2 and the largest error, exact where every input was given.

    Parameters
    ----------
    recorder : Recorder
        T.
    inputs : Tokens, SequenceData, or an array that either is made of
        x_i.
    target : Recorder or array
        f: a model that takes the same inputs, such as a teacher, a copy in another dtype or an unpruned copy; or its values, aligned with
        the cases: (n_cases,), (n_cases, m) or, for a model that answers at every position, (n_cases, length, m), NaN in the padding.
    outputs : {"output", "probabilities"}
        What is compared: what the model returns, or its softmax. Logits of one distribution may differ by a constant; probabilities do not.
    exhaustive : bool, optional
        Whether the inputs are all there are. Omitted: found out, they are if every sequence of V symbols of each length that occurs is
        given exactly once. True is refused where that is not so.
    batch_size : int
    level : float
        Of intervals.
    progress : callable, optional
        Called with (cases done, cases in all).

    Returns
    -------
    xarray.Dataset
        As :meth:`oplens.measurement.ErrorTotals.statistics`: `eam`, `largest`, `n_cases` and, over a sample, `eam_error`, `eam_low`,
        `eam_high`, `exceedance`; `largest_case`; `target_size`, the mean of norm(f(x_i)), which an error is small or large against; between
        two models that predict tokens `agreement`, the share of positions where both put the same token first, with its error.

    Raises
    ------
    ArgumentError, DataError
        If the target does not fit, before the model runs where that can be seen; if `exhaustive` is claimed and not so.

    Notes
    -----
    Claim: *measured* and *bound* (from below) over a sample, *exact* up to the rounding of the model's dtype over all inputs: the attribute
    `scope` says which. Positions of one case count as one draw in intervals. Memory: one batch, and a bit per input there is while it is
    found out whether all were given. Cost: one pass of each model.

    Source: the paper, section 4.2, metric 1, and Definition 2 (the supremum).

    Examples
    --------
    >>> import itertools, numpy as np, torch
    >>> from oplens.models import Transformer, TransformerConfig
    >>> from oplens.models.own_recorders import TransformerRecorder
    >>> _ = torch.manual_seed(0)
    >>> model = TransformerRecorder.of(Transformer(TransformerConfig(d_output=1, vocabulary=2, d_model=16, n_heads=2, d_ffn=8)))
    >>> inputs = np.array(list(itertools.product(range(2), repeat=3)))
    >>> ds = errors_against(model, inputs, [0.0] * 8)
    >>> ds.attrs["scope"], ds.largest.claim, bool(ds.largest > ds.eam)
    ('all 8 sequences of 3 symbols out of 2', 'exact', True)
    """
    from oplens.results import provenance

    batch_size, level = whole(CALL, "batch_size", batch_size, 1), fraction(CALL, "level", level)
    if outputs not in OUTPUTS:
        raise ArgumentError(f"{CALL}(outputs={outputs!r}): give one of {', '.join(OUTPUTS)}.")
    if exhaustive not in (None, True, False):
        raise ArgumentError(f"{CALL}(exhaustive={exhaustive!r}): give True, False or nothing.")
    data = Inputs.of(CALL, recorder, inputs)
    n_cases = data.n_cases
    f = _target(recorder, data, target, outputs)
    scope = None if exhaustive is False else _all_sequences(recorder, data)
    if exhaustive and scope is None:
        raise DataError(
            f"{CALL}(exhaustive=True): the {n_cases} inputs are not every sequence of their lengths once each; leave it out, and the largest "
            "error found is called a lower bound."
        )
    total: _Totals | None = None
    done = 0
    for cases, x, mask in stream(data, batch_size):
        found = recorder.record(x, mask)
        part = _Totals.of(cases, f.of(cases, x, mask), _shown(found.output, outputs), found.mask, f.predicts)
        total = part if total is None else total + part
        done += len(cases)
        if progress is not None:
            progress(done, n_cases)
    assert total is not None
    says = "a sample: the largest error is a lower bound" if scope is None else scope
    against = getattr(target, "name", "given values")
    dtype = str(recorder.facts.get("dtype", "float64"))
    made = provenance(source=f"{recorder.name} against {against} on {data.data.source}", dtype=dtype)
    return total.dataset(level, scope).assign_attrs(made, scope=says, outputs=outputs, target=against)


@dataclass(frozen=True)
class _Totals:
    """What is added up over batches: errors, sizes of f, same first choices, and the case with the largest error."""

    errors: ErrorTotals
    sizes: ErrorTotals
    agreement: RatioTotals | None
    worst: int

    @classmethod
    def of(cls, cases: Any, f: Floats, T: Floats, mask: Any, predicts: bool) -> "_Totals":
        """Of one batch; mask (batch, length)."""
        if f.shape != T.shape:
            raise DataError(
                f"{CALL}: the model answers each of {len(T)} cases with shape {T.shape[1:]}, the target with {f.shape[1:]}; "
                "they answer different questions."
            )
        real = plain(CALL, "mask", mask) if f.ndim == 3 else None
        errors = ErrorTotals.of(f, T, real)
        gaps = np.linalg.norm((f - T).reshape(*f.shape[:-1], -1), axis=-1)
        worst = gaps if real is None else np.where(real, gaps, 0.0).max(1)
        same = None
        if predicts and real is not None:
            same = RatioTotals.of(((f.argmax(-1) == T.argmax(-1)) & real).sum(1), real.sum(1))
        return cls(errors, ErrorTotals.of(f, np.zeros_like(f), real), same, int(cases[int(worst.argmax())]))

    def __add__(self, other: "_Totals") -> "_Totals":
        same = None if self.agreement is None or other.agreement is None else self.agreement + other.agreement
        worst = other.worst if other.errors.largest > self.errors.largest else self.worst
        return _Totals(self.errors + other.errors, self.sizes + other.sizes, same, worst)

    def dataset(self, level: float, scope: str | None) -> "xr.Dataset":
        """Statistics of them all."""
        ds = self.errors.statistics(level, exhaustive=scope is not None)
        claim = "measured" if scope is None else "exact"
        ds["target_size"] = variable(
            (), float(self.sizes.errors.mean), "mean norm of f, the scale of the errors", "same as f", claim
        )
        ds["largest_case"] = variable((), self.worst, "case with the largest error", "1", claim)
        if self.agreement is not None:
            ds["agreement"] = variable(
                (), float(self.agreement.mean), "positions where both put the same token first", "1", claim
            )
            if scope is None:
                error = float(self.agreement.error)
                ds["agreement_error"] = variable((), error, "standard error of the agreement over cases")
        return ds


@dataclass(frozen=True)
class _Model:
    """Another recorder as f."""

    recorder: "Recorder"
    outputs: str
    predicts: bool

    def of(self, cases: Any, x: Any, mask: Any) -> Floats:
        """Its outputs."""
        return _shown(self.recorder.record(x, mask).output, self.outputs)


@dataclass(frozen=True)
class _Values:
    """Known values as f, (n_cases, m) or (n_cases, length, m)."""

    values: Floats
    predicts: bool = False

    def of(self, cases: Any, x: Any, mask: Any) -> Floats:
        """Those of the batch; positions beyond its longest case are cut off, they are padding."""
        found = self.values[cases]
        if found.ndim < 3:
            return np.asarray(found)
        length = x.shape[1]
        if found.shape[1] < length:
            raise DataError(f"{CALL}(target): values of {found.shape[1]} positions a case, but a case has {length}.")
        return np.asarray(found[:, :length])


def _target(recorder: "Recorder", data: Inputs, target: Any, outputs: str) -> _Model | _Values:
    """F, refused before anything runs where it can be seen not to fit."""
    if isinstance(target, np.ndarray | list | tuple) or _is_tensor(target):
        if outputs != "output":
            raise ArgumentError(
                f"{CALL}(outputs={outputs!r}): values are compared as they are; give probabilities as values instead."
            )
        values = floats(CALL, "target", target, (1, 2, 3), "(n_cases,), (n_cases, m) or (n_cases, length, m)", False)
        if len(values) != data.n_cases or 0 in values.shape:
            raise DataError(
                f"{CALL}(target of shape {values.shape}): there are {data.n_cases} cases; values must stand in their order, one row a case."
            )
        return _Values(values[:, None] if values.ndim == 1 else values)
    for name in ("kind", "vocabulary", "d_input"):
        one, two = getattr(recorder, name), getattr(target, name)
        if one != two:
            raise ArgumentError(
                f"{CALL}: {recorder.name} has {name} {one}, {target.name} has {two}; both must read the same inputs, with the same tokenizer."
            )
    Inputs.of(CALL, target, data.data)
    return _Model(target, outputs, recorder.predicts_next and target.predicts_next)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _shown(output: Any, outputs: str) -> Floats:
    """Outputs as float64, or their softmax, taken in float64."""
    values = plain(CALL, "output", output).astype(np.float64)
    if outputs == "probabilities":
        from scipy.special import softmax

        return np.asarray(softmax(values, axis=-1))
    return values


def _all_sequences(recorder: "Recorder", data: Inputs) -> str | None:
    """Which sequences the inputs are all of, in words; None where one is missing or given twice. Reads inputs only."""
    V, n_cases = recorder.vocabulary, data.n_cases
    if V is None:
        return None
    seen: dict[int, Bools] = {}
    for _, x, mask in stream(data, 1024):
        tokens, real = plain(CALL, "inputs", x), plain(CALL, "mask", mask)
        lengths = real.sum(1)
        for length in np.unique(lengths).tolist():
            # Compared as logarithms: V^length may have millions of digits.
            if length * np.log(V) > np.log(n_cases) + 1e-9:
                return None
            rows = lengths == length
            code = tokens[rows][real[rows]].reshape(-1, length).astype(np.int64) @ V ** np.arange(
                length, dtype=np.int64
            )
            marks = seen.setdefault(length, np.zeros(V**length, dtype=bool))
            if len(np.unique(code)) < len(code) or (code < 0).any() or (code >= len(marks)).any() or marks[code].any():
                return None
            marks[code] = True
    if not all(marks.all() for marks in seen.values()):
        return None
    sizes = " or ".join(str(length) for length in sorted(seen))
    return f"all {n_cases:,} sequences of {sizes} symbols out of {V}"


def stream(data: Inputs, batch_size: int) -> "Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]":
    """Numbers of the cases, inputs as a recorder takes them, and mask (batch, length), batch by batch in order."""
    start = 0
    for batch in data.batches(batch_size):
        yield np.arange(start, start + len(batch.x)), batch.x, batch.mask
        start += len(batch.x)
