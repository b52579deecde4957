"""Claim: a mean and variance in noise cost far less by prediction than by simulating the model to the same precision.

The mean is exact, so simulation never reaches it: it is asked for a standard error of 1 % of the target's standard deviation.
The variance lies in a bracket (cut, bound), so simulation is asked for half its width as standard error, and for 1 %. Simulated cases are timed
and counted, not all run: their number at these precisions would take hours.
"""

import numpy as np
import torch

from harness import compare, smallest
from oplens import S4D, S4DConfig, expand
from oplens.data import Sinusoid, noisy_sinusoids
from oplens.explanation import Margin
from oplens.explanation.prediction.discrimination import discriminate
from oplens.explanation.prediction.prediction import Setting, noise_covariance
from oplens.explanation.prediction.sweep import sweep
from oplens.explanation.prediction.wiener import Weights

NOISE = 0.7
SPREAD = 1.5  # standard deviation of the pre-activations
RATE = 64.0
MEAN_ERROR = 0.01  # of the target's standard deviation
VARIANCE_ERROR = 0.01
ACCURACY_ERROR = 0.005


def main() -> None:
    """One model per size, random but with pre-activations as large as trained models have: brackets depend on that."""
    small = smallest()
    for d_model, length, cases, repeats in [(4, 16, 20, 3)] if small else [(64, 128, 500, 5), (32, 512, 200, 3)]:
        torch.manual_seed(0)
        names = ("15 Hz", "20 Hz")
        config = S4DConfig(d_input=1, n_classes=2, d_model=d_model, d_state=64, classes=names, sampling_rate=RATE)
        model, X = (
            S4D(config).double(),
            noisy_sinusoids(n_cases=20, sampling_rate=RATE, n_timepoints=length, noise=NOISE).X,
        )
        z = model.trace(torch.from_numpy(X).transpose(1, 2)).layers[0].z
        model.encoder.weight *= (SPREAD / z.std((0, 1)))[:, None]
        op = expand(model, X)
        one_size(op, length, cases, repeats, np.linspace(1.0, 31.0, 4 if small else 61))


def one_size(op, length, cases, repeats, frequencies) -> None:
    """Mean, variance, sweep and accuracy of one model against simulated cases."""
    signal = Sinusoid(15.0, length, RATE, phase=0.3)
    x = torch.from_numpy(signal.values(1).T[None]) + NOISE * torch.randn(cases, length, 1, dtype=torch.float64)
    size = f"H={op.model.config.d_model} L={length}"

    def simulated():
        return op.model(x)

    margin = simulated()[:, 1] - simulated()[:, 0]
    kurtosis = float(((margin - margin.mean()) ** 4).mean() / margin.var(unbiased=False) ** 2)

    def mean():
        setting = Setting.of(op, length, noise_covariance(NOISE, 1, "mean"), Margin("20 Hz", "15 Hz"))
        weights = Weights.of(setting.noise, setting.means(signal.values(1)[None]), setting.readout, 1)
        return weights.orders[0].sum() + setting.constant

    found = compare(f"{cases} simulated cases against the exact mean, {size}", simulated, mean, repeats=repeats)
    one_case = found.reference / cases
    told("mean", found.ours, one_case, 1 / MEAN_ERROR**2, f"to {100 * MEAN_ERROR:g} % of the standard deviation")
    for orders in (4, 6, 8):

        def both(orders=orders):
            return op.predict(signal, NOISE, orders=orders)

        found = compare(
            f"{cases} simulated cases against predict(orders={orders}), {size}", simulated, both, repeats=repeats
        )
        one_case = found.reference / cases
        width = float(both().target_variance_bound / both().target_variance) - 1
        needed = (kurtosis - 1) / (width / 2) ** 2
        told("variance", found.ours, one_case, needed, f"to half its bracket of {100 * width:.2g} %")
        told("variance", found.ours, one_case, (kurtosis - 1) / VARIANCE_ERROR**2, f"to {100 * VARIANCE_ERROR:g} %")

    def swept():
        return sweep(op, frequencies, NOISE, phases=1)

    found = compare(
        f"{cases} simulated cases against {len(frequencies)} frequencies, {size}", simulated, swept, repeats=repeats
    )
    one_case = found.reference / cases
    ds = swept()
    width = float((ds.target_variance_bound / ds.target_variance).max()) - 1
    needed = len(frequencies) * max(1 / MEAN_ERROR**2, (kurtosis - 1) / (width / 2) ** 2)
    told(
        "sweep",
        found.ours,
        one_case,
        needed,
        f"means to {100 * MEAN_ERROR:g} %, variances to half of {100 * width:.2g} %",
    )

    signals = {name: Sinusoid(f, length, RATE) for name, f in (("15 Hz", 15.0), ("20 Hz", 20.0))}
    found = compare(
        f"{cases} simulated cases against discriminate, {size}",
        simulated,
        lambda: discriminate(op, signals, NOISE),
        repeats=repeats,
    )
    one_case = found.reference / cases
    told("accuracy", found.ours, one_case, 2 * 0.25 / ACCURACY_ERROR**2, f"to {ACCURACY_ERROR:g} at worst (50 % right)")


def told(what: str, ours: float, one_case: float, needed: float, precision: str) -> None:
    """Print what the same precision costs by simulation."""
    simulated = needed * one_case
    print(
        f"  {what}: predicted in {ours:.3g} s; {precision} takes {needed:.3g} simulated cases, {simulated:.3g} s: {simulated / ours:.3g}x"
    )


if __name__ == "__main__":
    with torch.no_grad():
        main()
