"""A transformer of given sizes with nothing in it, filled map by map, and counted."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from oplens.construction.function import MEMORY_LIMIT, FunctionTable
from oplens.errors import ArgumentError
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig
from oplens.models.transformer_counts import count_parameters
from oplens.models.transformer_layers import SparseLinear

DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Significant bits t: numbers in [1, 2) are 2^(1-t) apart.
DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
DENSE_AT_MOST = 2**18  # places up to which full matrices are the plainer choice; beyond, half precision crawls


def dtype_name(call: str, dtype: Any) -> str:
    """Name of a dtype that constructions know, from a name or a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ArgumentError(f"{call}(dtype={dtype!r}): choose one of {', '.join(DTYPES)}.")
    return name


def unit_roundoff(dtype: str) -> float:
    """Largest relative error of one rounding, 2^-t."""
    return float(2.0 ** -DIGITS[dtype])


def sum_roundoff(dtype: str) -> float:
    """The same for one addition within a sum: attention, and sums of products, run in float32 for the half precisions."""
    return unit_roundoff("float32" if dtype in ("float16", "bfloat16") else dtype)


def rounded(values: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """The nearest numbers of a dtype, in float64."""
    return torch.tensor(values, dtype=torch.float64).to(DTYPES[dtype]).double().numpy()


@dataclass(frozen=True)
class Entries:
    """Non-zero entries of a matrix."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Any, columns: Any, values: Any) -> "Entries":
        """From arrays that broadcast against each other, or numbers; zeros are left out."""
        r, c, v = (np.ravel(part) for part in np.broadcast_arrays(rows, columns, values))
        keep = v != 0
        return cls(r[keep].astype(np.int64), c[keep].astype(np.int64), v[keep].astype(np.float64))

    def __add__(self, other: "Entries") -> "Entries":
        return Entries(*(np.concatenate(pair) for pair in zip(self._parts(), other._parts(), strict=True)))

    def _parts(self) -> tuple[NDArray[Any], ...]:
        return self.rows, self.columns, self.values


def set_map(layer: Any, entries: Entries, bias: NDArray[np.float64] | None = None) -> None:
    """Make a linear map, dense or sparse, that of these entries and of this bias."""
    rows, columns = torch.from_numpy(entries.rows), torch.from_numpy(entries.columns)
    values = torch.from_numpy(entries.values)
    with torch.no_grad():
        if isinstance(layer, SparseLinear):
            layer.set_entries(rows, columns, values)
        else:
            layer.weight[rows, columns] = values.to(layer.weight.dtype)
        if bias is not None:
            layer.bias.copy_(torch.from_numpy(bias))


def map_entries(layer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of a linear map's non-zero entries."""
    if isinstance(layer, SparseLinear):
        return torch.repeat_interleave(layer.crow_indices.diff()), layer.col_indices, layer.values.detach()
    assert isinstance(layer, nn.Linear)
    rows, columns = layer.weight.detach().nonzero(as_tuple=True)
    return rows, columns, layer.weight.detach()[rows, columns]


def empty_model(config: TransformerConfig, dtype: str) -> Transformer:
    """A model in evaluation mode whose every weight is 0."""
    with torch.device("meta"):  # no time is spent on random weights
        model = Transformer(config)
    model = model.to(DTYPES[dtype]).to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    return model.eval()


def choose_weights(
    call: str, sizes: dict[str, Any], nonzeros: int, dtype: str, weights: str | None, limit: float
) -> str:
    """Dense or sparse; refused before any weight is made where they would exceed `limit` bytes."""
    config = TransformerConfig(**sizes)
    slots = count_parameters(config).total
    kind = weights or ("dense" if slots <= DENSE_AT_MOST else "sparse")
    if kind not in ("dense", "sparse"):
        raise ArgumentError(f"{call}(weights={weights!r}): choose dense, sparse, or None for the smaller of the two.")
    # A sparse entry has an eight-byte index, and is sorted by another; biases and embeddings stay dense.
    vectors = sum(layer.d_ffn for layer in config.layers) + config.d_model * (config.vocabulary or 0)
    size = DTYPES[dtype].itemsize
    needed = slots * size if kind == "dense" else nonzeros * (size + 40) + vectors * (size + 16)
    if needed > limit:
        cure = "weights='sparse' takes less" if kind == "dense" else "use a smaller vocabulary or length"
        raise ArgumentError(
            f"{call}: {slots if kind == 'dense' else nonzeros:,} {kind} weights need about {needed:,} bytes, above the limit of "
            f"{limit:,.0f}; {cure}, or raise memory_limit."
        )
    return kind


def check_frequencies(call: str, n_frequencies: Any, base: Any) -> None:
    """Refuse what are no sinusoids."""
    if isinstance(n_frequencies, bool) or not isinstance(n_frequencies, int) or not 1 <= n_frequencies <= 2**16:
        raise ArgumentError(f"{call}(n_frequencies={n_frequencies!r}): a whole number from 1 to {2**16} is needed.")
    if base is not None and (isinstance(base, bool) or not isinstance(base, (int, float)) or not 1 < base < math.inf):
        raise ArgumentError(
            f"{call}(frequency_base={base!r}): a finite number above 1 is needed, or None to choose one."
        )


def check_table(call: str, table: Any, dtype: str, headroom: float = 1.0) -> float:
    """The rounding of a table's values in a dtype: largest difference; refused where `headroom` times a value overflows."""
    if not isinstance(table, FunctionTable):
        raise ArgumentError(
            f"{call}({type(table).__name__}): expected a FunctionTable; make one by from_function, from_file or from_family."
        )
    largest = float(np.abs(table.values).max())
    if headroom * largest > torch.finfo(DTYPES[dtype]).max:
        raise ArgumentError(
            f"{call}(dtype={dtype}): the value {largest:g} needs numbers up to {headroom * largest:g}, {dtype} ends at "
            f"{torch.finfo(DTYPES[dtype]).max:g}; use float64 or scale the values."
        )
    return float(np.abs(rounded(table.values, dtype) - table.values).max())


def set_fetch(block: Any, source: NDArray[np.int64], target: NDArray[np.int64], scale: float = 1.0) -> None:
    """Values are the source coordinates; they are written, times `scale`, to the target coordinates."""
    channels = np.arange(len(source))
    set_map(block.attention.value, Entries.of(channels, source, 1.0))
    set_map(block.attention.output, Entries.of(target, channels, scale))


def set_readout(model: Transformer, width: int, outputs: int) -> None:
    """The answer is the last `outputs` coordinates of the residual stream."""
    channels = np.arange(outputs)
    set_map(model.readout, Entries.of(channels, width - outputs + channels, 1.0))


def uniform_slots(config: TransformerConfig) -> int:
    """Places for weights when every layer has the sizes of the largest: no readout, attention without biases, rows of full width."""
    d = config.d_model
    heads = [layer for layer in config.layers if layer.n_heads]
    sizes = 2 * max((s.n_heads * (s.d_head + s.d_value) for s in heads), default=0) * d
    hidden = max(layer.d_ffn for layer in config.layers)
    return (config.vocabulary or 0) * d + config.n_layers * (sizes + hidden * (2 * d + 1) + d)


__all__ = [
    "DIGITS",
    "DTYPES",
    "MEMORY_LIMIT",
    "Entries",
    "check_frequencies",
    "check_table",
    "choose_weights",
    "dtype_name",
    "empty_model",
    "map_entries",
    "rounded",
    "set_fetch",
    "set_map",
    "set_readout",
    "sum_roundoff",
    "uniform_slots",
    "unit_roundoff",
]
