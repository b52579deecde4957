"""Test accuracy of models trained as rings beside plain ones, on 15 against 20 Hz in noise.

    python benchmarks/rings.py            # 20 seeds, about four minutes on one core
    python benchmarks/rings.py --smallest # seconds

Each seed draws its own training cases and weights; all kinds of model share them, and one test set, so that differences are paired.
Intervals are Student's, 95 % over seeds.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student

from common import RESULTS, write_json
from oplens.data import noisy_sinusoids
from oplens.estimator import S4DClassifier

SIGNALS: dict[str, Any] = {"n_timepoints": 100, "noise": 2.5}
RECIPE: dict[str, Any] = {"d_model": 32, "d_state": 64, "max_epochs": 40}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, S4D-Inv": {"initialisation": "inv"},
    "plain, S4D-Real": {"initialisation": "real"},
    "coupling to 1 neighbour": {"coupling": 1},
    "coupling to 4 neighbours": {"coupling": 4},
    "coupling to 16 neighbours": {"coupling": 16},
    "coupling to all 32": {"coupling": 32},
    "plain, phase delay .002": {"phase_delay": 0.002},
    "coupling to 1 neighbour, phase delay .002": {"coupling": 1, "phase_delay": 0.002},
}


def run(kind: dict[str, Any], seeds: range, n_train: int, n_test: int, **recipe: Any) -> dict[str, Any]:
    """Accuracies over seeds of one kind of model, and where its delays ended."""
    test = noisy_sinusoids(n_cases=n_test, seed=1000, **SIGNALS)
    accuracies, delays, start = [], [], time.perf_counter()
    for seed in seeds:
        model = S4DClassifier(random_state=seed, **recipe, **kind).fit(
            noisy_sinusoids(n_cases=n_train, seed=seed, **SIGNALS)
        )
        accuracies.append(model.score(test))
        with torch.no_grad():
            delays += model.model_.layer(0).phase_delay().tolist()
    result = {"accuracies": accuracies, "seconds_per_fit": round((time.perf_counter() - start) / len(seeds), 2)}
    return result | ({"delays": [min(delays), float(np.median(delays)), max(delays)]} if "phase_delay" in kind else {})


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half-width of the 95 % interval."""
    n = len(values)
    half = student.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5 if n > 1 else float("nan")
    return float(np.mean(values)), float(half)


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """Return the table of docs/accuracy.md."""
    lines = ["| rings | accuracy | minus plain, paired |", "|---|---|---|"]
    plain = results["plain"]["accuracies"]
    for name, result in results.items():
        mean, half = interval(result["accuracies"])
        apart, width = interval([a - b for a, b in zip(result["accuracies"], plain, strict=True)])
        difference = "" if name == "plain" else f"{apart:+.3f} ± {width:.3f}"
        lines.append(f"| {name} | {mean:.3f} ± {half:.3f} | {difference} |")
    return "\n".join(lines)


def main() -> None:
    """Run, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smallest", action="store_true", help="one seed, one epoch, 20 cases; writes nothing")
    smallest = parser.parse_args().smallest
    seeds, sizes = range(1 if smallest else 20), (20, 20) if smallest else (100, 1000)
    recipe = RECIPE | ({"max_epochs": 1} if smallest else {})
    results = {}
    for name, kind in KINDS.items():
        results[name] = run(kind, seeds, *sizes, **recipe)
        print(f"{name}: {interval(results[name]['accuracies'])[0]:.3f}", flush=True)
    if not smallest:
        software = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        settings = {"signals": SIGNALS, "recipe": recipe, "n_train": sizes[0], "n_test": sizes[1]}
        write_json({**settings, "seeds": list(seeds), "results": results, **software}, RESULTS / "rings.json")
    print(markdown(results))


if __name__ == "__main__":
    main()
