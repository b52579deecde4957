"""Slow, obvious versions of what the library computes quickly, written from the formulas and sharing no code with it."""

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


def random_poles(rng, d_model, n_modes):
    """Poles of every kind that is met: ordinary, aliased, negative imaginary part, real, nearly undamped, and exactly 0."""
    real = -np.exp(rng.normal(-1, 1, (d_model, n_modes)))
    imag = rng.normal(0, 60, (d_model, n_modes))
    kind = rng.integers(0, 6, (d_model, n_modes))
    imag[kind == 1] *= 40  # aliased at dt of 0.001 to 0.1
    imag[kind == 2] = 0
    real[kind == 3] = -1e-9
    real[kind == 4] = -5e-324
    both = kind == 5
    real[both], imag[both] = 0, 0
    return real + 1j * imag


def random_system(seed, d_model=3, n_modes=4):
    """Poles A, weights C, skip D and steps dt as numpy arrays."""
    rng = np.random.default_rng(seed)
    A = random_poles(rng, d_model, n_modes)
    C = rng.normal(size=A.shape) + 1j * rng.normal(size=A.shape)
    return A, C, rng.normal(size=d_model), np.exp(rng.uniform(math.log(0.001), math.log(0.1), d_model))


def discrete(A, dt, method="zoh"):
    """a and b of every pole, one at a time in 40 digits."""
    import mpmath

    a, b = np.empty(A.shape, complex), np.empty(A.shape, complex)
    with mpmath.workdps(40):
        for index in np.ndindex(A.shape):
            pole, step = mpmath.mpmathify(complex(A[index])), mpmath.mpf(float(dt[index[0]]))
            if method == "zoh":
                a[index] = complex(mpmath.exp(pole * step))
                b[index] = complex(step if pole == 0 else mpmath.expm1(pole * step) / pole)
            else:
                a[index] = complex((1 + pole * step / 2) / (1 - pole * step / 2))
                b[index] = complex(step / (1 - pole * step / 2))
    return a, b


def recurrence(system, u):
    """z (batch, H, length) and all states (batch, H, P, length) of u (batch, H, length), one step after the other; system is a, b, C, D."""
    a, b, C, D = system
    batch, _, length = u.shape
    s = np.zeros((batch, *a.shape), complex)
    z, states = np.empty(u.shape), np.empty((batch, *a.shape, length), complex)
    for t in range(length):
        s = a * s + b * u[:, :, t, None]
        states[..., t] = s
        z[:, :, t] = 2 * (C * s).real.sum(-1) + D * u[:, :, t]
    return z, states


def textbook_kernel(A: Tensor, C: Tensor, dt: Tensor, length: int) -> Tensor:
    """K_h(t) = 2 Re sum_n C_n (exp(A_n dt) - 1)/A_n exp(A_n dt t), with a tensor of (H, P, length) exponentials, in the dtype of A."""
    x = A * dt[:, None]
    vandermonde = torch.exp(x[..., None] * torch.arange(length, device=A.device))
    return 2 * torch.einsum("hn,hnt->ht", C * (torch.exp(x) - 1) / A, vandermonde).real


class TextbookPlain(nn.Module):
    """The plain architecture by its formulas: encode, transform every feature, direct kernel; parameters named as in the library."""

    def __init__(self, d_input: int, n_classes: int, d_model: int, d_state: int) -> None:
        super().__init__()
        n_modes = d_state // 2
        self.encoder, self.decoder = nn.Linear(d_input, d_model), nn.Linear(d_model, n_classes)
        layer = nn.Module()
        layer.D = nn.Parameter(torch.randn(d_model))
        layer.kernel = nn.Module()
        layer.kernel.C = nn.Parameter(torch.randn(d_model, n_modes, 2))
        layer.kernel.log_dt = nn.Parameter(torch.rand(d_model) * 4.6 - 6.9)
        layer.kernel.log_A_real = nn.Parameter(torch.full((d_model, n_modes), math.log(0.5)))
        layer.kernel.A_imag = nn.Parameter(math.pi * torch.arange(n_modes).repeat(d_model, 1).float())
        self.s4_layers = nn.ModuleList([layer])

    def forward(self, x: Tensor) -> Tensor:
        layer, length = self.s4_layers[0], x.shape[1]
        k = layer.kernel
        u = self.encoder(x).transpose(1, 2)
        A = -torch.exp(k.log_A_real) + 1j * k.A_imag
        response = textbook_kernel(A, torch.view_as_complex(k.C), torch.exp(k.log_dt), length)
        product = torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(response, n=2 * length)
        z = torch.fft.irfft(product, n=2 * length)[..., :length] + layer.D[:, None] * u
        return self.decoder(functional.gelu(z).mean(-1))
