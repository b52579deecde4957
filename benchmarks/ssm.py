"""Claim: filters built as S4D leave at most the L1 error of balanced truncation, certified; Butterworth filters leave rounding only.

    python benchmarks/ssm.py            # about a minute on one core
    python benchmarks/ssm.py --smallest # seconds

Templates: a Gaussian-windowed chirp of 128 samples, and the mean class difference of slow cortical potentials (SelfRegulationSCP1, first
channel, 896 samples), in relation to their own L1 norms. "truncated": poles of balanced truncation with weights of least absolute error,
float64, without certificate; "built": build_ssm, certified, with all lags.
"""

import argparse
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from common import RESULTS, scp1, write_json
from oplens.construction.exponential_sums import hankel_waves, l1_error
from oplens.construction.filters import ExponentialSum, FiniteKernel
from oplens.construction.ssm import build_ssm
from oplens.construction.ssm_verification import verify_ssm

MODES = (2, 4, 8, 12, 16, 24, 32, 48, 64)
DESIGNS: dict[str, tuple[int, Any, float, str]] = {
    "low-pass, order 4, 40 Hz": (4, 40.0, 256.0, "low"),
    "low-pass, order 12, 40 Hz": (12, 40.0, 256.0, "low"),
    "band-pass, order 4, 8 to 13 Hz": (4, (8.0, 13.0), 256.0, "bandpass"),
    "high-pass, order 2, 0.1 Hz": (2, 0.1, 256.0, "high"),
}


def templates(smallest: bool) -> dict[str, NDArray[np.float64]]:
    """Return the templates in time."""
    t = np.arange(128)
    window = np.exp(-0.5 * ((t - 63.5) / 16) ** 2)
    found = {"chirp": window * np.cos(2 * np.pi * (0.02 * t + 0.08 / 128 * t * t))}
    data = None if smallest else scp1("train")
    if data is not None:
        y = np.array(data.y)
        first, second = sorted(set(y.tolist()))
        found["slow cortical potentials"] = data.X[y == second].mean(0)[0] - data.X[y == first].mean(0)[0]
    return found


def approximate(template: NDArray[np.float64], modes: int) -> dict[str, float]:
    """Return relative L1 errors and seconds of one template with so many modes."""
    kernel = FiniteKernel.matched(template)
    norm = float(np.abs(template).sum())
    values = np.array(kernel.values)
    truncated = l1_error(np.pad(values, (0, 5 * len(values))), hankel_waves(values, modes)) / norm
    row: dict[str, float] = {"modes": modes, "truncated": truncated}
    for dtype in ("float64", "float32"):
        start = time.perf_counter()
        certificate = build_ssm(kernel, n_modes=modes, dtype=dtype)[1]
        row[f"built, {dtype}"] = dict(certificate.error_parts)["kernels"] / norm
        row[f"seconds, {dtype}"] = round(time.perf_counter() - start, 2)
    return row


def exact(design: tuple[int, Any, float, str]) -> dict[str, dict[str, float]]:
    """Return the certified rounding and the largest measured error of a Butterworth filter, in both dtypes."""
    kernel, rows = ExponentialSum.butterworth(*design), {}
    order, cutoff, rate, band = design
    sos = signal.butter(order, cutoff, band, output="sos", fs=rate)
    x = np.random.default_rng(0).uniform(-1, 1, 1024).astype(np.float32)
    for dtype in ("float64", "float32"):
        model, certificate = build_ssm(kernel, dtype=dtype, length=1024)
        measured = max(check.largest_error for check in verify_ssm(model, kernel).checks)
        reference = signal.sosfilt(sos.astype(dtype), x.astype(dtype)).astype(np.float64)
        truth = np.convolve(kernel.response(1024), x.astype(np.float64))[:1024]
        rows[dtype] = {
            **dict(certificate.rounding_parts),
            "measured": measured,
            "sosfilt in the same dtype": float(np.abs(reference - truth).max()),
        }
    return rows


def main() -> None:
    """Run, print, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smallest", action="store_true", help="one template, two sizes; writes nothing")
    smallest = parser.parse_args().smallest
    results: dict[str, Any] = {"templates": {}, "butterworth": {}}
    for name, template in templates(smallest).items():
        print(f"\n| modes, {name} | truncated | built, float64 | built, float32 |\n|---|---|---|---|")
        results["templates"][name] = rows = []
        for modes in (2, 4) if smallest else MODES:
            if 2 * modes >= len(template):
                break
            rows.append(row := approximate(template, modes))
            print(
                f"| {modes} | {row['truncated']:.3g} | {row['built, float64']:.3g} | {row['built, float32']:.3g} |",
                flush=True,
            )
            if row["built, float64"] > row["truncated"]:
                print(f"NOT MET: {name}, {modes} modes")
    print(
        "\n| filter | dtype | stored weights, certified | run, certified | measured | sosfilt |\n|---|---|---|---|---|---|"
    )
    for name, design in list(DESIGNS.items())[: 1 if smallest else None]:
        results["butterworth"][name] = found = exact(design)
        for dtype, row in found.items():
            numbers = (row["stored weights"], row["arithmetic"], row["measured"], row["sosfilt in the same dtype"])
            print(f"| {name} | {dtype} | {' | '.join(f'{value:.2g}' for value in numbers)} |", flush=True)
    if not smallest:
        write_json(results, RESULTS / "ssm.json")


if __name__ == "__main__":
    main()
