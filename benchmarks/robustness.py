"""Claim: a Jacobian-vector product per draw is 20x faster than the full Jacobian, and exact where finite differences are not.

One dual pass gives J g for a draw of noise on all parameters. The full Jacobian needs a backward pass for every number answered; central
differences need two forward passes, about what the dual pass costs, and a step: whichever is taken, rounding or curvature is left over.
"""

import torch

from harness import compare, smallest
from oplens.measurement.jacobians import along, noisy_weights
from oplens.models import Transformer, TransformerConfig
from oplens.models.own_recorders import TransformerRecorder


def main() -> None:
    """A causal transformer that answers at every position: n_answers numbers at each of `length` positions of each case."""
    small = smallest()
    sizes = [(1, 4, 5, 16, 3, None)] if small else [(1, 16, 16, 32, 7, 20.0), (2, 16, 32, 32, 3, 20.0)]
    for batch, length, vocabulary, d_model, repeats, target in sizes:
        recorder, x = _model(batch, length, vocabulary, d_model)
        weights = noisy_weights("benchmark", recorder, False)
        g = weights.direction(0, 0)

        def dual(recorder=recorder, weights=weights, g=g, x=x):
            return along("benchmark", recorder, weights, g, x, None)[1]

        def full(recorder=recorder, weights=weights, g=g, x=x):
            return _by_rows(recorder, weights, g, x)

        def differences(recorder=recorder, weights=weights, g=g, x=x, step=1e-5):
            with torch.no_grad():
                ends = [recorder.apply(weights.moved(g, sign * step), x) for sign in (1, -1)]
            return ((ends[0] - ends[1]) / (2 * step)).flatten(0, 1)

        answered = batch * length * vocabulary
        name = f"J g, {answered:,} numbers answered, {weights.count:,} parameters"
        compare(f"{name}, reference full Jacobian", full, dual, repeats=repeats, target=target)
        compare(f"{name}, reference central differences", differences, dual, repeats=3 * repeats)
        exact = full()
        scale = exact.abs().max()
        misses = {step: (differences(step=step) - exact).abs().max() / scale for step in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)}
        shown = ", ".join(f"{miss:.0e} at {step:g}" for step, miss in misses.items())
        print(f"  largest error: ours {(dual() - exact).abs().max() / scale:.0e}; central differences {shown}")


def _model(batch: int, length: int, vocabulary: int, d_model: int) -> tuple[TransformerRecorder, torch.Tensor]:
    torch.manual_seed(0)
    config = TransformerConfig(
        d_output=vocabulary,
        vocabulary=vocabulary,
        d_model=d_model,
        n_heads=2,
        d_ffn=2 * d_model,
        causal=True,
        readout="position",
    )
    return TransformerRecorder.of(Transformer(config)), torch.randint(vocabulary, (batch, length))


def _by_rows(recorder, weights, g, x) -> torch.Tensor:
    """J g by one backward pass per number answered."""
    leaves = {name: value.clone().requires_grad_(True) for name, value in weights.values.items()}
    output = recorder.apply(leaves, x)
    rows = []
    for number in output.flatten():
        gradients = torch.autograd.grad(number, list(leaves.values()), retain_graph=True, allow_unused=True)
        rows.append(sum((row * g[name]).sum() for name, row in zip(leaves, gradients, strict=True) if row is not None))
    return torch.stack(rows).unflatten(0, output.shape).flatten(0, 1).detach()


if __name__ == "__main__":
    main()
