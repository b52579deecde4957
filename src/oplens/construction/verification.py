"""Running a constructed model on every input of its function, or on a stratified sample, in several dtypes and orders of summation."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.construction.function import FunctionTable
from oplens.construction.journal import Journal, verification_key
from oplens.construction.weights import DTYPES, Entries, dtype_name, map_entries, set_map
from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.theory.statement import count

BUDGET = 1e10  # inputs times hidden units up to which every input is run
_STRATA = 256
_VALUES_AT_ONCE = 2**18  # of the widest tensor before the last layer: it stays in the cache, which is four times faster


@dataclass(frozen=True)
class Check:
    """One pass over the inputs.

    Parameters
    ----------
    dtype : str
    order : str
        "as built", or "shuffled k": hidden units, residual coordinates, head coordinates and, in encoders, keys in another order.
    inputs, errors : int
        Inputs run; those whose output is not, to the last bit, the function's value rounded to the dtype.
    largest_error : float
        max abs(output - f), rounding of f included; NaN where an output is NaN.
    first_wrong : tuple of int or None
        The first input with an error.
    """

    dtype: str
    order: str
    inputs: int
    errors: int
    largest_error: float
    first_wrong: tuple[int, ...] | None


@dataclass(frozen=True)
class Verification:
    """What was run and what was found.

    Parameters
    ----------
    mode : {"exhaustive", "sampled"}
    claim : {"exact", "measured"}
        Of the counts: about all inputs, or about those that were drawn.
    function : str
    total_inputs, hidden_units : int
        V^n, and hidden units of all layers.
    budget : float
        Inputs times hidden units that were allowed per pass.
    strata : int
        Sampled: groups of inputs, by output value, or by first symbols where there are too many values; 1 when exhaustive.
    seed : int
    checks : tuple of Check
    """

    mode: str
    claim: str
    function: str
    total_inputs: int
    hidden_units: int
    budget: float
    strata: int
    seed: int
    checks: tuple[Check, ...]

    @property
    def errors(self) -> int:
        """Wrong outputs in all passes together."""
        return sum(check.errors for check in self.checks)

    @property
    def passed(self) -> bool:
        """No output was wrong."""
        return self.errors == 0

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return {**dataclasses.asdict(self), "errors": self.errors, "passed": self.passed}

    def __str__(self) -> str:
        """All of it as lines of text."""
        share = "all" if self.mode == "exhaustive" else f"a stratified sample ({self.strata} strata, seed {self.seed})"
        lines = [f"{self.function}: {share} of {self.total_inputs:,} inputs, {self.hidden_units:,} hidden units"]
        for check in self.checks:
            wrong = "" if check.first_wrong is None else f", first at {check.first_wrong}"
            lines.append(
                f"  {check.dtype}, {check.order}: {check.errors:,} of {check.inputs:,} wrong{wrong}; "
                f"largest error {check.largest_error:.3g}"
            )
        return "\n".join(lines)


def verify(
    model: Transformer,
    table: FunctionTable,
    dtypes: Sequence[Any] | None = None,
    *,
    budget: float = BUDGET,
    shuffles: int = 1,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    resume: str | Path | None = None,
) -> Verification:
    """Run a model against the function that it was built from.

    Parameters
    ----------
    model : Transformer
        Reads the last position.
    table : FunctionTable
    dtypes : sequence of str or torch.dtype, optional
        The weights are converted to each; omitted: the model's own.
    budget : float
        Every input is run while inputs times hidden units stay within it; beyond, as many as it allows (at least one per stratum) are
        drawn without replacement, as many from each group of inputs with one output value.
    shuffles : int
        Passes in a shuffled order of summation, after one in the order as built.
    seed : int
        Of sample and orders.
    progress : callable, optional
        Called with (inputs done, inputs in all), all passes together.
    resume : path, optional
        A file that keeps the counts of a verification that takes over a minute; the same verification, once interrupted, continues from
        it. It is left there; delete it when the result is safe.

    Returns
    -------
    Verification

    Raises
    ------
    ArgumentError
        If the model does not take the table's inputs or give its outputs, before anything runs.

    Notes
    -----
    Accuracy: *exact* when exhaustive, *measured* when sampled. Cost: O((1 + shuffles) (inputs) (hidden units)) per dtype.

    Examples
    --------
    >>> from oplens.construction.lookup import build_lookup
    >>> table = FunctionTable.from_family("majority", vocabulary=3, length=3)
    >>> found = verify(build_lookup(table)[0], table, ["float64", "bfloat16"])
    >>> found.mode, [check.inputs for check in found.checks], found.errors
    ('exhaustive', [27, 27, 27, 27], 0)
    """
    names, seed = _check(model, table, dtypes, budget, shuffles), count("verify", "seed", seed, 0)
    hidden = sum(layer.d_ffn for layer in model.config.layers)
    rows, strata = _choose_rows(table, hidden, budget, seed)
    total, done, checks = len(rows) * len(names) * (1 + shuffles), 0, []
    key = "" if resume is None else verification_key(model, table, (names, budget, shuffles, seed))
    journal = Journal(None if resume is None else Path(resume), key)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    try:
        for name in names:
            converted = copy.deepcopy(model).to(DTYPES[name]).eval().requires_grad_(False)
            for index in range(1 + shuffles):
                generator = np.random.default_rng([seed, index])
                run = converted if index == 0 else shuffle_order(converted, generator)
                keys = None if index == 0 or not _keys_may_move(model) else generator.permutation(table.length)
                order = "as built" if index == 0 else f"shuffled {index}"
                checks.append(_run(run, table, name, order, rows, keys, advance, journal))
    finally:
        journal.write()
    exhaustive = len(rows) == len(table)
    return Verification(
        mode="exhaustive" if exhaustive else "sampled",
        claim="exact" if exhaustive else "measured",
        function=table.name,
        total_inputs=len(table),
        hidden_units=hidden,
        budget=float(budget),
        strata=strata,
        seed=seed,
        checks=tuple(checks),
    )


def shuffle_order(model: Transformer, generator: np.random.Generator) -> Transformer:
    """The same function with hidden units, residual coordinates and head coordinates in another order, so that sums run otherwise.

    The positions' own coordinates come first in every model and stay.
    """
    config, first = model.config, 2 * model.config.n_frequencies if model.config.positions == "own" else 0
    model = copy.deepcopy(model)
    residual = np.concatenate((np.arange(first), first + generator.permutation(config.d_model - first)))
    token: Any = model.embedding.token
    token.weight.data = token.weight.data[:, torch.from_numpy(np.argsort(residual[first:]))]
    for index, shape in enumerate(config.layers):
        block: Any = model.block(index)
        if shape.n_heads:
            heads, values = (_within_heads(generator, shape.n_heads, size) for size in (shape.d_head, shape.d_value))
            _permute(block.attention.query, heads, residual)
            _permute(block.attention.key, heads, residual)
            _permute(block.attention.value, values, residual)
            _permute(block.attention.output, residual, values)
        if shape.d_ffn:
            units = generator.permutation(shape.d_ffn)
            _permute(block.feedforward.up, units, residual)
            _permute(block.feedforward.down, residual, units)
    _permute(model.readout, np.arange(config.d_output), residual)
    return model


def _within_heads(generator: np.random.Generator, n_heads: int, size: int) -> NDArray[np.int64]:
    return np.concatenate([head * size + generator.permutation(size) for head in range(n_heads)])


def _permute(layer: Any, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
    """Move row i to rows[i] and column j to columns[j]; values keep their dtype, so nothing is rounded."""
    r, c, values = map_entries(layer)
    entries = Entries(rows[r.numpy()], columns[c.numpy()], values.double().numpy())
    bias = None
    if layer.bias is not None:
        bias = np.empty(len(rows))
        bias[rows] = layer.bias.detach().double().numpy()
    if isinstance(layer, torch.nn.Linear):
        layer.weight.data.zero_()
    set_map(layer, entries, bias)
    layer.requires_grad_(False)


def _check(model: Any, table: Any, dtypes: Sequence[Any] | None, budget: float, shuffles: int) -> list[str]:
    """Names of the dtypes to run."""
    if not isinstance(model, Transformer) or not isinstance(table, FunctionTable):
        raise ArgumentError(
            f"verify({type(model).__name__}, {type(table).__name__}): expected a Transformer and the FunctionTable it was built from."
        )
    config = model.config
    wrong = (config.vocabulary, config.d_output) != (table.vocabulary, table.outputs)
    if wrong or (config.max_length or table.length) < table.length or config.readout != "last":
        raise ArgumentError(
            f"verify: the model maps {config.vocabulary} symbols to {config.d_output} numbers (readout {config.readout!r}), the table "
            f"{table.vocabulary} symbols to {table.outputs} numbers at length {table.length}; give the table that it was built from."
        )
    if shuffles and (config.norm != "none" or config.tied or config.positions not in ("own", "none")):
        raise ArgumentError(
            "verify: the order of sums is shuffled in models without norms, tied weights and added positions only, as constructions are; "
            "give shuffles=0."
        )
    if isinstance(shuffles, bool) or not isinstance(shuffles, int) or shuffles < 0:
        raise ArgumentError(f"verify(shuffles={shuffles!r}): a whole number of at least 0 is needed.")
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not budget > 0:
        raise ArgumentError(f"verify(budget={budget!r}): a number above 0 is needed, inputs times hidden units.")
    if dtypes is None:
        return [dtype_name("verify", next(model.parameters()).dtype)]
    if isinstance(dtypes, (str, torch.dtype)) or not dtypes:
        raise ArgumentError(f"verify(dtypes={dtypes!r}): give a list of dtypes, such as ['float64', 'float16'].")
    names = [dtype_name("verify", dtype) for dtype in dtypes]
    largest = float(np.abs(table.values).max())
    for name in names:
        end = torch.finfo(DTYPES[name]).max
        if largest > end:
            raise ArgumentError(
                f"verify: the function's values reach {largest:.6g}, {name} ends at {end:.6g}; leave that dtype out, or scale the values."
            )
    return names


def _choose_rows(table: FunctionTable, hidden: int, budget: float, seed: int) -> tuple[NDArray[np.int64], int]:
    """All rows, or a sample with as many from every stratum as the budget allows; and the number of strata."""
    total = len(table)
    if total * hidden <= budget:
        return np.arange(total), 1
    _, stratum = np.unique(table.values, axis=0, return_inverse=True)
    stratum = stratum.ravel()
    if stratum.max() >= _STRATA:
        stratum = np.arange(total) * _STRATA // total
    groups = np.split(np.argsort(stratum, kind="stable"), np.cumsum(np.bincount(stratum))[:-1])
    groups = sorted((group for group in groups if len(group)), key=len)
    generator, left, chosen = np.random.default_rng(seed), max(len(groups), int(budget // hidden)), []
    for index, group in enumerate(groups):
        # Small groups are taken whole, and what they leave goes to the larger ones.
        take = min(len(group), max(1, left // (len(groups) - index)))
        chosen.append(generator.choice(group, take, replace=False))
        left -= take
    return np.sort(np.concatenate(chosen)), len(groups)


def _keys_may_move(model: Transformer) -> bool:
    """Whether positions, once embedded, may stand in any order: nothing but the readout tells them apart."""
    return not model.config.causal and model.config.last_attention >= 0


def _run(
    model: Transformer,
    table: FunctionTable,
    dtype: str,
    order: str,
    rows: NDArray[np.int64],
    keys: NDArray[np.int64] | None,
    advance: Callable[[int], None],
    journal: Journal,
) -> Check:
    """One pass, from where the journal says that it was."""
    config, counts = model.config, journal.passes.get(f"{dtype}, {order}", {})
    done, errors, largest = counts.get("inputs", 0), counts.get("errors", 0), counts.get("largest_error", 0.0)
    first = None if counts.get("first_wrong") is None else tuple(counts["first_wrong"])
    wide = max([config.d_model, *(layer.d_ffn for layer in config.layers[: config.last_attention])])
    step = max(1, min(2**14, _VALUES_AT_ONCE // (wide * table.length)))
    if done:
        advance(done)
    for start in range(done, len(rows), step):
        part = rows[start : start + step]
        tokens = torch.from_numpy(table.inputs_at(part))
        with torch.no_grad():
            output = model(tokens) if keys is None else _forward(model, tokens, keys)
        expected = torch.tensor(table.values[part])
        wrong = (output != expected.to(output.dtype)).any(1)
        difference = float((output.double() - expected).abs().max())
        largest = float(np.maximum(largest, difference))  # NaN stays
        if first is None and bool(wrong.any()):
            first = tuple(tokens[int(wrong.nonzero()[0])].tolist())
        errors += int(wrong.sum())
        kept = {"inputs": start + len(part), "errors": errors, "largest_error": largest, "first_wrong": first}
        journal.keep(f"{dtype}, {order}", kept)
        advance(len(part))
    return Check(dtype, order, len(rows), errors, largest, first)


def _forward(model: Transformer, tokens: Tensor, keys: NDArray[np.int64]) -> Tensor:
    """The model's output with its positions, once embedded, standing in another order."""
    hidden = model.embedding(tokens, None)[:, torch.from_numpy(keys)]
    last = int(np.flatnonzero(keys == tokens.shape[1] - 1)[0])
    for index in range(model.config.n_layers):
        hidden, _ = model.block(index).attend(hidden, None)
        if index == model.config.last_attention:
            hidden = hidden[:, last : last + 1]
        hidden = model.block(index).feed(hidden)
    readout: Any = model.readout
    output: Tensor = readout(hidden)[:, 0]
    return output
