"""Test accuracy of S4DClassifier's default recipe, mean over seeds, beside the baselines on the same split.

    python benchmarks/accuracy.py            # 5 seeds, all data sets, about 15 minutes on one core
    python benchmarks/accuracy.py --smallest # seconds

SelfRegulationSCP1 is read from the folder that OPLENS_TEST_DATA names, the others ship with aeon. Nothing is chosen here: the
recipe is the library's default, which benchmarks/choose_recipe.py chose on training sets.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch

from common import RESULTS, data_sets, write_json
from oplens.baselines import evaluate
from oplens.data import SequenceData
from oplens.estimator import S4DClassifier

TARGETS = {"SelfRegulationSCP1": 0.85, "BasicMotions": 0.95, "JapaneseVowels": 0.93}


def seed_accuracies(train: SequenceData, test: SequenceData, seeds: range, **parameters: Any) -> list[float]:
    """Test accuracy of one model per seed."""
    return [S4DClassifier(random_state=seed, **parameters).fit(train).score(test) for seed in seeds]


def without_offset(data: SequenceData) -> SequenceData:
    """Every case minus its own channel means."""
    valid = np.arange(data.n_timepoints) < data.lengths[:, None, None]
    means = data.X.sum(axis=2, keepdims=True) / data.lengths[:, None, None]
    return SequenceData(
        X=(data.X - means) * valid,
        lengths=data.lengths,
        y=data.y,
        channels=data.channels,
        classes=data.classes,
        sampling_rate=data.sampling_rate,
        name=f"{data.name}, offsets removed",
        source=f"{data.source}, offsets removed",
    )


def compare(
    train: SequenceData, test: SequenceData, seeds: range, target: float | None, **parameters: Any
) -> dict[str, Any]:
    """Model and baselines on one split, as JSON."""
    start = time.perf_counter()
    accuracies = seed_accuracies(train, test, seeds, **parameters)
    seconds = (time.perf_counter() - start) / len(seeds)
    table = evaluate(train, test, model_accuracy=float(np.mean(accuracies)))
    return {
        "n_train": train.n_cases,
        "n_test": test.n_cases,
        "seeds": list(seeds),
        "accuracies": accuracies,
        "mean": float(np.mean(accuracies)),
        "sd": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        "target": target,
        "seconds_per_fit": round(seconds, 1),
        "baselines": {
            str(b): float(v) for b, v in zip(table["baseline"].values, table["accuracy"].values, strict=True)
        },
        "baselines_cv": {
            str(b): float(v) for b, v in zip(table["baseline"].values, table["cv_accuracy"].values, strict=True)
        },
        "hindsight_channels": table.attrs.get("hindsight_channels"),
        "headline": table.attrs["headline"],
    }


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """Return the table of docs/accuracy.md."""
    names = list(dict.fromkeys(b for result in results.values() for b in result["baselines"]))
    lines = [
        f"| | {' | '.join(results)} |",
        f"|---|{'---|' * len(results)}",
        "| **S4D, default recipe** | " + " | ".join(f"**{_spread(r)}**" for r in results.values()) + " |",
        "| lowest and highest seed | "
        + " | ".join(f"{min(r['accuracies']):.3f} to {max(r['accuracies']):.3f}" for r in results.values())
        + " |",
    ]
    for name in names:
        cells = [f"{r['baselines'][name]:.3f}" if name in r["baselines"] else "" for r in results.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("| test cases | " + " | ".join(str(r["n_test"]) for r in results.values()) + " |")
    return "\n".join(lines)


def _spread(result: dict[str, Any]) -> str:
    sd = result["sd"]
    return f"{result['mean']:.3f}" if sd is None else f"{result['mean']:.3f} ± {sd:.3f}"


def main() -> None:
    """Run, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--smallest", action="store_true", help="one seed, two epochs, BasicMotions only; writes nothing"
    )
    arguments = parser.parse_args()
    seeds = range(1 if arguments.smallest else 5)
    parameters: dict[str, Any] = {"max_epochs": 2, "d_model": 8} if arguments.smallest else {}
    train, test = data_sets("train"), data_sets("test")
    if arguments.smallest:
        train = {"BasicMotions": train["BasicMotions"]}
    recipe = {k: v for k, v in S4DClassifier().get_params().items() if k not in ("checkpoint_dir", "verbose")}
    software = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    results: dict[str, dict[str, Any]] = {}
    for name, target, remove_offset in runs(train):
        sets = (train[name], test[name])
        if remove_offset:
            # Channel means and their hindsight pair are zero here; what is left can only oscillate or drift within a case.
            sets = (without_offset(train[name]), without_offset(test[name]))
        key = f"{name}, offsets removed" if remove_offset else name
        results[key] = compare(*sets, seeds, target, remove_offset=remove_offset, **parameters)
        print(f"{key}: {_spread(results[key])} {results[key]['headline']}", flush=True)
        if not arguments.smallest:
            write_json({"recipe": recipe, "results": results, **software}, RESULTS / "accuracy.json")
    print(markdown(results))


def runs(train: dict[str, SequenceData]) -> list[tuple[str, float | None, bool]]:
    """Return (data set, target, whether offsets are removed): all sets as they are, then SelfRegulationSCP1 without offsets."""
    rows: list[tuple[str, float | None, bool]] = [(name, TARGETS[name], False) for name in train]
    return rows + [(name, None, True) for name in train if name == "SelfRegulationSCP1"]


if __name__ == "__main__":
    main()
