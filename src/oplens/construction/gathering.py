r"""Reals of a sequence gathered into slots at every position: one feed-forward layer and one uniform attention.

    slot_i = ReLU(x - s (K - <PE(i), PE(pos)>)),  s = (1 + margin)/gamma     is x at position i and 0 elsewhere, for x in [0, 1]
    g_i    = n mean_pos slot_i                                              is x_i: scores are 0, so weights are 1/n

gamma is the least of K - <PE(i), PE(j)> over i != j. No temperature: exact in real arithmetic.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from numpy.typing import NDArray
from torch import nn

from oplens.construction.certificate import Certificate, Margin
from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig
from oplens.models.transformer_counts import count_weights
from oplens.models.transformer_layers import SparseLinear, sinusoids
from oplens.theory import score_gap

ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24}
MARGIN = 0.125  # how far below 0 the slots of other positions stay, for rounding to eat from


def gamma(terms: float, unit: float) -> float:
    """k u / (1 - k u): relative error of k roundings, whatever their order (Higham 2002, lemma 3.1)."""
    if terms * unit >= 0.5:
        raise ArgumentError(
            f"{terms:.0f} roundings of size {unit:.1e} leave no certified digit; build in float64 or make it smaller."
        )
    return terms * unit / (1 - terms * unit)


@dataclass(frozen=True)
class Gathering:
    """Where the gathered reals lie in the residual stream, and how exact they are.

    Coordinates: positions (2K), x (1), slots (n), gathered (n), then the construction's own from `first` on.
    """

    n: int
    n_frequencies: int
    bounds: tuple[float, float]

    @property
    def slope(self) -> float:
        """s; one position alone has no other to be told from."""
        return 0.0 if self.n == 1 else (1 + MARGIN) / score_gap(self.n_frequencies, self.n)

    @property
    def gathered(self) -> int:
        """Coordinate of g_1."""
        return 2 * self.n_frequencies + 1 + self.n

    @property
    def first(self) -> int:
        """First coordinate that is free."""
        return self.gathered + self.n

    def slot_error(self, unit: float) -> float:
        """Bound on the rounding of what enters a slot's ReLU, in units of the unit cube.

        x rounds once on entering and is scaled by the embedding; 2K products of rounded codes and rounded weights, whose absolute
        values sum to at most s K, and the constant s K.
        """
        low, high = self.bounds
        entering = gamma(5, unit) * 2 * max(abs(low), abs(high)) / (high - low)
        return entering + gamma(2 * self.n_frequencies + 6, unit) * (1 + entering + 2 * self.slope * self.n_frequencies)

    def error(self, unit: float) -> float:
        """Bound on abs(g_i - x_i) in units of the unit cube; needs `slot_error` below the margin.

        One slot per sum is not exactly 0, so adding rounds nothing: weight 1/n, product, n, copies.
        """
        slot = self.slot_error(unit)
        return slot + gamma(8, unit) * (1 + slot)

    def model(self, own: int, hidden: Sequence[int]) -> Transformer:
        """A float64 model of 1 + len(hidden) layers that gathers, with all weights of `hidden` layers and of the readout still 0.

        Parameters
        ----------
        own : int
            Coordinates after `first`.
        hidden : sequence of int
            Feed-forward units of the layers after the first; the second has the only attention.
        """
        n, K, d_model = self.n, self.n_frequencies, self.first + own
        low, high = self.bounds
        layers = 1 + len(hidden)
        config = TransformerConfig(
            d_output=1,
            d_input=1,
            d_model=d_model,
            n_layers=layers,
            n_heads=[int(layer == 1) for layer in range(layers)],
            d_head=1,
            d_value=n,
            d_ffn=[n, *hidden],
            activation="relu",
            norm="none",
            n_frequencies=K,
            max_length=n,
            weights="sparse",
        )
        model = Transformer(config).double()
        write(
            model.embedding.input, [0], [0], [1 / (high - low)], [-low / (high - low)] + [0.0] * (d_model - 2 * K - 1)
        )
        slots, index = 2 * K + 1 + np.arange(n), np.arange(n)
        code = sinusoids(n, K).numpy()
        feed = model.block(0).feedforward
        assert feed is not None
        rows = np.concatenate((np.repeat(index, 2 * K), index))
        columns = np.concatenate((np.tile(np.arange(2 * K), n), np.full(n, 2 * K)))
        write(
            feed.up, rows, columns, np.concatenate((self.slope * code.ravel(), np.ones(n))), np.full(n, -self.slope * K)
        )
        write(feed.down, slots, index, np.ones(n))
        attention = model.block(1).attention
        assert attention is not None
        write(attention.value, index, slots, np.full(n, float(n)))
        write(attention.output, self.gathered + index, index, np.ones(n))
        return model


def gathering(call: str, n: int, n_frequencies: int, bounds: tuple[float, float], dtype: torch.dtype) -> Gathering:
    """The gathering of n reals, refused where rounding could let one position's value leak into another's slot."""
    if dtype not in ROUNDOFF:
        raise ArgumentError(
            f"{call}(dtype={dtype}): choose torch.float64 or torch.float32; half precision has no certificate here, its rounding is larger "
            "than what the cells of a useful grid differ by."
        )
    plan = Gathering(n, n_frequencies, bounds)
    slot = plan.slot_error(ROUNDOFF[dtype])
    if slot >= MARGIN:
        raise ArgumentError(
            f"{call}(n={n}, n_frequencies={n_frequencies}, dtype={dtype}): rounding of {slot:.3g} could let values leak between positions "
            f"(margin {MARGIN}); use more frequencies, float64, or bounds nearer to 0."
        )
    return plan


def write(
    linear: nn.Module,
    rows: Sequence[int] | NDArray[np.int64],
    columns: Sequence[int] | NDArray[np.int64],
    values: Sequence[float] | NDArray[np.float64],
    bias: Sequence[float] | NDArray[np.float64] | None = None,
) -> None:
    """Make a sparse linear map that of these entries, those of one place added up, zeros left out; a bias of 0 unless given."""
    assert isinstance(linear, SparseLinear)
    assert linear.bias is not None
    place = (np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64))
    matrix = scipy.sparse.csr_array(
        scipy.sparse.coo_array((np.asarray(values, dtype=np.float64), place), (linear.d_output, linear.d_input))
    )
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    found = matrix.tocoo()
    linear.set_entries(
        torch.from_numpy(found.row.astype(np.int64)),
        torch.from_numpy(found.col.astype(np.int64)),
        torch.from_numpy(found.data),
    )
    with torch.no_grad():
        linear.bias.copy_(torch.zeros(linear.d_output) if bias is None else torch.as_tensor(np.asarray(bias)))


def read(
    linear: nn.Module,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows, columns and values of a sparse linear map's entries, and its bias."""
    assert isinstance(linear, SparseLinear)
    assert linear.bias is not None
    rows = torch.repeat_interleave(linear.crow_indices.diff())
    return rows.numpy(), linear.col_indices.numpy(), linear.values.detach().numpy(), linear.bias.detach().numpy()


