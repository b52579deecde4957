"""Our own model directory: `model.safetensors` (tensors) and `config.json` (everything else)."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oplens.errors import ArgumentError, CheckpointError
from oplens.models.configuration import S4DConfig
from oplens.models.s4d import S4D

FORMAT = "oplens-s4d"
VERSION = 1


def save_model(model: S4D, directory: str | Path) -> None:
    """Write a model directory; files appear under their names only when complete."""
    from safetensors.torch import save

    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be used as a model directory ({error.strerror}).") from error
    tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in model.state_dict().items()}
    header = {"format": FORMAT, "version": VERSION, "config": model.config.to_dict()}
    write_bytes(directory / "model.safetensors", save(tensors))
    write_bytes(directory / "config.json", (json.dumps(header, indent=1) + "\n").encode())


def load_model(directory: str | Path) -> S4D:
    """Read a model directory written by :func:`save_model`."""
    directory = Path(directory)
    header = read_json(directory / "config.json", "a model directory holds config.json and model.safetensors")
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"{directory / 'config.json'}: not a model of this library (format {header.get('format')!r})."
        )
    if header.get("version") != VERSION:
        raise CheckpointError(
            f"{directory / 'config.json'}: written in version {header.get('version')!r} of the layout, this library reads {VERSION}."
        )
    if not isinstance(header.get("config"), dict):
        raise CheckpointError(f"{directory / 'config.json'}: key 'config' is missing.")
    try:
        config = S4DConfig.from_dict(header["config"])
    except ArgumentError as error:
        raise CheckpointError(f"{directory / 'config.json'}: {error}") from error
    tensors = read_tensors(directory / "model.safetensors")
    return build_model(config, tensors, str(directory / "model.safetensors"))


def build_model(config: S4DConfig, tensors: dict[str, Tensor], where: str) -> S4D:
    """A model in evaluation mode from its tensors, which must match the configuration to the last key and shape."""
    model = S4D(config)
    expected = model.state_dict()
    for name in expected:
        if name not in tensors:
            raise CheckpointError(
                f"{where}: key {name!r} is missing; the file is incomplete or of another architecture."
            )
        if tensors[name].shape != expected[name].shape:
            raise CheckpointError(
                f"{where}: {name} has shape {tuple(tensors[name].shape)}, expected {tuple(expected[name].shape)}."
            )
    unknown = sorted(set(tensors) - set(expected))
    if unknown:
        raise CheckpointError(f"{where}: unknown keys {', '.join(unknown[:5])}; nothing was loaded.")
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"{where}: {name} has dtype {tensor.dtype}, expected a real floating-point tensor.")
        if not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            raise CheckpointError(
                f"{where}: {name} holds {count} NaN or infinite values; the training run that wrote it diverged."
            )
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors.values()) else torch.float32
    model = model.to(dtype)
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in tensors.items()})
    return model.eval()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: damaged safetensors file ({error}); copy or write it again.") from error


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """A JSON object from a file, or a sentence."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {hint}.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}.")
    return value


def write_bytes(path: Path, content: bytes) -> None:
    """Write under a temporary name in the same folder, then rename."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
