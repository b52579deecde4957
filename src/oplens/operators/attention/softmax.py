r"""Exact attention: out_i = sum_j p_ij v_j, p_i = softmax_j(scale q_i k_j) over the visible keys; quadratic in length."""

from torch import Tensor

from oplens.operators.attention.visibility import Visibility, masked_softmax


def softmax_weights(q: Tensor, k: Tensor, scale: float, seen: Visibility) -> Tensor:
    """Weights (batch, n_heads, length_q, length_k); rows sum to 1, or are 0 where nothing is visible."""
    scores = (q * scale) @ k.mT
    return masked_softmax(scores, seen.dense(q.shape[2], k.shape[2], q.device))
