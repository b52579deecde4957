"""Choose the default recipe of S4DClassifier by cross-validation on training sets; test sets are not read.

    python benchmarks/choose_recipe.py            # 12 recipes x 3 folds x 6 columns, about 20 minutes on one core
    python benchmarks/choose_recipe.py --smallest # two recipes on a few cases, seconds

SelfRegulationSCP1 is read from the folder that OPLENS_TEST_DATA names, the others ship with aeon. Each data set
is divided twice into 3 folds with the same share of every class: at random, and by drift, where the cases are sorted along the
direction in which channel means vary most within classes, so that the cases held out have other offsets than those trained on, as
another day's recording has. A recipe's score is its mean accuracy over the 3 folds; the
recipe with the highest mean over the columns is chosen. The mean rank is shown beside it; it decides nothing, because most rows
of the small sets differ by a case or two.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedKFold

from common import RESULTS, training_sets, write_json
from oplens.data import SequenceData
from oplens.estimator import S4DClassifier

# Every recipe says all it varies, so that a change of the defaults changes no row.
BASE: dict[str, Any] = {
    "d_model": 64,
    "d_state": 64,
    "dropout": 0.0,
    "dt_max": 0.1,
    "lr": 0.01,
    "lr_ssm": 0.003,
    "weight_decay": 0.01,
    "label_smoothing": 0.1,
    "offset_jitter": 0.5,
    "max_epochs": 60,
    "batch_size": 16,
    "patience": None,
}
RECIPES: dict[str, dict[str, Any]] = {
    "base": {},
    "no jitter": {"offset_jitter": 0.0},
    "no jitter, dropout": {"offset_jitter": 0.0, "dropout": 0.2},
    "no jitter, early stopping": {"offset_jitter": 0.0, "patience": 20},
    "half the jitter": {"offset_jitter": 0.25},
    "dropout": {"dropout": 0.2},
    "wider steps": {"dt_max": 0.3},
    "no label smoothing": {"label_smoothing": 0.0},
    "100 epochs": {"max_epochs": 100},
    "twice the jitter, 100 epochs": {"offset_jitter": 1.0, "max_epochs": 100},
    "half the jitter, wider steps": {"offset_jitter": 0.25, "dt_max": 0.3},
    "32 features": {"d_model": 32},
}
FOLDS = 3

Fold = tuple[NDArray[np.int64], NDArray[np.int64]]


def random_folds(data: SequenceData) -> list[Fold]:
    """Stratified, shuffled."""
    assert data.y is not None
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(np.zeros(data.n_cases), data.y))


def drift_folds(data: SequenceData) -> list[Fold]:
    """Folds by offset: low, middle and high thirds of every class along the main direction of its channel means."""
    means = data.means()
    for label in data.classes:
        means[data.y == label] -= means[data.y == label].mean(axis=0)
    means /= means.std(axis=0)
    drift = means @ np.linalg.svd(means, full_matrices=False)[2][0]
    fold = np.empty(data.n_cases, dtype=np.int64)
    for label in data.classes:
        members = np.flatnonzero(data.y == label)
        for number, part in enumerate(np.array_split(members[np.argsort(drift[members])], FOLDS)):
            fold[part] = number
    return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(FOLDS)]


def fold_accuracies(data: SequenceData, folds: list[Fold], recipe: dict[str, Any]) -> list[float]:
    """Accuracy on each held-out fold of a training set."""
    scores = []
    for train, held_out in folds:
        classifier = S4DClassifier(**{**BASE, **recipe}, random_state=0).fit(data.select(train))
        scores.append(classifier.score(data.select(held_out)))
    return scores


KINDS = {"random": random_folds, "drift": drift_folds}


def table(scores: dict[str, dict[str, list[float]]]) -> tuple[str, list[str]]:
    """Lines to print, and the recipes from best to worst."""
    names = list(scores)
    sets = list(next(iter(scores.values())))
    means = np.array([[np.mean(scores[name][data]) for data in sets] for name in names])
    ranks = rankdata(-means.round(12), axis=0).mean(1)
    order = sorted(range(len(names)), key=lambda i: (-means[i].mean(), ranks[i]))
    width = max(map(len, names))
    lines = [
        f"{'recipe':{width}}  "
        + "  ".join(f"{data.replace('SelfRegulation', ''):>22}" for data in sets)
        + "  mean rank"
    ]
    for i in order:
        cells = (f"{np.mean(scores[names[i]][d]):.3f} +- {np.std(scores[names[i]][d], ddof=1):.3f}" for d in sets)
        lines.append(
            f"{names[i]:{width}}  " + "  ".join(f"{c:>22}" for c in cells) + f"  {means[i].mean():.3f}  {ranks[i]:9.2f}"
        )
    return "\n".join(lines), [names[i] for i in order]


def main() -> None:
    """Run, print the table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smallest", action="store_true", help="two recipes on a few cases of one data set")
    parser.add_argument("--out", type=Path, default=None, help="where the JSON goes")
    arguments = parser.parse_args()
    recipes, sets = RECIPES, training_sets()
    if arguments.smallest:
        recipes = {name: {**RECIPES[name], "max_epochs": 2, "d_model": 8} for name in ("base", "no label smoothing")}
        sets = {"BasicMotions": sets["BasicMotions"]}
    scores: dict[str, dict[str, list[float]]] = {}
    for name, recipe in recipes.items():
        scores[name] = {}
        for (data_name, data), (kind, folds) in product(sets.items(), KINDS.items()):
            start = time.perf_counter()
            column = f"{data_name}, {kind}"
            scores[name][column] = fold_accuracies(data, folds(data), recipe)
            seconds = time.perf_counter() - start
            print(f"{name}; {column}: {np.mean(scores[name][column]):.3f} ({seconds:.0f} s)", flush=True)
    text, order = table(scores)
    print(text)
    if arguments.smallest and arguments.out is None:
        return
    write_json(
        {
            "base": BASE,
            "recipes": recipes,
            "fold_accuracies": scores,
            "chosen": {**BASE, **recipes[order[0]]},
            "order": order,
            "folds": FOLDS,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
        arguments.out or RESULTS / "recipe.json",
    )
    print(json.dumps({**BASE, **recipes[order[0]]}))


if __name__ == "__main__":
    main()
