r"""Attention by positive random features (Performer), in linear cost.

With w_1, ..., w_m standard normal directions and q, k scaled by sqrt(scale),

    phi_f(x) = exp(w_f x - norm(x)^2 / 2) / sqrt(m),     E phi(q) phi(k) = exp(q k)
    out_i = sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j)

The paper this library began with prints phi(Q) (phi(K)^T V): without the denominator, D^-1, weights sum to anything. For independent
directions the relative variance of phi(q) phi(k) is (exp(norm(q + k)^2) - 1)/m: hopeless unless norms are small.

Features are kept as logarithms, and each query's sum is scaled by its own largest term: norms that make every phi(k) underflow give
right weights still. The causal sum carries phi(K)^T V from chunk to chunk and scales by the past alone, so a later token changes
nothing, to the last bit. Source: Choromanski et al. 2021 (arXiv 2009.14794), FAVOR+.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

from oplens.operators.attention.draws import directions
from oplens.operators.attention.families import Performer
from oplens.operators.attention.visibility import Visibility, masked_softmax

CHUNK = 8  # steps of the causal sum whose pairs are formed at once
MOST_PAIRS = 2**18  # numbers in the tensor of pairs


def log_features(x: Tensor, family: Performer) -> Tensor:
    """Logarithms of phi(x): x (..., d_head), already scaled, to (..., n_features).

    Examples
    --------
    >>> x = torch.tensor([[0.3, -0.1]], dtype=torch.float64)
    >>> phi = torch.exp(log_features(x, Performer(n_features=20000)))
    >>> round(float(phi @ phi.T), 2), round(math.exp(0.1), 2)
    (1.11, 1.11)
    """
    d_head = x.shape[-1]
    w = directions(family.seed, family.n_features, d_head, family.orthogonal).to(x)
    return x @ w.T - (x * x).sum(-1, keepdim=True) / 2 - math.log(family.n_features) / 2


def performer(family: Performer, q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Visibility) -> Tensor:
    """Output (batch, n_heads, length_q, d_value) in O(length n_features d_value)."""
    root = math.sqrt(scale)
    log_q, log_k = log_features(q * root, family), log_features(k * root, family)
    visible = seen.key_columns()
    log_k = log_k if visible is None else log_k.masked_fill(~visible, -torch.inf)
    v = functional.pad(v, (0, 1), value=1.0)  # the denominator is the sum of the same terms with value 1
    if seen.causal:
        return _causal(log_q, log_k, v)
    # Scaled feature by feature by the largest key, then row by row by the largest term: the denominator is at least 1.
    largest = _finite(log_k.detach().amax(-2, keepdim=True))
    keys = torch.exp(log_k - largest)
    log_q = log_q + largest
    queries = torch.exp(log_q - log_q.detach().amax(-1, keepdim=True))
    total = queries @ (keys.mT @ v)
    return _divide(total[..., :-1], total[..., -1:])


def performer_weights(family: Performer, q: Tensor, k: Tensor, scale: float, seen: Visibility) -> Tensor:
    """Weights (batch, n_heads, length_q, length_k), pair by pair: the slow reference of :func:`performer`."""
    root = math.sqrt(scale)
    log_q, log_k = log_features(q * root, family), log_features(k * root, family)
    scores = torch.stack([torch.logsumexp(row[..., None, :] + log_k, dim=-1) for row in log_q.unbind(-2)], dim=-2)
    return masked_softmax(scores, seen.dense(q.shape[2], k.shape[2], q.device))


def _causal(log_q: Tensor, log_k: Tensor, v: Tensor) -> Tensor:
    """Sums over the past: pairs within chunks one by one, earlier chunks by their carried sum; `v` ends in a column of ones."""
    batch, n_heads, length, n_features = log_q.shape
    padding = -length % CHUNK
    largest = log_k.detach().cummax(-2).values
    rows = _finite((log_q.detach() + largest).amax(-1, keepdim=True))
    a, v = (_chunks(x, padding, 0.0) for x in (log_q - rows, v))
    b, largest = (_chunks(x, padding, -torch.inf) for x in (log_k, largest))
    ends = largest.amax(-2, keepdim=True)
    state, end = v.new_zeros(batch, n_heads, n_features, v.shape[-1]), torch.full_like(ends[:, :, :1], -torch.inf)
    # As many chunks at once as keep the tensor of pairs small.
    n_chunks = max(1, MOST_PAIRS // (batch * n_heads * CHUNK * CHUNK * n_features))
    outputs = []
    groups = (x.split(n_chunks, dim=2) for x in (a, b, v, ends))
    for queries, keys, values, last in zip(*groups, strict=True):
        output, state, end = _causal_chunks(queries, keys, values, last, state, end)
        outputs.append(output)
    return torch.cat(outputs, dim=2).flatten(2, 3)[:, :, :length]


def _causal_chunks(
    a: Tensor, b: Tensor, v: Tensor, ends: Tensor, state: Tensor, end: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs of consecutive chunks (batch, n_heads, n_chunks, CHUNK, ...) and what they carry on."""
    # Terms of the past are at most 1 but for rounding; those of the future are cut off before they overflow: inf times 0 is NaN.
    pairs = a[..., :, None, :] + b[..., None, :, :]
    near = torch.exp(pairs.clamp(max=1.0)).sum(-1).tril()
    before = torch.cat((end, ends[:, :, :-1]), dim=2)
    sums = torch.exp(b - _finite(ends)).mT @ v
    decays = torch.exp(before - _finite(ends)).mT
    states = []
    for decay, added in zip(decays.unbind(2), sums.unbind(2), strict=True):
        states.append(state)
        state = state * decay + added
    total = near @ v + torch.exp(a + before) @ torch.stack(states, dim=2)
    return _divide(total[..., :-1], total[..., -1:]), state, ends[:, :, -1:]


def _chunks(x: Tensor, padding: int, fill: float) -> Tensor:
    """(batch, n_heads, length, d) as (batch, n_heads, n_chunks, CHUNK, d)."""
    return functional.pad(x, (0, 0, 0, padding), value=fill).unflatten(2, (-1, CHUNK))


def _finite(largest: Tensor) -> Tensor:
    """Scales of sums without a term are 0, since -inf less -inf is NaN."""
    return largest.masked_fill(torch.isneginf(largest), 0.0)


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    nothing = denominator == 0
    return (numerator / denominator.masked_fill(nothing, 1.0)).masked_fill(nothing, 0.0)
