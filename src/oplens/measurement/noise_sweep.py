"""Answers of a model under noise of several scales on its parameters, draw by draw, and the first order along the same draws."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from oplens.errors import ArgumentError, DataError
from oplens.measurement.arrays import Floats, plain, validity, whole
from oplens.measurement.jacobians import Weights, along, answers, grams, noisy_weights

if TYPE_CHECKING:
    from torch import Tensor

    from oplens.models.recording import Recorder

CALL = "weight_noise"
PILOT_DRAWS, PILOT_SIGMAS = 4, 13  # draws that place the noise scales when none are given, four scales a decade
EXACT_OUTPUTS, EXACT_NUMBERS = 64, 2**25  # answers, and entries of one answer's Jacobian, up to which it is formed
ROUNDING = 1e3 * float(np.finfo(float).eps)  # movements below this part of the output's size are rounding


@dataclass(frozen=True)
class Moved:
    """Means over answers, one per draw: T's change and the remainder (draws, sigmas); norm(J g) and its square (draws,)."""

    deviation: Floats
    remainder: Floats
    first: Floats
    squares: Floats


@dataclass(frozen=True)
class Sweep:
    """A model, the inputs it is asked, and the noise that its parameters carry.

    Attributes
    ----------
    recorder : Recorder
    weights : Weights
    x, mask : Tensor
        As given to :func:`oplens.measurement.weight_noise`.
    batch_size : int
    seed : int
    """

    recorder: "Recorder"
    weights: Weights
    x: "Tensor"
    mask: "Tensor | None"
    batch_size: int
    seed: int

    @classmethod
    def of(cls, recorder: "Recorder", x: Any, mask: Any, batch_size: int, relative: bool, seed: int) -> "Sweep":
        """Checked; refused before any work."""
        import torch

        weights = noisy_weights(CALL, recorder, relative)
        values = x if isinstance(x, torch.Tensor) else torch.as_tensor(plain(CALL, "x", x))
        if values.ndim not in (2, 3) or 0 in values.shape:
            raise ArgumentError(
                f"{CALL}(x of shape {tuple(values.shape)}): expected (batch >= 1, length >= 1) tokens or numbers (batch, length, d_input)."
            )
        real = None
        if mask is not None:
            kept = validity(CALL, mask, tuple(values.shape[:2]), "(batch, length)")
            if not kept.any(1).all():
                raise ArgumentError(
                    f"{CALL}(mask): case {int(np.argmin(kept.any(1)))} has no real position; leave it out."
                )
            real = torch.as_tensor(kept, device=values.device)
        return cls(recorder, weights, values, real, batch_size, whole(CALL, "seed", seed, 0))

    def batches(self) -> "list[tuple[Tensor, Tensor | None]]":
        """Inputs and masks, some cases at a time."""
        starts = range(0, len(self.x), self.batch_size)
        cuts = [slice(start, start + self.batch_size) for start in starts]
        return [(self.x[cut], None if self.mask is None else self.mask[cut]) for cut in cuts]

    def outputs(self, parameters: Any, x: "Tensor", mask: "Tensor | None") -> "Tensor":
        """Answers (n_answers, n), without gradients."""
        import torch

        with torch.no_grad():
            return answers(CALL, self.recorder.apply(parameters, x, mask), mask)

    def spread(self) -> tuple[float, float, int]:
        """Root mean square distance of the answers from their mean, and from 0, and how many there are."""
        import torch

        shift: Tensor | None = None
        total, squares, count = torch.zeros(()), 0.0, 0
        for x, mask in self.batches():
            rows = self.outputs(None, x, mask)
            shift = rows[0] if shift is None else shift  # sums about an answer do not cancel
            total, squares, count = (
                total + (rows - shift).sum(0),
                squares + float(((rows - shift) ** 2).sum()),
                count + len(rows),
            )
        if shift is None or not math.isfinite(squares):
            raise DataError(
                f"{CALL}: the model answers NaN or infinite numbers without any noise; find where they arise."
            )
        mean = total / count
        spread = math.sqrt(max(squares / count - float((mean**2).sum()), 0.0))
        size = math.hypot(spread, float((mean + shift).norm()))
        return (spread if spread > ROUNDING * size else 0.0), size, count

    def default_scales(self, spread: float) -> Floats:
        """Scales at which the first-order movement goes from 1/1000 of `spread` to all of it."""
        unit = float(np.mean([self.first_order(draw) for draw in range(PILOT_DRAWS)]))
        if not 0 < unit < math.inf or not spread > 0:
            raise ArgumentError(
                f"{CALL}(sigmas=None): the answers do not move to first order, or are all 0, so no scale of noise suggests itself; "
                "give sigmas, such as [0.001, 0.01, 0.1]."
            )
        return np.array([float(f"{s:.2g}") for s in np.geomspace(1e-3, 1, PILOT_SIGMAS) * spread / unit])

    def first_order(self, draw: int) -> float:
        """Mean over answers of norm(J g)."""
        direction, total, count = self.weights.direction(self.seed, draw), 0.0, 0
        for x, mask in self.batches():
            tangent = along(CALL, self.recorder, self.weights, direction, x, mask)[1]
            total, count = total + float(tangent.norm(dim=-1).sum()), count + len(tangent)
        return total / count

    def run(self, sigmas: Floats, draws: int, progress: Callable[[int, int], None] | None) -> Moved:
        """Every draw at every scale."""
        batches, done = self.batches(), 0
        passes = draws * (len(sigmas) + 1) * len(batches)
        tell = progress or (lambda *_: None)
        tell(0, passes)
        found = []
        for draw in range(draws):
            direction, parts = self.weights.direction(self.seed, draw), []
            for x, mask in batches:
                parts.append(self._norms(direction, sigmas, x, mask))
                done += len(sigmas) + 1
                tell(done, passes)
            found.append(np.concatenate(parts, axis=1).mean(1))
        deviation, remainder, (first, squares) = np.split(np.array(found).T, [len(sigmas), 2 * len(sigmas)])
        return Moved(deviation.T, remainder.T, first, squares)

    def _norms(self, direction: Any, sigmas: Floats, x: "Tensor", mask: "Tensor | None") -> Floats:
        """Per answer: norms of the changes and of the remainders at every scale, norm(J g) and its square; (2 sigmas + 2, answers)."""
        start, tangent = along(CALL, self.recorder, self.weights, direction, x, mask)
        moved, beyond = [], []
        for sigma in sigmas.tolist():
            change = self.outputs(self.weights.moved(direction, sigma), x, mask) - start
            moved.append(change.norm(dim=-1))
            beyond.append((change - sigma * tangent).norm(dim=-1))
            if not bool(moved[-1].isfinite().all()):
                raise DataError(
                    f"{CALL}: noise of sigma = {sigma:g} makes an answer NaN or infinite; give sigmas below {sigma:g}."
                )
        norms = tangent.norm(dim=-1)
        return np.array([row.cpu().numpy() for row in (*moved, *beyond, norms, norms**2)])

    def exact(self, affordable: int) -> tuple[float, float] | None:
        """E norm(J g) and norm(J)_F (root mean square over answers) from whole Jacobians; None where that costs more than the sweep."""
        import torch

        from oplens.theory import first_order

        with torch.no_grad():
            output = self.recorder.apply(None, self.x[:1], None if self.mask is None else self.mask[:1])
        n, per_case = output.shape[-1], math.prod(output.shape[1:-1])
        if n > EXACT_OUTPUTS or n * per_case > affordable or n * self.weights.count > EXACT_NUMBERS:
            return None
        means, squares = [], []
        for gram in grams(CALL, self.recorder, self.weights, self.x, self.mask):
            values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0))
            means.append(first_order(1.0, values.tolist()).value)
            squares.append(float(np.trace(gram)))
        return float(np.mean(means)), math.sqrt(float(np.mean(squares)))


def noise_scales(sigmas: Any) -> Floats:
    """Scales as given, checked."""
    try:
        found = np.asarray(sigmas, dtype=float)
    except (TypeError, ValueError):
        found = np.array([])
    if (
        found.ndim != 1
        or not found.size
        or not np.isfinite(found).all()
        or (found <= 0).any()
        or (np.diff(found) <= 0).any()
    ):
        raise ArgumentError(
            f"{CALL}(sigmas={sigmas!r}): give finite numbers above 0, ascending, such as [0.001, 0.01, 0.1]."
        )
    return found
