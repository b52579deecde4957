r"""The smallest change that really moves the running model: from a first change, sequential linear steps along its own gradient.

    minimise norm(delta)   subject to   m_j(delta) = rows_j . logits(x + delta) >= wanted_j,  delta in a subspace

Each step linearises the constraints where it stands and goes towards the smallest change that meets them (in structural reliability:
the Hasofer-Lind-Rackwitz-Fiessler iteration), as far as the merit norm(delta)^2 / 2 + c sum of violations falls. The result is then
moved along its own ray until the model meets the constraints with a little to spare. It is a local minimum: a measured upper bound on
the smallest change, for any architecture.
"""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.explanation.training import BATCH_BYTES
from oplens.models.configuration import Preprocessing
from oplens.models.s4d import S4D

STEPS = 25  # at most; a case leaves as soon as its step moves it no more
STILL = 0.01  # step relative to delta at which it rests: its norm is then right to about the square of this
AGROUND = 0.5  # step relative to delta that a descent must not end with: it is far from a minimum
SPARE = 1e-4  # of the way from where the model stands to what is wanted: how far past it the result may come to rest
HALVINGS = 8
ENOUGH = 0.2  # share of the promised fall of the merit that a step must keep
STAGES = 8
SWEEPS = 60


@dataclass(frozen=True)
class Problem:
    """Cases of one length: x (batch, d_input, steps) preprocessed, rows (batch, R, n_classes), wanted (batch, R)."""

    model: S4D  # of preprocessed input
    x: Tensor
    rows: Tensor
    wanted: Tensor
    project: Callable[[Tensor], Tensor]

    def select(self, index: Tensor) -> "Problem":
        """The same of some cases."""
        return dataclasses.replace(self, x=self.x[index], rows=self.rows[index], wanted=self.wanted[index])

    def values(self, delta: Tensor) -> Tensor:
        """m (batch, R) of the running model at x + delta, delta (batch, d_input * steps)."""
        return torch.einsum("brc,bc->br", self.rows, self.logits(delta))

    def logits(self, delta: Tensor) -> Tensor:
        """Logits (batch, n_classes) of the running model at x + delta."""
        with torch.no_grad():
            return torch.cat([_logits(self.model, self.x[i] + _shaped(delta[i], self.x)) for i in self._blocks()])

    def gradients(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Also their projected gradients (batch, R, d_input * steps), by automatic differentiation of the model as it runs."""
        values, gradients = [], []
        for block in self._blocks():
            at = (self.x[block] + _shaped(delta[block], self.x)).requires_grad_(True)
            m = torch.einsum("brc,bc->br", self.rows[block], _logits(self.model, at))
            rows = [torch.autograd.grad(m[:, r].sum(), at, retain_graph=True)[0].flatten(1) for r in range(m.shape[1])]
            gradients.append(torch.stack([self.project(row) for row in rows], dim=1))
            values.append(m.detach())
        return torch.cat(values), torch.cat(gradients)

    def _blocks(self) -> list[slice]:
        size = max(1, BATCH_BYTES // (8 * self.model.config.d_model * self.x.shape[-1]))
        return [slice(start, start + size) for start in range(0, len(self.x), size)]


def of_preprocessed(model: S4D) -> S4D:
    """The same model, weights shared, that takes input which is preprocessed already."""
    bare = copy.copy(model)
    bare.config = dataclasses.replace(model.config, preprocessing=Preprocessing.identity(model.config.d_input))
    return bare


def refine(problem: Problem, start: Tensor) -> Tensor:
    """Smallest change (batch, d_input * steps) found from `start`; cases that meet what is wanted unchanged keep zero.

    Cases whose descent ends far from a minimum, or short of what is wanted, begin again without a change and want a little more at a
    time.

    Notes
    -----
    Claim: *measured*. Cost: a forward and R adjoint passes per step, and about one forward pass more for its length.
    """
    best = torch.zeros_like(start)
    stand = problem.values(best)
    alive = torch.nonzero((stand < problem.wanted).any(1))[:, 0]
    if not len(alive):
        return best
    some, start = problem.select(alive), problem.project(start[alive])
    way = some.wanted - stand[alive]
    # A first change that brings the model less than half the way is a worse place to begin than none.
    helps = (some.values(start) - stand[alive] >= way / 2).all(1)
    found, left = _descend(some, torch.where(helps[:, None], start, 0.0))
    best[alive], met = _land(some, found)
    again = alive[(left > AGROUND) | ~met]
    if len(again):
        best[again] = _better(problem.select(again), best[again], _by_stages(problem.select(again)))
    return best


def _by_stages(problem: Problem) -> Tensor:
    delta = torch.zeros(len(problem.x), problem.x[0].numel(), dtype=problem.x.dtype)
    stand = problem.values(delta)
    for stage in range(1, STAGES + 1):
        on_the_way = stand + (problem.wanted - stand) * stage / STAGES
        delta, _ = _descend(dataclasses.replace(problem, wanted=torch.minimum(on_the_way, problem.wanted)), delta)
    return _land(problem, delta)[0]


def _better(problem: Problem, one: Tensor, other: Tensor) -> Tensor:
    """What meets the wishes, and of two that do the smaller; of two that do not, what comes nearer."""
    lack = [(problem.wanted - problem.values(delta)).clamp(min=0).amax(1) for delta in (one, other)]
    closer = (lack[1] < lack[0]) | ((lack[1] == lack[0]) & (other.norm(dim=1) < one.norm(dim=1)))
    return torch.where(closer[:, None], other, one)


def _descend(problem: Problem, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Steps by merit until the change points along the gradient and meets the constraints; the last step wanted, relative to it."""
    delta, penalty = delta.clone(), torch.zeros(len(delta), dtype=delta.dtype)
    alive, left = torch.arange(len(delta)), torch.full((len(delta),), torch.inf, dtype=delta.dtype)
    for _ in range(STEPS):
        now = problem.select(alive)
        m, g = now.gradients(delta[alive])
        weights = _multipliers(g, now.wanted - m + torch.einsum("brn,bn->br", g, delta[alive]))
        step = torch.einsum("br,brn->bn", weights, g) - delta[alive]
        penalty[alive] = torch.maximum(penalty[alive], 2 * weights.amax(1))
        before = _merit(delta[alive], m, now.wanted, penalty[alive])
        slope = (delta[alive] * step).sum(1) - penalty[alive] * (now.wanted - m).clamp(min=0).sum(1)
        taken = _step_length(now, delta[alive], step, penalty[alive], before, slope)
        left[alive] = step.norm(dim=1) / delta[alive].norm(dim=1).clamp(min=1e-300)
        delta[alive] += taken[:, None] * step
        alive = alive[(taken > 0) & (left[alive] > STILL)]
        if not len(alive):
            break
    return delta, left


def _step_length(
    problem: Problem, delta: Tensor, step: Tensor, penalty: Tensor, before: Tensor, slope: Tensor
) -> Tensor:
    """1, 1/2, 1/4, ...: the first at which the merit falls as it should; 0 where none does."""
    taken = torch.zeros(len(delta), dtype=delta.dtype)
    waiting, length = torch.arange(len(delta)), 1.0
    for _ in range(HALVINGS):
        trial = delta[waiting] + length * step[waiting]
        some = problem.select(waiting)
        merit = _merit(trial, some.values(trial), some.wanted, penalty[waiting])
        good = merit <= before[waiting] + ENOUGH * length * slope[waiting]
        taken[waiting[good]] = length
        waiting, length = waiting[~good], length / 2
        if not len(waiting):
            break
    return taken


def _merit(delta: Tensor, m: Tensor, wanted: Tensor, penalty: Tensor) -> Tensor:
    return (delta**2).sum(1) / 2 + penalty * (wanted - m).clamp(min=0).sum(1)


def _multipliers(g: Tensor, right: Tensor) -> Tensor:
    """Weights >= 0 (batch, R) of the smallest g'weights with g_j . g'weights >= right_j (Hildreth: one constraint after the other)."""
    gram = torch.einsum("brn,bsn->brs", g, g)
    weights = torch.zeros_like(right)
    for _ in range(1 if right.shape[1] == 1 else SWEEPS):
        for j in range(right.shape[1]):
            size = gram[:, j, j]
            gap = (right[:, j] - (gram[:, j] * weights).sum(1)) / size.clamp(min=1e-300)
            weights[:, j] = torch.where(size > 0, weights[:, j] + gap, 0.0).clamp(min=0)
    return weights


def _land(problem: Problem, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each change so that the model meets what is wanted, with at most SPARE to spare; unchanged where no scale does.

    Also tells where one does.
    """
    stand = problem.values(torch.zeros_like(delta))
    way = (problem.wanted - stand).clamp(min=0).amax(1)
    scale = torch.ones(len(delta), dtype=delta.dtype)
    low, high = torch.zeros_like(scale), torch.full_like(scale, torch.inf)
    alive = torch.nonzero(delta.norm(dim=1) > 0)[:, 0]
    below = torch.full_like(scale, -1.0)  # what is missing at `low`, as a share of the way
    above = torch.full_like(scale, torch.nan)  # what is to spare at `high`
    for _ in range(40):
        if not len(alive):
            break
        some = problem.select(alive)
        room = (some.values(scale[alive, None] * delta[alive]) - some.wanted).amin(1) / way[alive]
        enough = room > 0
        high[alive] = torch.where(enough, scale[alive], high[alive])
        above[alive] = torch.where(enough, room, above[alive])
        low[alive] = torch.where(enough, low[alive], scale[alive])
        below[alive] = torch.where(enough, below[alive], room)
        alive = alive[(room <= 0) | (room > SPARE)]
        scale[alive] = _next_scale(low[alive], high[alive], below[alive], above[alive])
        alive = alive[scale[alive] < 32]
    met = torch.isfinite(high)
    return torch.where(met, high, 1.0)[:, None] * delta, met


def _next_scale(low: Tensor, high: Tensor, below: Tensor, above: Tensor) -> Tensor:
    """Between a scale that misses and one that meets: where the straight line spares half of SPARE; beyond, twice what it says."""
    line = low + (high - low) * (SPARE / 2 - below) / (above - below)
    inside = torch.maximum(torch.minimum(line, low + 0.99 * (high - low)), low + 0.01 * (high - low))
    return torch.where(torch.isfinite(high), inside, low * (1 + 2 * (SPARE / 2 - below)))


def _logits(model: S4D, x: Tensor) -> Tensor:
    logits: Tensor = model(x.transpose(1, 2))
    return logits


def _shaped(delta: Tensor, x: Tensor) -> Tensor:
    return delta.unflatten(1, tuple(x.shape[1:]))
