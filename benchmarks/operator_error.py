"""Error of the operator against the model it was expanded from, by family and order, on every data set.

    python benchmarks/operator_error.py            # all data sets, about 10 minutes on one core
    python benchmarks/operator_error.py --smallest # seconds

Each model is trained with the default recipe and seed 0, expanded on its training set, and compared with itself on the test set. The
golden model is one that the public S4D code trained, of the reference architecture: its orders are conditional, and its logits are those
that `explain` cuts. SelfRegulationSCP1 and the golden model are read from the folder that OPLENS_TEST_DATA names.
"""

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import RESULTS, data_sets, write_json
from oplens.data import SequenceData, noisy_sinusoids
from oplens.estimator import S4DClassifier
from oplens.explanation import Channels, ExplicitOperator, expand
from oplens.models import S4D, Preprocessing, load_checkpoint

EXPANSIONS = {
    "taylor": (1, 2, 4, 8),
    "hermite": (1, 2, 4, 8),
    "empirical": (1, 2, 4, 8),
    "chebyshev": (2, 4, 8, 16),
}
Row = dict[str, float]


def splits(smallest: bool) -> dict[str, tuple[SequenceData, SequenceData]]:
    """Training and test set of every name."""
    train, test = data_sets("train"), data_sets("test")
    names = ["BasicMotions"] if smallest else list(train)
    sets = {name: (train[name], test[name]) for name in names}
    return sets if smallest else {"15/20 Hz": (noisy_sinusoids(seed=0), noisy_sinusoids(seed=1)), **sets}


def trained_models(smallest: bool) -> Iterator[tuple[str, S4D, SequenceData, SequenceData]]:
    """Yield (name, model, training set, test set); the golden model last, where its file is known."""
    parameters: dict[str, Any] = {"max_epochs": 2, "d_model": 8} if smallest else {}
    sets = splits(smallest)
    for name, (train, test) in sets.items():
        start = time.perf_counter()
        classifier = S4DClassifier(random_state=0, **parameters).fit(train)
        score = classifier.score(test)
        print(f"{name}: trained in {time.perf_counter() - start:.0f} s, test accuracy {score:.3f}", flush=True)
        yield name, classifier.model_, train, test
    if "SelfRegulationSCP1" in sets:
        train, test = sets["SelfRegulationSCP1"]
        path = Path(os.environ["OPLENS_TEST_DATA"]) / "golden" / "s4d_reference" / "scp1_1layer.pth"
        scaled = Preprocessing.standardise(train.X, train.lengths)
        model = load_checkpoint(path, preprocessing=scaled, channels=train.channels, classes=train.classes)
        yield "golden model (reference architecture)", model, train, test


def errors(op: ExplicitOperator, test: SequenceData, logits: np.ndarray[Any, Any]) -> Row:
    """Compare the operator's logits with the model's."""
    plain = op.model.config.architecture == "plain"
    own = op(test) if plain else op.explain(test, by=Channels())["truncated_logits"].values[-1]
    own_margin, margin = (value - value.mean(1, keepdims=True) for value in (own, logits))
    spread = ((margin - margin.mean(0)) ** 2).sum()
    apart = np.abs(own - logits)
    return {
        "agreement": float((own.argmax(1) == logits.argmax(1)).mean()),
        "margin_r2": float(1 - ((own_margin - margin) ** 2).sum() / spread),
        "median_error": float(np.median(apart)),
        "largest_error": float(apart.max()),
        "median_logit": float(np.median(np.abs(logits))),
    }


def compare(model: S4D, train: SequenceData, test: SequenceData, smallest: bool) -> dict[str, Row]:
    """Errors by "family order"."""
    rows: dict[str, Row] = {}
    logits: np.ndarray[Any, Any] | None = None
    for family, orders in EXPANSIONS.items():
        for order in orders[: 1 if smallest else None]:
            op = expand(model, train, family=family, order=order)
            if logits is None:
                with torch.no_grad():
                    raw = torch.from_numpy(test.X).transpose(1, 2)
                    parts = zip(raw.split(16), torch.from_numpy(test.lengths).split(16), strict=True)
                    logits = torch.cat([op.model(x, steps) for x, steps in parts]).numpy()
            rows[f"{family} {order}"] = errors(op, test, logits)
    return rows


def markdown(results: dict[str, dict[str, Row]]) -> str:
    """Return the table of docs/accuracy.md: agreement, R^2, median and largest error of every family and order."""
    names = list(results)
    lines = [f"| family, order | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for key in next(iter(results.values())):
        cells = []
        for name in names:
            row = results[name][key]
            cells.append(
                f"{row['agreement']:.3f} / {_short(row['margin_r2'])}; {_short(row['median_error'])}, {_short(row['largest_error'])}"
            )
        lines.append(f"| {key} | {' | '.join(cells)} |")
    logit = [f"{next(iter(results[name].values()))['median_logit']:.2f}" for name in names]
    return "\n".join([*lines, f"| median abs logit | {' | '.join(logit)} |"])


def _short(value: float) -> str:
    if abs(value) > 100:
        return "> 100" if value > 0 else "< -100"
    return f"{value:.2g}" if abs(value) < 0.0995 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def main() -> None:
    """Run, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--smallest", action="store_true", help="two epochs, BasicMotions only, lowest orders; writes nothing"
    )
    smallest = parser.parse_args().smallest
    torch.set_num_threads(1)
    results: dict[str, dict[str, Row]] = {}
    for name, model, train, test in trained_models(smallest):
        results[name] = compare(model, train, test, smallest)
        if not smallest:
            write_json({"results": results, "torch": torch.__version__}, RESULTS / "operator_error.json")
    print(markdown(results))


if __name__ == "__main__":
    main()
