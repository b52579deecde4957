"""Choose the default recipe of S4DClassifier by cross-validation on training sets; test sets are not read.

    python benchmarks/choose_recipe.py            # 12 recipes x 3 folds x 3 data sets, about 20 minutes on one core
    python benchmarks/choose_recipe.py --smallest # two recipes on a few cases, seconds

SelfRegulationSCP1 is read from the folder that OPLENS_TEST_DATA names, the others ship with aeon. A recipe's score on a data set
is the mean accuracy over the same 3 stratified folds; recipes are ranked per data set and chosen by mean rank, ties by mean
accuracy.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from sklearn.model_selection import StratifiedKFold

from common import RESULTS, training_sets, write_json
from oplens.data import SequenceData
from oplens.estimator import S4DClassifier

# Every recipe says all it varies, so that a change of the defaults changes no row.
BASE: dict[str, Any] = {
    "d_model": 32,
    "d_state": 64,
    "dropout": 0.0,
    "dt_max": 0.1,
    "lr": 0.01,
    "lr_ssm": 0.001,
    "weight_decay": 0.01,
    "label_smoothing": 0.1,
    "max_epochs": 60,
    "batch_size": 16,
    "patience": 20,
}
RECIPES: dict[str, dict[str, Any]] = {
    "base": {},
    "no label smoothing": {"label_smoothing": 0.0},
    "faster poles": {"lr_ssm": 0.003},
    "faster poles, 64 features": {"lr_ssm": 0.003, "d_model": 64},
    "faster poles, 64 features, dropout": {"lr_ssm": 0.003, "d_model": 64, "dropout": 0.1},
    "faster poles, batches of 8": {"lr_ssm": 0.003, "batch_size": 8},
    "faster poles, 100 epochs": {"lr_ssm": 0.003, "max_epochs": 100},
    "faster poles, 16 states": {"lr_ssm": 0.003, "d_state": 32},
    "faster poles, wider steps": {"lr_ssm": 0.003, "dt_max": 0.3},
    "faster poles, all cases": {"lr_ssm": 0.003, "patience": None},
    "faster poles, 64 features, all cases": {"lr_ssm": 0.003, "d_model": 64, "patience": None},
    "poles at full rate, dropout, decay": {"lr_ssm": 0.01, "dropout": 0.1, "weight_decay": 0.05},
}
FOLDS = 3


def fold_accuracies(data: SequenceData, recipe: dict[str, Any], folds: int = FOLDS) -> list[float]:
    """Accuracy on each held-out fold of a training set."""
    assert data.y is not None
    splits = StratifiedKFold(folds, shuffle=True, random_state=0).split(np.zeros(data.n_cases), data.y)
    scores = []
    for train, held_out in splits:
        classifier = S4DClassifier(**{**BASE, **recipe}, random_state=0).fit(data.select(train))
        scores.append(classifier.score(data.select(held_out)))
    return scores


def table(scores: dict[str, dict[str, list[float]]]) -> tuple[str, list[str]]:
    """Lines to print, and the recipes from best to worst."""
    names = list(scores)
    sets = list(next(iter(scores.values())))
    means = np.array([[np.mean(scores[name][data]) for data in sets] for name in names])
    ranks = rankdata(-means.round(12), axis=0).mean(1)
    order = sorted(range(len(names)), key=lambda i: (ranks[i], -means[i].mean()))
    width = max(map(len, names))
    lines = [f"{'recipe':{width}}  " + "  ".join(f"{data:>18}" for data in sets) + "  mean rank"]
    for i in order:
        cells = (f"{np.mean(scores[names[i]][d]):.3f} +- {np.std(scores[names[i]][d], ddof=1):.3f}" for d in sets)
        lines.append(f"{names[i]:{width}}  " + "  ".join(f"{c:>18}" for c in cells) + f"  {ranks[i]:9.2f}")
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
        for data_name, data in sets.items():
            start = time.perf_counter()
            scores[name][data_name] = fold_accuracies(data, recipe)
            print(
                f"{name}, {data_name}: {np.mean(scores[name][data_name]):.3f} ({time.perf_counter() - start:.0f} s)",
                flush=True,
            )
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
