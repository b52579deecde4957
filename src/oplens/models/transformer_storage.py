"""A transformer's directory: `model.safetensors` (tensors) and `config.json` (everything else), as S4D models have."""

from pathlib import Path

import torch
from torch import Tensor

from oplens.errors import CheckpointError
from oplens.models.storage import read_folder, write_folder
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig
from oplens.models.transformer_layers import SparseLinear

FORMAT = "oplens-transformer"
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def save_transformer(model: Transformer, directory: str | Path) -> None:
    """Write a model directory; files appear under their names only when complete, and `config.json` holds the tensors' SHA-256."""
    write_folder(directory, model.state_dict(), FORMAT, model.config.to_dict())


def load_transformer(directory: str | Path) -> Transformer:
    """Read a directory written by :func:`save_transformer`, in the dtype it was saved in and in evaluation mode.

    Raises
    ------
    CheckpointError
        If a file is missing, damaged, of another model, or holds what the configuration does not describe.
    """
    config, tensors, where = read_folder(directory, FORMAT, "transformer", TransformerConfig.from_dict)
    return build_transformer(config, tensors, where)


def build_transformer(config: TransformerConfig, tensors: dict[str, Tensor], where: str) -> Transformer:
    """A model in evaluation mode from its tensors, which must match the configuration to the last key and shape."""
    layers = {name.split(".")[1] for name in tensors if name.startswith("layers.")}
    if len(layers) != config.n_layers:
        raise CheckpointError(f"{where}: holds {len(layers)} layers, the configuration says {config.n_layers}.")
    with torch.device("meta"):  # shapes only: a configuration may ask for more memory than there is
        model = Transformer(config)
    sparse = {name: module for name, module in model.named_modules() if isinstance(module, SparseLinear)}
    for name, module in sparse.items():
        values = tensors.get(f"{name}.values")
        module.allocate(0 if values is None else values.numel())
    expected = model.state_dict()
    for name, wanted in expected.items():
        if name not in tensors:
            raise CheckpointError(
                f"{where}: key {name!r} is missing; the file is incomplete or of another configuration."
            )
        if tensors[name].shape != wanted.shape:
            raise CheckpointError(
                f"{where}: {name} has shape {tuple(tensors[name].shape)}, expected {tuple(wanted.shape)}."
            )
    unknown = sorted(set(tensors) - set(expected))
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise CheckpointError(f"{where}: unknown keys {', '.join(unknown[:5])}{more}; nothing was loaded.")
    dtype = _check_values(tensors, expected, where)
    for name, module in sparse.items():
        _check_indices(name, module, tensors, where)
    model = model.to(dtype).to_empty(device="cpu")
    model.load_state_dict(tensors)
    return model.eval()


def _check_values(tensors: dict[str, Tensor], expected: dict[str, Tensor], where: str) -> torch.dtype:
    """The one floating-point dtype of all parameters."""
    dtypes = set()
    for name, tensor in tensors.items():
        if not expected[name].is_floating_point():
            if tensor.dtype != torch.int64:
                raise CheckpointError(f"{where}: {name} has dtype {tensor.dtype}, expected int64 indices.")
            continue
        if tensor.dtype not in DTYPES:
            raise CheckpointError(f"{where}: {name} has dtype {tensor.dtype}, expected a real floating-point tensor.")
        if not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(f"{where}: {name} holds {count} NaN or infinite values; these are no weights.")
        dtypes.add(tensor.dtype)
    if len(dtypes) != 1:
        raise CheckpointError(f"{where}: parameters of {', '.join(sorted(map(str, dtypes)))}; expected one dtype.")
    return dtypes.pop()


def _check_indices(name: str, module: SparseLinear, tensors: dict[str, Tensor], where: str) -> None:
    """Indices are followed without a check when the model runs, so they are checked here."""
    rows, columns = tensors[f"{name}.crow_indices"], tensors[f"{name}.col_indices"]
    steps = rows.diff()
    if int(rows[0]) != 0 or int(rows[-1]) != len(columns) or bool((steps < 0).any()):
        raise CheckpointError(
            f"{where}: {name}.crow_indices do not rise from 0 to the {len(columns)} entries there are."
        )
    if len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < module.d_input:
        raise CheckpointError(f"{where}: {name}.col_indices leave 0 to {module.d_input - 1}.")
    row = torch.repeat_interleave(steps)
    if bool(((columns.diff() <= 0) & (row.diff() == 0)).any()):
        raise CheckpointError(f"{where}: {name}.col_indices do not rise within a row.")
