"""How few waves decide as the model does, on every data set, and which way of ranking them keeps the right ones.

    python benchmarks/reduction.py            # all data sets, about 10 minutes on one core
    python benchmarks/reduction.py --smallest # seconds

Ranks compared: the library's (standard deviation over training cases of a wave's full share), its mean absolute share, and what leaving
the wave alone out of the model changes (standard deviation over training cases of the change). Models are those of operator_error.py;
smaller ones are made on training sets and measured on test sets.
"""

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from common import RESULTS, write_json
from operator_error import trained_models
from oplens.data import SequenceData
from oplens.explanation import ExplicitOperator, Waves, expand
from oplens.explanation.reduction.reduction import Reduction, run
from oplens.explanation.reduction.reduction_curve import reduction_curve
from oplens.explanation.targets import default_target
from oplens.explanation.training import batches
from oplens.operators import diagonal
from oplens.operators.polynomial import gelu

KEPT = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CASES = 64  # training cases for the third rank: it forms every wave
Array = np.ndarray[Any, Any]


def mean_sizes(op: ExplicitOperator, cases: SequenceData) -> Array:
    """Mean absolute full share of every wave, (1, d_model, P)."""
    share = np.abs(op.explain(cases, by=Waves())["full_share"])
    return np.asarray(share.mean([name for name in share.dims if name not in ("feature", "wave")]).values)[None]


def removal_spreads(op: ExplicitOperator, cases: SequenceData) -> Array:
    """Standard deviation over cases of what the model without that wave alone decides otherwise, (1, d_model, P)."""
    directions = default_target(op.model.config.classes).directions(op.model.config.classes)
    readout = directions @ op.model.decoder.weight.numpy()
    changes = []
    for _, batch in batches(op.model, cases.X, cases.lengths, directions):
        z, pool = batch.z[:, :, None], batch.pool[:, None, None]
        total = torch.zeros(*batch.z.shape[:2], op.system.n_modes, dtype=torch.float64)
        for start, states in diagonal.states(op.system, batch.u_all):
            steps = slice(start, start + states.shape[-1])
            without = gelu(z[..., steps] - diagonal.waves(op.system, states))
            total += ((gelu(z[..., steps]) - without) * pool[..., steps]).sum(-1)
        changes.append(total.numpy())
    spread = np.concatenate(changes).std(0)
    return (np.sqrt((readout**2).mean(0))[:, None] * spread)[None]


def measured(reduction: Reduction, test: SequenceData, refit: bool, kept: tuple[int, ...]) -> list[dict[str, float]]:
    """Accuracy, agreement and margin R^2 of every size."""
    full = run(reduction.source, test)[1]
    classes = np.array(reduction.source.config.classes)
    centred = full - full.mean(1, keepdims=True)
    rows = []
    for k in kept:
        model = reduction.model(k, refit)
        logits = run(model, test)[1]
        apart = ((logits - logits.mean(1, keepdims=True) - centred) ** 2).sum()
        rows.append(
            {
                "waves": k,
                "features": model.config.d_model,
                "accuracy": float((classes[logits.argmax(1)] == test.y).mean()),
                "agreement": float((logits.argmax(1) == full.argmax(1)).mean()),
                "margin_r2": float(1 - apart / ((centred - centred.mean(0)) ** 2).sum()),
            }
        )
    return rows


def compare(model: Any, train: SequenceData, test: SequenceData, smallest: bool) -> dict[str, Any]:
    """Curves by "rank" and "rank, refitted", and the frequencies of the library's first eight waves."""
    op = expand(model, train)
    base = Reduction.of(op, None, "benchmark")
    some = base.cases.select(np.arange(0, base.cases.n_cases, max(1, base.cases.n_cases // CASES)))
    ranks = {
        "spread of shares": base.importance,
        "mean size of shares": mean_sizes(op, base.cases),
        "change when left out": removal_spreads(op, some),
    }
    kept = KEPT[:2] if smallest else KEPT
    curves = {}
    for name, importance in ranks.items():
        # Skips stay for their own spread where that of the weakest wave kept is lower, whatever the waves are ranked by.
        order = np.argsort(-importance, axis=None, kind="stable")
        other = replace(base, order=order)
        for refit in (False, True):
            curves[f"{name}{', refitted' if refit else ''}"] = measured(other, test, refit, kept)
    first = reduction_curve(op, test, kept=[1])["frequency"].values[:8]
    return {"curves": curves, "frequencies": first.tolist()}


def main() -> None:
    """Run, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--smallest", action="store_true", help="two epochs, BasicMotions only, two sizes; writes nothing"
    )
    smallest = parser.parse_args().smallest
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, model, train, test in trained_models(smallest):
        if model.config.architecture != "plain":
            continue
        results[name] = compare(model, train, test, smallest)
        print(f"{name}: most important waves at {', '.join(f'{f:.3g}' for f in results[name]['frequencies'])}")
        print(f"{name}: accuracy, agreement with the full model, margin R^2")
        for rank, rows in results[name]["curves"].items():
            cells = (f"{int(r['waves'])}: {r['accuracy']:.3f} {r['agreement']:.3f} {r['margin_r2']:.2f}" for r in rows)
            print(f"  {rank:32} {' | '.join(cells)}", flush=True)
        if not smallest:
            write_json({"results": results, "torch": torch.__version__}, RESULTS / "reduction.json")


if __name__ == "__main__":
    main()
