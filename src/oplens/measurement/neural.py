"""How well each layer of a model predicts recorded neurons: the same folds and permutations for all layers, so that they compare."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.data.tokens import Tokens, as_tokens
from oplens.errors import ArgumentError, DataError
from oplens.measurement import predictivity as ridge
from oplens.measurement.against import stream
from oplens.measurement.arrays import Floats, fraction, plain, whole
from oplens.measurement.batches import Inputs
from oplens.measurement.best_layer import FEWEST, against_best, resampled_predictivity
from oplens.results.variables import variable

if TYPE_CHECKING:
    import xarray as xr

    from oplens.data.responses import Responses
    from oplens.data.texts import Tokenizer
    from oplens.models.recording import Recorder

CALL = "measure_neural"
POOLS = ("mean", "last", "first")
MEMORY_LIMIT = 2**32  # bytes that all layers' features may take unless more is allowed


def measure_neural(
    recorder: "Recorder",
    inputs: Any,
    responses: "Responses",
    *,
    pool: str = "mean",
    folds: int = 5,
    alphas: Any = ridge.ALPHAS,
    permutations: int = 200,
    halves: int = 100,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    batch_size: int = 16,
    memory_limit: float = MEMORY_LIMIT,
    progress: Callable[[str], None] | None = None,
) -> "xr.Dataset":
    r"""Cross-validated ridge from every layer's hidden states to recorded responses, beside the noise ceiling and chance.

    Parameters
    ----------
    recorder : Recorder
    inputs : Tokens, SequenceData, or an array that either is made of
        Case `responses.case[i]` is stimulus i; :func:`stimulus_tokens` makes them of a file's own texts.
    responses : Responses
    pool : {"mean", "last", "first"}
        A stimulus without a `position` is its input's mean over real positions, its last or its first real one.
    folds, alphas, permutations, halves, seed
        As for :func:`oplens.measurement.neural_predictivity`; at least one permutation.
    resamples : int
        Draws of stimuli, or of groups, that the intervals stand on; at least 100.
    level : float
        Of the intervals.
    batch_size : int
    memory_limit : float
        Bytes that the features of all layers may take.
    progress : callable, optional
        Called with a line of text before each stage.

    Returns
    -------
    xarray.Dataset
        Over (layer, neuron), layer 0 the embedding: `predictivity`, `alpha`, with repeats `normalised_predictivity`; over layer:
        `mean_predictivity`, `median_normalised_predictivity`, `p_value`, `p_value_corrected`, `null_mean`,
        `difference_to_best`, this and the first with `_low` and `_high`; `noise_ceiling` (neuron); `n_stimuli`, `n_repeats`. Coordinate
        `label` (neuron): their names. Attribute `notes` where intervals cannot be had or something was left out.

    Raises
    ------
    ArgumentError, DataError
        If stimuli and inputs do not fit, before the model runs; if features would exceed the memory limit, after its first batch.

    Notes
    -----
    Each layer alone is :func:`oplens.measurement.neural_predictivity`, to the digit. `p_value_corrected` is what the best of several
    layers is judged by: the share of permutations in which any layer reaches the layer's mean predictivity (single-step max statistic over
    the same permutations), at least `p_value`. A layer that wins by chance on noise alone has one at most .05 in at most 5 % of recordings.

    Layers whose `difference_to_best_high` is 0 cannot be told apart from the best: :func:`oplens.measurement.best_layer.against_best`, on
    held-out predictions of stimuli, or of groups, drawn again within each fold, the same for all layers. Nothing is fitted again: the
    intervals are about these readouts of these neurons on other stimuli, and leave out that other stimuli would have trained other readouts.
    In simulated recordings of 20 to 600 stimuli intervals at 95 % held the differences of these readouts in 91 to 99 %, of readouts on
    average in 89 to 99 %; the mean predictivity of these readouts in 84 to 97 %, with 4 groups of 30 stimuli a fold in 78 %.

    Claims: *measured*. Memory: 8 (n_layers + 1) stimuli d_model bytes and one batch. Cost: one pass of the model; per layer that of
    neural_predictivity and O(resamples stimuli neurons).

    Source: Schrimpf et al. (2021), PNAS 118(45), for the protocol; Westfall & Young (1993) for the max statistic; Edwards & Hsu (1983), JASA
    78(384), for comparisons with the best; Rao & Wu (1988), JASA 83(401), for the draws.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from oplens.data.responses import Responses
    >>> from oplens.models import Transformer, TransformerConfig
    >>> from oplens.models.own_recorders import TransformerRecorder
    >>> _ = torch.manual_seed(0)
    >>> model = TransformerRecorder.of(Transformer(TransformerConfig(d_output=2, vocabulary=9, d_model=16, n_layers=1, n_heads=2)))
    >>> x = np.random.default_rng(0).integers(9, size=(60, 5))
    >>> states = model.record(torch.tensor(x)).hidden[1].mean(1).numpy()
    >>> data = Responses(states[:, :3, None], ("a", "b", "c"), "Hz", "copied from the model", np.arange(60))
    >>> ds = measure_neural(model, x, data, permutations=19)
    >>> int(ds.mean_predictivity.argmax("layer")), float(ds.p_value_corrected[1])
    (1, 0.05)
    >>> (ds.difference_to_best_high == 0).values.tolist()  # which may be the best
    [False, True]
    """
    from oplens.results import provenance

    whole(CALL, "permutations", permutations, 1)
    whole(CALL, "resamples", resamples, 100)
    level = fraction(CALL, "level", level)
    still = _still(responses)
    # What the recording cannot be divided into is refused before the model runs.
    _, _, blocks, _ = ridge.checked(CALL, np.zeros((responses.n_stimuli, 1)), responses.values, responses.group, alphas)
    split_seed = np.random.SeedSequence(whole(CALL, "seed", seed, 0)).spawn(1)[0]
    divided = ridge.divide(CALL, blocks, whole(CALL, "folds", folds, 2), split_seed)
    units = [len(np.unique(blocks[test])) for _, test in divided]
    features = layer_features(
        recorder, inputs, responses, pool=pool, batch_size=batch_size, memory_limit=memory_limit, progress=progress
    )
    draws = resamples if min(units) >= FEWEST else 0
    parts, null, drawn = [], np.empty((len(features), permutations)), np.empty((len(features), draws))
    for layer, X in enumerate(features):
        if progress is not None:
            progress(f"predicting neurons from layer {layer} of {len(features) - 1}")
        ds, null[layer], drawn[layer] = _layer(X, responses, folds, alphas, permutations, halves, seed, draws)
        parts.append(ds)
    found = _joined(parts, null)
    if draws:
        intervals = against_best(found["mean_predictivity"].values, drawn, level, sum(units) - len(units))
        found = found.assign(intervals).assign_attrs(level=level, resamples=draws)
    notes = [*responses.notes, *still, *([] if draws else [_undrawn(units)])]
    found["n_stimuli"] = variable((), responses.n_stimuli, "stimuli", claim="exact")
    found["n_repeats"] = variable((), responses.n_repeats, "presentations of each stimulus", claim="exact")
    placed = "position of the recording" if responses.position is not None else f"{pool} over real positions"
    attributes = {
        **provenance(
            source=f"{recorder.name} on {responses.name}", dtype=str(recorder.facts.get("dtype", "float64")), seed=seed
        ),
        **found.attrs,
        "responses": responses.name,
        "response_units": responses.units,
        "pool": placed,
        **({"notes": notes} if notes else {}),
    }
    return found.assign_coords(label=("neuron", list(responses.neurons))).assign_attrs(attributes)


def _still(responses: "Responses") -> list[str]:
    """A word on neurons whose mean response is the same to all stimuli: nothing can be correlated with it."""
    mean = responses.values.mean(2)
    still = int((np.ptp(mean, axis=0) <= 1e-12 * np.abs(mean).max(0)).sum())
    if still == mean.shape[1]:
        raise DataError(
            f"{CALL}: every neuron of {responses.name} responds the same to all {len(mean)} stimuli, so there is nothing to predict; give "
            "responses that differ."
        )
    return (
        [f"{still} of {mean.shape[1]} neurons respond the same to all stimuli; their predictivity counts as 0."]
        if still
        else []
    )


def stimulus_tokens(
    responses: "Responses", tokenizer: "Tokenizer", *, max_length: int | None = None
) -> "tuple[Tokens, Responses]":
    """The texts of a recording as inputs, each different text once and whole, and the recording with `case` counting them.

    Parameters
    ----------
    responses : Responses
        With `text`. A `position` counts the tokens of its text, those that the tokenizer puts in front included.
    tokenizer : Tokenizer
        Its own special tokens stand around every text.
    max_length : int, optional
        Of the model; longer texts are refused, since half a stimulus is another one.

    Raises
    ------
    DataError
        No texts, an empty text, or one that is too long.
    """
    if responses.text is None:
        raise DataError(f"{responses.name}: holds no `text` over stimuli; give the model's inputs beside it.")
    texts, case = np.unique(np.array(responses.text, dtype=object), return_inverse=True)
    rows = []
    for number, text in enumerate(texts.tolist()):
        ids = tokenizer.encode(text)[0]
        row = [*tokenizer.before, *ids, *tokenizer.after]
        if not ids or (max_length is not None and len(row) > max_length):
            stimulus = int(np.flatnonzero(case == number)[0])
            found = f"{len(row)} tokens, the model takes {max_length}; shorten it" if ids else "no tokens; leave it out"
            raise DataError(f"{responses.name}: the text of stimulus {stimulus} has {found}.")
        rows.append(row)
    tokens = as_tokens(rows, tokenizer, name=responses.name, source=responses.name)
    return tokens, dataclasses.replace(responses, case=case)


def layer_features(
    recorder: "Recorder",
    inputs: Any,
    responses: "Responses",
    *,
    pool: str = "mean",
    batch_size: int = 16,
    memory_limit: float = MEMORY_LIMIT,
    progress: Callable[[str], None] | None = None,
) -> tuple[Floats, ...]:
    """Hidden states that stand for the stimuli, per layer from the embedding on: each (stimuli, d_model) float64.

    Inputs that are no stimulus are not run; parameters and refusals as for :func:`measure_neural`.
    """
    if pool not in POOLS:
        raise ArgumentError(f"{CALL}(pool={pool!r}): give one of {', '.join(POOLS)}.")
    batch_size = whole(CALL, "batch_size", batch_size, 1)
    data = Inputs.of(CALL, recorder, inputs)
    _check_places(data, responses)
    kept: list[Floats] = []
    done = 0
    for cases, x, mask in stream(data, batch_size):
        stimuli = np.flatnonzero(np.isin(responses.case, cases))
        if not len(stimuli):
            continue
        rows = responses.case[stimuli] - cases[0]
        hidden = recorder.record(x, mask).hidden
        if not kept:
            kept = _room([responses.n_stimuli * h.shape[-1] for h in hidden], responses.n_stimuli, memory_limit)
        real = plain(CALL, "mask", mask)
        places = None if responses.position is None else responses.position[stimuli]
        for store, states in zip(kept, hidden, strict=True):
            store[stimuli] = _pooled(plain(CALL, "hidden", states)[rows].astype(np.float64), real[rows], places, pool)
        tenth = 10 * (done + len(stimuli)) // responses.n_stimuli
        if progress is not None and tenth > 10 * done // responses.n_stimuli:
            progress(f"recording states: {tenth * 10} % of {responses.n_stimuli:,} stimuli")
        done += len(stimuli)
    return tuple(kept)


def _pooled(states: Floats, real: Any, places: NDArray[np.int64] | None, pool: str) -> Floats:
    """(stimuli, length, d_model) to (stimuli, d_model)."""
    if places is None and pool == "mean":
        return np.asarray(np.where(real[..., None], states, 0.0).sum(1) / real.sum(1)[:, None])
    first = real.argmax(1)
    last = real.shape[1] - 1 - real[:, ::-1].argmax(1)
    chosen = first + places if places is not None else {"first": first, "last": last}[pool]
    return np.asarray(states[np.arange(len(states)), chosen])


def _room(sizes: list[int], n_stimuli: int, memory_limit: float) -> list[Floats]:
    needed = 8 * sum(sizes)
    if needed > memory_limit:
        raise DataError(
            f"{CALL}: features of {n_stimuli} stimuli in {len(sizes)} layers take {needed / 2**30:.3g} GiB, memory_limit is "
            f"{memory_limit / 2**30:.3g} GiB; give fewer stimuli, or raise memory_limit."
        )
    return [np.empty((n_stimuli, size // n_stimuli)) for size in sizes]


def _check_places(data: Inputs, responses: "Responses") -> None:
    """Refuse stimuli that are none of the inputs or lie beyond their ends; reads the inputs' masks only."""
    n_cases = data.n_cases
    beyond = np.flatnonzero(responses.case >= n_cases)
    if len(beyond):
        raise DataError(
            f"{CALL}: stimulus {beyond[0]} of {responses.name} is input {responses.case[beyond[0]]}, but there are {n_cases} inputs, counted "
            "from 0; give one input for each stimulus, or a coordinate `case` that says which is which."
        )
    if responses.position is None:
        _check_texts(data, responses)
        return
    lengths = np.zeros(n_cases, dtype=np.int64)
    for cases, _, mask in stream(data, 1024):
        lengths[cases] = plain(CALL, "mask", mask).sum(1)
    far = np.flatnonzero(responses.position >= lengths[responses.case])
    if len(far):
        case = responses.case[far[0]]
        raise DataError(
            f"{CALL}: stimulus {far[0]} of {responses.name} stands at position {responses.position[far[0]]} of input {case}, which has "
            f"{lengths[case]}; positions are the model's tokens, counted from 0."
        )


