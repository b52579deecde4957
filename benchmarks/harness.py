"""Two ways to compute the same thing, timed in turns in one run, so that whatever else the machine does falls on both.

Prints the ratio of the medians, with the quartiles of the ratios of neighbouring runs as its spread.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# The slow references are the tests' own oracles.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


@dataclass(frozen=True)
class Comparison:
    """Median seconds of both sides; `ratio` says how many times faster ours is."""

    reference: float
    ours: float
    quartiles: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Median of the reference over median of ours."""
        return self.reference / self.ours


def compare(
    name: str,
    reference: Callable[[], object],
    ours: Callable[[], object],
    *,
    repeats: int = 15,
    target: float | None = None,
) -> Comparison:
    """Time both sides alternately (one warm-up each), print one line and return the medians."""
    reference(), ours()
    slow, fast = [], []
    for _ in range(repeats):
        slow.append(_seconds(reference))
        fast.append(_seconds(ours))
    low, _, high = statistics.quantiles([a / b for a, b in zip(slow, fast, strict=True)], n=4)
    found = Comparison(statistics.median(slow), statistics.median(fast), (low, high))
    goal = "" if target is None else f", claimed at least {target:g}x: {'holds' if found.ratio >= target else 'MISSED'}"
    print(
        f"{name}: reference {1e3 * found.reference:.2f} ms, ours {1e3 * found.ours:.2f} ms, "
        f"{found.ratio:.1f}x (quartiles {low:.1f} to {high:.1f}, {repeats} runs each){goal}"
    )
    return found


def smallest() -> bool:
    """Read the command line: whether `--smallest` was given, sizes that take a moment to show that the script still runs.

    One thread unless `--threads` says otherwise: with more, any other work on the machine stalls whichever side is waiting at
    a barrier, and the ratio tells about that work.
    """
    import torch

    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--smallest", action="store_true", help="smallest sizes, no claims")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    return bool(arguments.smallest)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