def certify(
    construction: str,
    model: Transformer,
    plan: Gathering,
    statement: str,
    hypotheses: tuple[str, ...],
    parts: tuple[tuple[str, float], ...],
) -> Certificate:
    """The certificate of a model that gathers by `plan`, in the model's own dtype."""
    counts, config = count_weights(model), model.config
    assert isinstance(model.readout, SparseLinear)
    dtype = model.readout.values.dtype
    name = str(dtype).removeprefix("torch.")
    slot = plan.slot_error(ROUNDOFF[dtype])
    return Certificate(
        construction=construction,
        claim="bound",
        dtype=name,
        statement=statement,
        hypotheses=(
            *hypotheses,
            f"every variable in [{plan.bounds[0]:g}, {plan.bounds[1]:g}], exactly {plan.n} positions",
            f"{name} arithmetic in any order of summation, with or without fused multiply-add",
        ),
        error_parts=parts,
        depth=config.n_layers,
        attention_layers=1,
        width=config.d_model,
        hidden=tuple(layer.d_ffn for layer in config.layers),
        dense=counts.slots,
        sparse=counts.nonzeros,
        readout=sum(int(torch.count_nonzero(parameter)) for parameter in model.readout.parameters()),
        margins=(Margin(name, "slots of other positions below 0", slot, MARGIN),) if plan.n > 1 else (),
    )
