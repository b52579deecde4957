"""One input through a constructed model, layer by layer: what its pictures are read from."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oplens.models.transformer import Transformer


@dataclass(frozen=True)
class Steps:
    """What one input of n positions makes of a model with L layers.

    Parameters
    ----------
    weights : array, (L, n_heads, n, n)
        Attention; NaN in layers and heads that there are not.
    residual : array, (L + 1, n, d_model)
        Residual stream: embedding, then after each layer.
    firing : array, (L, n) int
        Hidden units above 0.
    before, activations : array, (d_model,), (d_ffn of the last layer,)
        At the last position: residual stream before the last layer's feed-forward network, and that network's hidden units.
    output : array, (d_output,)
    """

    weights: NDArray[np.float64]
    residual: NDArray[np.float64]
    firing: NDArray[np.int64]
    before: NDArray[np.float64]
    activations: NDArray[np.float64]
    output: NDArray[np.float64]

    @property
    def used(self) -> NDArray[np.bool_]:
        """(L + 1, n): positions whose state the answer is made of, found backwards from the last along what attention looks at.

        A position looks at those with at least half of its largest weight: at one where attention is sharp, at all where it is uniform.
        """
        found = np.zeros(self.residual.shape[:2], dtype=bool)
        found[-1, -1] = True
        for layer in range(len(self.weights) - 1, -1, -1):
            found[layer] = found[layer + 1]
            for head in self.weights[layer]:
                rows = head[found[layer + 1]]
                found[layer] |= (rows >= rows.max(1, keepdims=True) / 2).any(0)  # comparisons with NaN are false
        return found


def walk(model: Transformer, x: Tensor) -> Steps:
    """Run a model that reads the last position on one input, (1, n) tokens or (1, n, 1) reals.

    Notes
    -----
    Memory: O(L n d_model) and the hidden units of one position at a time.
    """
    config, length = model.config, x.shape[1]
    heads = max(1, *(layer.n_heads for layer in config.layers))
    weights = np.full((config.n_layers, heads, length, length), np.nan)
    firing = np.zeros((config.n_layers, length), dtype=np.int64)
    before, last = np.zeros(0), np.zeros(0)
    with torch.no_grad():
        hidden = model.embedding(x, None)
        residual = [_floats(hidden[0])]
        for index in range(config.n_layers):
            block = model.block(index)
            hidden, found = block.attend(hidden, None, True)
            if found is not None:
                weights[index, : found.shape[1]] = _floats(found[0])
            before = _floats(hidden[0, -1])
            for position in range(length):
                units = block.activations(hidden[:, position : position + 1])
                if units is not None:
                    firing[index, position] = int((units > 0).sum())
                    last = _floats(units[0, 0])
            hidden = block.feed(hidden)
            residual.append(_floats(hidden[0]))
        output = _floats(model(x)[0])
    return Steps(weights, np.stack(residual), firing, before, last, output)


def _floats(value: Any) -> NDArray[np.float64]:
    return np.asarray(value.detach().double().numpy())
