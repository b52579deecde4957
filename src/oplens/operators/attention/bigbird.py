r"""Attention to a window, the first blocks and random blocks (BigBird), in linear cost.

Positions stand in blocks of `block_size`, the last one as short as it comes. A block of queries sees

    window   the `window` blocks around its own (a causal layer: the half up to its own)
    global   the first `n_global` blocks, which in turn see everything (a causal layer: everything before)
    random   `n_random` more, without repetition and without those above (a causal layer: among earlier blocks)

and weights are a softmax over what is seen: no key counts twice, rows sum to 1. Random blocks are drawn from the blocks that a case
itself has, so padding changes nothing; in a causal layer block i's draw depends on i alone, so a longer sequence continues a shorter one.
All heads of a layer share the draw. Keys are gathered, (length, visible blocks, d_head) numbers; no length x length tensor is formed.
Source: Zaheer et al. 2020 (arXiv 2007.14062), blocks, and the internal transformer construction: global tokens are the first.
"""

import torch
from torch import Tensor
from torch.nn import functional

from oplens.operators.attention.draws import uniforms
from oplens.operators.attention.families import BigBird
from oplens.operators.attention.visibility import Visibility, masked_softmax

MOST_GATHERED = 2**20  # numbers of keys gathered at once


def visible_blocks(family: BigBird, n_blocks: int, own: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Blocks that every block of queries sees, and which of these entries are there: (batch, n_blocks, n_visible) int64 and bool.

    Parameters
    ----------
    n_blocks : int
        Of the padded batch.
    own : Tensor, (batch,) int64
        Blocks that each case itself has.

    Examples
    --------
    >>> found, there = visible_blocks(BigBird(window=3, n_global=1, n_random=1), 6, torch.tensor([6]), causal=True)
    >>> [sorted(row[keep].tolist()) for row, keep in zip(found[0], there[0])][:4]
    [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    """
    half, g = family.window // 2, family.n_global
    block = torch.arange(n_blocks, device=own.device)[None, :, None]
    limit = own[:, None, None]
    window = block + torch.arange(-half, 1 if causal else half + 1, device=own.device)
    first = torch.arange(g, device=own.device).expand(len(own), n_blocks, g)
    last = block if causal else block + half
    outside = (first < block - half) if causal else (first < block - half) | ((first > last) & (first < limit))
    drawn, drawn_there = _random_blocks(family, block, limit, causal)
    found = torch.cat((window.expand(len(own), -1, -1), first, drawn), dim=-1)
    there = torch.cat((((window >= 0) & (window < limit)).expand(len(own), -1, -1), outside, drawn_there), dim=-1)
    return found.clamp(0, n_blocks - 1), there


def _random_blocks(family: BigBird, block: Tensor, limit: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Draw without repetition (Floyd's algorithm) from blocks n_global to window and, unless causal, from window to end."""
    half, g, r = family.window // 2, family.n_global, family.n_random
    before = (block - half - g).clamp(min=0)
    after_start = (block + half + 1).clamp(min=g)
    after = torch.zeros_like(before) if causal else (limit - after_start).clamp(min=0)
    count = (before + after).expand(len(limit), -1, -1)[..., 0]
    u = uniforms(family.seed, block.shape[1], r).to(block.device)
    chosen = torch.empty(*count.shape, 0, dtype=torch.int64, device=block.device)
    for t in range(r):
        last = (count - r + t).clamp(min=0)
        pick = torch.minimum((u[:, t] * (last + 1)).long(), last)
        pick = torch.where((chosen == pick[..., None]).any(-1), last, pick)
        pick = torch.where(count <= r, t, pick)  # then all are taken, in order
        chosen = torch.cat((chosen, pick[..., None]), dim=-1)
    there = torch.arange(r, device=block.device) < count[..., None]
    return torch.where(chosen < before, chosen + g, chosen - before + after_start), there


def bigbird(family: BigBird, q: Tensor, k: Tensor, v: Tensor, scale: float, seen: Visibility) -> Tensor:
    """Output (batch, n_heads, length, d_value) in O(length n_visible block_size d), n_visible = window + n_global + n_random."""
    batch, _, length, _ = q.shape
    size = family.block_size
    n_blocks = -(-length // size)
    found, there, keys = _layout(family, n_blocks, seen, batch, length, q.device)
    queries, near_k, near_v = (_blocks(x, n_blocks, size) for x in (q * scale, k, v))
    # Some blocks of queries at a time: what is gathered for all of them together would not fit a cache, and grow with the length.
    at_once = max(1, MOST_GATHERED // (found.shape[2] * near_k[:, 0].numel()))
    outputs = []
    for start in range(0, n_blocks, at_once):
        part = slice(start, start + at_once)
        visible = _visible(found[:, part], there[:, part], keys, size, start if seen.causal else None)
        gathered_k, gathered_v = (_gather(x, found[:, part]) for x in (near_k, near_v))
        weights = masked_softmax(queries[:, part].transpose(1, 2) @ gathered_k.mT, visible)
        outputs.append(weights @ gathered_v)
    output = torch.cat(outputs, dim=2).flatten(2, 3)[:, :, :length]
    first = 0 if seen.causal else min(family.n_global * size, length)
    if first:
        mask = None if seen.keys is None else seen.keys[:, None, None]
        everything = masked_softmax((q[:, :, :first] * scale) @ k.mT, mask) @ v
        output = torch.cat((everything, output[:, :, first:]), dim=2)
    return output


def bigbird_weights(family: BigBird, q: Tensor, k: Tensor, scale: float, seen: Visibility) -> Tensor:
    """Weights (batch, n_heads, length, length) by one mask of all pairs: the slow reference of :func:`bigbird`."""
    batch, _, length, _ = q.shape
    size = family.block_size
    n_blocks = -(-length // size)
    found, there, _ = _layout(family, n_blocks, seen, batch, length, q.device)
    pairs = torch.zeros(batch, n_blocks, n_blocks, dtype=torch.int64, device=q.device)
    pairs = pairs.scatter_add_(2, found, there.long()) > 0
    if not seen.causal:
        pairs[:, : family.n_global] = True
    pairs = pairs.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, None, :length, :length]
    visible = seen.dense(length, length, q.device)
    return masked_softmax((q * scale) @ k.mT, pairs if visible is None else pairs & visible)


def _layout(
    family: BigBird, n_blocks: int, seen: Visibility, batch: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    own = -(-seen.ends(batch, length, device) // family.block_size)
    found, there = visible_blocks(family, n_blocks, own, seen.causal)
    keys = torch.ones(batch, length, dtype=torch.bool, device=device) if seen.keys is None else seen.keys
    return found, there, functional.pad(keys, (0, n_blocks * family.block_size - length))


def _blocks(x: Tensor, n_blocks: int, size: int) -> Tensor:
    """(batch, n_heads, length, d) as (batch, n_blocks, n_heads, size, d), the last block filled with zeros."""
    x = functional.pad(x, (0, 0, 0, n_blocks * size - x.shape[2]))
    return x.unflatten(2, (n_blocks, size)).transpose(1, 2)


def _visible(found: Tensor, there: Tensor, keys: Tensor, size: int, start: int | None) -> Tensor:
    """Mask (batch, 1, n_blocks, size or 1, n_visible size) of gathered keys; `start`: number of the first block of a causal layer."""
    n_blocks = found.shape[1]
    rows = _rows(found, keys.shape[1] // size)
    visible = (keys.reshape(-1, size)[rows].reshape(*found.shape, size) & there[..., None]).flatten(-2)[
        :, None, :, None
    ]
    if start is None:
        return visible
    inside = torch.arange(size, device=found.device)
    positions = (found[..., None] * size + inside).flatten(-2)[:, None, :, None]
    queries = (start + torch.arange(n_blocks, device=found.device)) * size
    return visible & (positions <= (queries[:, None] + inside)[..., None])


def _rows(found: Tensor, n_blocks: int) -> Tensor:
    """Numbers of blocks within a case as numbers within the batch, in one row."""
    return (found + n_blocks * torch.arange(len(found), device=found.device)[:, None, None]).flatten()


def _gather(blocks: Tensor, found: Tensor) -> Tensor:
    """(batch, n_blocks, n_heads, size, d) and which of them, to (batch, n_heads, n_queries, n_visible size, d)."""
    batch, n_blocks, n_heads, size, d = blocks.shape
    picked = blocks.flatten(0, 1).index_select(0, _rows(found, n_blocks))
    picked = picked.reshape(*found.shape, n_heads, size, d).permute(0, 3, 1, 2, 4, 5)
    return picked.reshape(batch, n_heads, found.shape[1], found.shape[2] * size, d)
