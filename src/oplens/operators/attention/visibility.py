"""Which keys a query sees, and a softmax over them that knows rows which see nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oplens.errors import ArgumentError


@dataclass(frozen=True)
class Visibility:
    """What hides keys: padding, pairs and the future.

    Attributes
    ----------
    keys : Tensor or None, (batch, length_k) bool
        True where a key may be seen by anyone; None: everywhere.
    pairs : Tensor or None, broadcastable to (batch, n_heads, length_q, length_k), bool
    causal : bool
        Query i sees keys 0 to i.
    """

    keys: Tensor | None
    pairs: Tensor | None
    causal: bool

    def key_columns(self) -> Tensor | None:
        """Visible keys as (batch, 1, length_k, 1), to be broadcast over (batch, n_heads, length_k, d)."""
        return None if self.keys is None else self.keys[:, None, :, None]

    def ends(self, batch: int, length: int, device: torch.device) -> Tensor:
        """One past the last visible key of each case, (batch,) int64: its own length, however far it is padded."""
        if self.keys is None:
            return torch.full((batch,), length, device=device)
        return ((torch.arange(length, device=device) + 1) * self.keys).amax(-1)

    def dense(self, length_q: int, length_k: int, device: torch.device) -> Tensor | None:
        """Everything in one mask, broadcastable to (batch, n_heads, length_q, length_k); None when all is visible."""
        found = self.pairs
        if self.keys is not None:
            found = self.keys[:, None, None, :] if found is None else found & self.keys[:, None, None, :]
        if self.causal:
            past = torch.ones(length_q, length_k, dtype=torch.bool, device=device).tril()
            found = past if found is None else found & past
        return found


def masked_softmax(scores: Tensor, visible: Tensor | None) -> Tensor:
    """Softmax over the last dimension among visible entries; a row that sees nothing is 0, never NaN, and so are its gradients.

    Hidden scores are -inf: any finite stand-in loses to scores that are lower still.

    Examples
    --------
    >>> scores = torch.tensor([[0.0, -3e38], [1.0, 2.0]])
    >>> masked_softmax(scores, torch.tensor([[False, True], [False, False]])).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    if visible is None:
        return torch.softmax(scores, dim=-1)
    anything = visible.any(-1, keepdim=True)
    scores = scores.masked_fill(~visible, -torch.inf).masked_fill(~anything, 0.0)
    return torch.softmax(scores, dim=-1) * anything


def resolve(
    lengths: Tensor | None, mask: Tensor | None, causal: bool, q: Tensor, k: Tensor, *, family: str, pairs_allowed: bool
) -> Visibility:
    """Check `lengths`, `mask` and `causal` against the tensors they speak of."""
    batch, n_heads, length_q, _ = q.shape
    length_k = k.shape[2]
    if causal and length_q != length_k:
        raise ArgumentError(
            f"attend(causal=True): {length_q} queries and {length_k} keys; which keys are past is known for equal lengths only."
        )
    keys, pairs = None, None
    if lengths is not None:
        keys = _from_lengths(lengths, batch, length_k, q.device)
    if mask is not None:
        if mask.dtype != torch.bool:
            raise ArgumentError(
                f"attend(mask of {mask.dtype}): give booleans, True where a key may be seen; an additive mask of finite values "
                "loses to large scores."
            )
        if mask.shape == (batch, length_k):
            keys = mask if keys is None else keys & mask
        elif mask.ndim == 4 and all(
            size in (1, full) for size, full in zip(mask.shape, (batch, n_heads, length_q, length_k), strict=True)
        ):
            pairs = mask
        else:
            raise ArgumentError(
                f"attend(mask of shape {tuple(mask.shape)}): expected (batch={batch}, length_k={length_k}) for keys, or four "
                f"dimensions that broadcast to (batch={batch}, n_heads={n_heads}, length_q={length_q}, length_k={length_k})."
            )
    if pairs is not None and not pairs_allowed:
        raise ArgumentError(
            f"attend(family={family}): a mask of pairs needs all length_q x length_k scores, which this family never forms; "
            "give lengths or a mask of keys, (batch, length_k), or use Softmax or Reformer."
        )
    return Visibility(keys, pairs, causal)


def _from_lengths(lengths: Tensor, batch: int, length_k: int, device: torch.device) -> Tensor:
    if lengths.shape != (batch,) or lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise ArgumentError(
            f"attend(lengths of shape {tuple(lengths.shape)}, {lengths.dtype}): expected {batch} integers, one per case."
        )
    if not lengths.is_meta and (int(lengths.min()) < 0 or int(lengths.max()) > length_k):
        raise ArgumentError(
            f"attend(lengths from {int(lengths.min())} to {int(lengths.max())}): must lie between 0 and {length_k}, the number of keys."
        )
    return torch.arange(length_k, device=device)[None] < lengths.to(device)[:, None]
