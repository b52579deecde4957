"""Claim: a training step of the plain model is at least 1.5x faster than the textbook model's (batch 32, H=64, L=896, float32)."""

import torch
from torch.nn import functional

from harness import compare, smallest
from oplens.models import S4D, S4DConfig
from oracles import TextbookPlain


def main() -> None:
    """Forward and backward pass of the cross-entropy; both sides have the same weights and see the same batch."""
    small = smallest()
    batch, d_model, length, repeats = (4, 8, 50, 3) if small else (32, 64, 896, 21)
    torch.manual_seed(0)
    ours = S4D(S4DConfig(d_input=6, n_classes=2, d_model=d_model, d_state=64))
    textbook = TextbookPlain(6, 2, d_model, 64)
    textbook.load_state_dict(ours.state_dict())
    x, y = torch.randn(batch, length, 6), torch.arange(batch) % 2

    def step(model: torch.nn.Module) -> None:
        model.zero_grad(set_to_none=True)
        functional.cross_entropy(model(x), y).backward()

    compare(
        f"training step B={batch} H={d_model} L={length}",
        lambda: step(textbook),
        lambda: step(ours),
        repeats=repeats,
        target=None if small else 1.5,
    )
    exact = TextbookPlain(6, 2, d_model, 64).double()
    exact.load_state_dict(ours.state_dict())
    functional.cross_entropy(exact(x.double()), y).backward()
    print(
        f"  largest relative error of a gradient: reference {_error(textbook, exact):.0e}, ours {_error(ours, exact):.0e}"
    )


def _error(model: torch.nn.Module, exact: torch.nn.Module) -> float:
    slopes = {name: p.grad for name, p in exact.named_parameters()}
    return max(
        float((p.grad - slopes[name]).abs().max() / slopes[name].abs().max()) for name, p in model.named_parameters()
    )


if __name__ == "__main__":
    main()
