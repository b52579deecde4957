"""Claim: the kernel by one real matrix product is 5x (H=64, L=896) to 30x (H=256, L=16384) faster than the direct formula."""

import math

import torch

from harness import compare, smallest
from oplens.operators import diagonal
from oracles import textbook_kernel


def main() -> None:
    """Both sides go from continuous-time parameters to a real kernel; ours always works in float64."""
    small = smallest()
    sizes = [(8, 50, 3, None)] if small else [(64, 896, 21, 5.0), (64, 4096, 11, None), (256, 16384, 5, 30.0)]
    for d_model, length, repeats, target in sizes:
        A, C, dt = _parameters(d_model, 32)
        skip = torch.zeros(d_model, dtype=torch.float64)
        exact = textbook_kernel(A, C, dt, length)
        scale = exact.abs().max()

        def ours(A=A, C=C, dt=dt, skip=skip, length=length):
            return diagonal.kernel(diagonal.discretise(A, C, skip, dt), length)

        for dtype in (torch.complex64, torch.complex128):
            inputs = A.to(dtype), C.to(dtype), dt.to(dtype.to_real())
            rounding = (textbook_kernel(*inputs, length) - exact).abs().max() / scale
            compare(
                f"kernel H={d_model} L={length} P=32, reference in {str(dtype)[6:]} (error {rounding:.0e})",
                lambda inputs=inputs, length=length: textbook_kernel(*inputs, length),
                ours,
                repeats=repeats,
                target=target,
            )
        print(f"  difference of ours from the complex128 reference: {(ours() - exact).abs().max() / scale:.0e}")


def _parameters(d_model: int, n_modes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    A = torch.complex(torch.full((n_modes,), -0.5).double(), math.pi * torch.arange(n_modes).double()).repeat(
        d_model, 1
    )
    C = torch.randn(d_model, n_modes, dtype=torch.complex128)
    return A, C, torch.exp(torch.empty(d_model, dtype=torch.float64).uniform_(math.log(0.001), math.log(0.1)))


if __name__ == "__main__":
    with torch.no_grad():
        main()
