r"""Derivatives of a recorder's answers: by its parameters, along noise or in full, and by its inputs, as the largest gain found.

    J g      one Jacobian-vector product along a direction g of all parameters: T(theta) and J g in one pass with dual numbers
    J J'     one row of J at a time, a backward pass for each number that is answered: where answers are small

An answer is what the model says of one case, or at one real position of a case where it answers at every position.
"""

import contextlib
import hashlib
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.errors import ArgumentError
from oplens.measurement.arrays import Floats

if TYPE_CHECKING:
    from torch import Tensor

    from oplens.models.recording import Recorder

# Entries of a sparse model's full matrices: half a gigabyte, of which a pass with derivatives holds some copies.
DENSE_AT_MOST = 2**26
# Cases and answers of each whose gain is sought; steps of the power iteration.
GAIN_CASES, GAIN_ROWS, GAIN_STEPS = 8, 4, 10


@dataclass(frozen=True)
class Weights:
    """The parameters that carry noise, tied ones once; buffers are none of them.

    Attributes
    ----------
    values : mapping of name to Tensor, float64 or complex128
    scales : mapping of name to float
        Standard deviation of a parameter's noise per unit of sigma: 1, or the tensor's root mean square.
    """

    values: Mapping[str, "Tensor"]
    scales: Mapping[str, float]

    @property
    def count(self) -> int:
        """P: real numbers that carry noise; a complex one is two."""
        return sum(self._counts().values())

    @property
    def size(self) -> float:
        """sqrt(E norm(e)^2) per unit of sigma: sqrt(P) where all scales are 1."""
        return math.sqrt(sum(self.scales[name] ** 2 * n for name, n in self._counts().items()))

    def _counts(self) -> dict[str, int]:
        return {name: _numbers(value) for name, value in self.values.items()}

    def direction(self, seed: int, draw: int) -> dict[str, "Tensor"]:
        """Noise of sigma = 1, the same whenever it is asked for: nothing of it has to be kept."""
        import torch

        # Hashed, not added up: neighbouring seeds must not share draws.
        key = hashlib.blake2b(f"{seed}:{draw}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key, "big") >> 1)

        found = {}
        for name, value in self.values.items():
            shape = (*value.shape, 2) if value.is_complex() else value.shape
            noise = self.scales[name] * torch.randn(shape, generator=generator, dtype=torch.float64)
            found[name] = (torch.view_as_complex(noise) if value.is_complex() else noise).to(value.device)
        return found

    def moved(self, direction: Mapping[str, "Tensor"], sigma: float) -> dict[str, "Tensor"]:
        """theta + sigma g."""
        return {name: value + sigma * direction[name] for name, value in self.values.items()}


def noisy_weights(call: str, recorder: "Recorder", relative: bool) -> Weights:
    """The parameters of a recorder that carry noise; refused where noise or derivatives along it cannot be had."""
    from oplens.models import SparseLinear

    if recorder.module.training:
        raise ArgumentError(
            f"{call}: the model is in training mode, where dropout moves its output by itself; call recorder.module.eval()."
        )
    sparse = [part for part in recorder.module.modules() if isinstance(part, SparseLinear)]
    entries = sum(part.d_input * part.d_output for part in sparse)
    if entries > DENSE_AT_MOST:
        raise ArgumentError(
            f"{call}: derivatives along noise need the model's sparse matrices in full, {entries:,} entries with zeros, above the limit "
            f"of {DENSE_AT_MOST:,}; measure a smaller model of the same kind."
        )
    values = {n: p.detach() for n, p in recorder.module.named_parameters() if p.is_floating_point() or p.is_complex()}
    if not any(map(_numbers, values.values())):
        raise ArgumentError(f"{call}: the model has no parameters; noise has nothing to move.")
    for name, value in values.items():
        if str(value.dtype) not in ("torch.float64", "torch.complex128"):
            raise ArgumentError(
                f"{call}: parameter {name} is {str(value.dtype)[6:]}, whose rounding hides what small noise does; load the model in "
                "float64: load_recorder(directory, dtype='float64')."
            )
    return Weights(values, {name: _rms(value) if relative else 1.0 for name, value in values.items()})


def _numbers(value: "Tensor") -> int:
    return value.numel() * (1 + value.is_complex())


def _rms(value: "Tensor") -> float:
    return math.sqrt(float(value.abs().square().sum()) / max(_numbers(value), 1))


def answers(call: str, output: "Tensor", mask: "Tensor | None") -> "Tensor":
    """Answers (n_answers, n) of an output: one per case, or one per real position."""
    if output.ndim == 2:
        return output
    if output.ndim != 3:
        raise ArgumentError(
            f"{call}: the model's output has the shape {tuple(output.shape)}; expected (batch, [length,] n)."
        )
    return output.flatten(0, 1) if mask is None else output[mask]


def along(
    call: str,
    recorder: "Recorder",
    weights: Weights,
    direction: Mapping[str, "Tensor"],
    x: "Tensor",
    mask: "Tensor | None",
) -> tuple["Tensor", "Tensor"]:
    """T(theta) and J g, both (n_answers, n), in one pass.

    Notes
    -----
    Claim: *exact* to rounding; at a kink (ReLU) one of the one-sided derivatives, at a jump (hashing) blind to it. Cost: about two
    forward passes. Source: forward-mode differentiation, Griewank & Walther 2008.
    """
    import torch
    from torch.autograd import forward_ad

    with torch.no_grad(), forward_ad.dual_level():
        with warnings.catch_warnings():
            # The first dual number makes torch load a module of its own that warns about itself.
            warnings.filterwarnings("ignore", r"`torch\.jit\.script` is deprecated", DeprecationWarning)
            dual = {name: forward_ad.make_dual(value, direction[name]) for name, value in weights.values.items()}
        try:
            output, tangent = forward_ad.unpack_dual(recorder.apply(dual, x, mask))
        except NotImplementedError as error:
            raise ArgumentError(
                f"{call}: the model has an operation without a forward derivative ({str(error).splitlines()[0]}); "
                "replace it, for attention by the eager implementation."
            ) from None
        if tangent is None:
            raise ArgumentError(f"{call}: the output does not depend on the parameters given to recorder.apply.")
        return answers(call, output, mask), answers(call, tangent, mask)


def grams(call: str, recorder: "Recorder", weights: Weights, x: "Tensor", mask: "Tensor | None") -> Iterator[Floats]:
    """J J' (n, n) of every answer, J being scaled as the noise is; one case at a time.

    Notes
    -----
    Claim: *exact*. Cost: n backward passes per answer; memory n P numbers.
    """
    import torch

    for case in range(len(x)):
        leaves = {name: value.clone().requires_grad_(True) for name, value in weights.values.items()}
        part = None if mask is None else mask[case : case + 1]
        with torch.enable_grad():
            found = answers(call, recorder.apply(leaves, x[case : case + 1], part), part)
        for answer in found:
            rows = [
                _flat(weights, torch.autograd.grad(number, list(leaves.values()), retain_graph=True, allow_unused=True))
                for number in answer
            ]
            jacobian = torch.stack(rows)
            yield (jacobian @ jacobian.T).cpu().numpy()


def _flat(weights: Weights, gradients: Any) -> "Tensor":
    """A row of the Jacobian by what carries noise, real and imaginary parts side by side."""
    import torch

    parts = []
    for (name, value), gradient in zip(weights.values.items(), gradients, strict=True):
        row = torch.zeros_like(value) if gradient is None else gradient.detach()
        row = torch.view_as_real(row.resolve_conj()) if row.is_complex() else row
        parts.append(weights.scales[name] * row.flatten())
    return torch.cat(parts)


def largest_gain(call: str, recorder: "Recorder", x: "Tensor", mask: "Tensor | None", seed: int) -> float:
    r"""Largest norm(dT/dx)_2 found: how fast an answer moves with its input, real or as the token embedding gives it.

    Power iteration v = J'u / norm, u = J v / norm from a random u, at up to four answers (the last one, others at random) of up to
    eight cases; J v is the derivative of J'u by u. NaN where the model's input cannot be told.

    Notes
    -----
    Claim: *bound*, from below, of the Lipschitz constant: every norm(J'u) with norm(u) = 1 is one. Cost: 40 passes back and forth per case.
    """
    import torch

    generator, largest = np.random.default_rng(seed), 0.0
    for case in np.unique(np.linspace(0, len(x) - 1, GAIN_CASES).round().astype(int)).tolist():
        part = None if mask is None else mask[case : case + 1]
        found = _differentiable(recorder, x[case : case + 1], part)
        if found is None:
            return math.nan
        inputs, output = found
        rows = answers(call, output, part)
        others = generator.permutation(len(rows) - 1)[: GAIN_ROWS - 1]
        for row in (len(rows) - 1, *others.tolist()):
            u = torch.as_tensor(generator.standard_normal(rows.shape[1])).to(rows)
            largest = max(largest, _spectral_norm(inputs, rows[row], u))
    return largest


def _spectral_norm(inputs: "Tensor", answer: "Tensor", start: "Tensor") -> float:
    import torch

    u = (start / start.norm()).requires_grad_(True)
    # J'u is linear in u: its graph gives J v for every v.
    (pulled,) = torch.autograd.grad(answer, inputs, u, create_graph=True)
    found, best = pulled.detach(), float(pulled.detach().norm())
    for _ in range(GAIN_STEPS):
        (pushed,) = torch.autograd.grad(pulled, u, found, retain_graph=True)
        if not bool(pushed.any()):
            break
        (found,) = torch.autograd.grad(answer, inputs, pushed / pushed.norm(), retain_graph=True)
        best = max(best, float(found.norm()))
    return best


def _differentiable(recorder: "Recorder", x: "Tensor", mask: "Tensor | None") -> tuple["Tensor", "Tensor"] | None:
    """Real inputs, or what the token embedding made of tokens, as a leaf, and the output that depends on it."""
    import torch
    from torch import nn

    with torch.enable_grad(), contextlib.ExitStack() as stack:
        if recorder.kind == "series":
            leaf = x.double().detach().clone().requires_grad_(True)
            output = recorder.apply(None, leaf, mask)
            return (leaf, output) if output.requires_grad else None
        tables = [
            part
            for part in recorder.module.modules()
            if isinstance(part, nn.Embedding) and part.num_embeddings == recorder.vocabulary
        ]
        leaves: list[Tensor] = []

        def replaced(_: Any, __: Any, output: "Tensor") -> "Tensor":
            leaves.append(output.detach().requires_grad_(True))
            return leaves[-1]

        for table in tables:
            stack.callback(table.register_forward_hook(replaced).remove)
        output = recorder.apply(None, x, mask)
    return (leaves[0], output) if len(leaves) == 1 and output.requires_grad else None
