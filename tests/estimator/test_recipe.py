"""The defaults are the recipe that the committed cross-validation chose."""

import json
from pathlib import Path

import numpy as np

from oplens.estimator import S4DClassifier

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_defaults_are_the_recipe_with_the_best_mean_accuracy():
    recorded = json.loads((RESULTS / "recipe.json").read_text())
    means = {
        name: np.mean([np.mean(folds) for folds in columns.values()])
        for name, columns in recorded["fold_accuracies"].items()
    }
    best = {**recorded["base"], **recorded["recipes"][max(means, key=means.get)]}
    assert best == recorded["chosen"]
    assert {name: S4DClassifier().get_params()[name] for name in best} == best
    assert len(means) <= 12


def test_the_accuracy_table_is_of_the_default_recipe_and_reaches_its_targets():
    recorded = json.loads((RESULTS / "accuracy.json").read_text())
    defaults = S4DClassifier().get_params()
    assert recorded["recipe"] == {name: defaults[name] for name in recorded["recipe"]}
    for result in recorded["results"].values():
        assert len(result["accuracies"]) == 5
        assert result["target"] is None or np.mean(result["accuracies"]) >= result["target"]