def _check_texts(data: Inputs, responses: "Responses") -> None:
    """Refuse inputs whose tokens are not those of the texts that the file says were shown."""
    if responses.text is None or not isinstance(data.data, Tokens) or data.data.tokenizer is None:
        return
    tokenizer, tokens = data.data.tokenizer, data.data
    for stimulus, (case, text) in enumerate(zip(responses.case.tolist(), responses.text, strict=True)):
        row = tokens.ids[case, : tokens.lengths[case]].tolist()
        ids = tokenizer.encode(text)[0]
        if row not in (ids, [*tokenizer.before, *ids, *tokenizer.after]):
            raise DataError(
                f"{CALL}: input {case} is not the text that {responses.name} holds for stimulus {stimulus}; leave the inputs out, the file's "
                "own texts then are the inputs, or give a coordinate `case` that says which is which."
            )


def _layer(
    X: Floats,
    responses: "Responses",
    folds: int,
    alphas: Any,
    permutations: int,
    halves: int,
    seed: int,
    resamples: int,
) -> "tuple[xr.Dataset, Floats, Floats]":
    """One layer's predictivity, its mean over neurons under each permutation, and on each draw of stimuli."""
    options = {"folds": folds, "alphas": alphas, "halves": halves, "seed": seed}
    ds = ridge.neural_predictivity(X, responses.values, groups=responses.group, permutations=0, **options)
    X, Y, blocks, penalties = ridge.checked(CALL, X, responses.values, responses.group, alphas)
    split_seed, _, null_seed, draw_seed = np.random.SeedSequence(seed).spawn(4)
    fitted = [ridge.RidgeFold.of(X, *pair, penalties) for pair in ridge.divide(CALL, blocks, folds, split_seed)]
    mean = Y.mean(-1)
    predicted, shown = [fold.predict(mean)[0] for fold in fitted], [mean[fold.test] for fold in fitted]
    drawn = resampled_predictivity(predicted, shown, [blocks[fold.test] for fold in fitted], resamples, draw_seed)
    return ds, ridge.null_predictivity(fitted, mean, blocks, permutations, null_seed), drawn


def _undrawn(units: list[int]) -> str:
    return (
        f"Layers have no intervals: a fold holds {min(units)} of the {sum(units)} stimuli or groups that can be drawn again, {FEWEST} are "
        "needed; give fewer folds."
    )


def _joined(parts: "list[xr.Dataset]", null: Floats) -> "xr.Dataset":
    """Layers side by side, with their p values alone and for the best of them."""
    import xarray as xr

    found = xr.concat(parts, "layer", data_vars="all", coords="minimal", compat="override", join="exact")
    if "noise_ceiling" in found:  # of the recordings, whatever the layer
        found["noise_ceiling"] = parts[0]["noise_ceiling"]
    best = null.max(0)
    reached = found["mean_predictivity"].values[:, None] - 1e-12
    for name, chance, text in (
        ("p_value", null, "share of permutations that predict as well from this layer"),
        ("p_value_corrected", best, "share of permutations that predict as well from any layer"),
    ):
        found[name] = variable("layer", (1 + (chance >= reached).sum(-1)) / (1 + null.shape[1]), text)
    found["null_mean"] = variable("layer", null.mean(-1), "mean predictivity of permuted responses")
    return found.assign_coords(layer=np.arange(len(parts))).assign_attrs(permutations=null.shape[1])
