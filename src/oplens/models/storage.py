"""Our own model directory: `model.safetensors` (tensors) and `config.json` (everything else)."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from oplens.errors import ArgumentError, CheckpointError
from oplens.files import kind_of, replacing
from oplens.models.configuration import S4DConfig
from oplens.models.s4d import S4D

FORMAT = "oplens-s4d"
VERSION = 1  # of the layout of both kinds of models

C = TypeVar("C")


def save_model(model: S4D, directory: str | Path) -> None:
    """Write a model directory; see :func:`write_folder`."""
    write_folder(directory, model.state_dict(), FORMAT, model.config.to_dict())


def load_model(directory: str | Path) -> S4D:
    """Read a model directory written by :func:`save_model`."""
    others = {"oplens-transformer": "this is a transformer; read it with Transformer.from_pretrained"}
    config, tensors, where = read_folder(directory, FORMAT, "model", S4DConfig.from_dict, others)
    return build_model(config, tensors, where)


def write_folder(directory: str | Path, tensors: dict[str, Tensor], layout: str, config: dict[str, Any]) -> None:
    """Write tensors and configuration; files appear under their names only when complete.

    The configuration holds the SHA-256 of the tensors, so that a directory whose two files come from different
    models (an interrupted overwrite, a partial copy) is refused instead of giving another model's preprocessing.
    """
    from safetensors.torch import save

    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be used as a model directory ({error.strerror}).") from error
    content = save({name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()})
    header = {
        "format": layout,
        "version": VERSION,
        "tensors_sha256": hashlib.sha256(content).hexdigest(),
        "config": config,
    }
    try:
        write_bytes(directory / "model.safetensors", content)
        write_bytes(directory / "config.json", (json.dumps(header, indent=1) + "\n").encode())
    except OSError as error:
        raise CheckpointError(f"{directory}: the model could not be written ({error.strerror}).") from error


def read_folder(
    directory: str | Path,
    layout: str,
    kind: str,
    configured: Callable[[dict[str, Any]], C],
    others: dict[str, str] | None = None,
) -> tuple[C, dict[str, Tensor], str]:
    """Configuration, tensors and where they stand, of a directory of one `layout`; `others` say what to do with known other ones."""
    directory = Path(directory)
    where = directory / "config.json"
    header = read_json(where, "a model directory holds config.json and model.safetensors")
    found = header.get("format")
    if others and isinstance(found, str) and found in others:
        raise CheckpointError(f"{where}: {others[found]}.")
    if found != layout:
        raise CheckpointError(f"{where}: not a {kind} of this library (format {found!r}).")
    if header.get("version") != VERSION:
        raise CheckpointError(
            f"{where}: written in version {header.get('version')!r} of the layout, this library reads {VERSION}."
        )
    if not isinstance(header.get("config"), dict):
        raise CheckpointError(f"{where}: key 'config' is missing.")
    try:
        config = configured(header["config"])
    except ArgumentError as error:
        raise CheckpointError(f"{where}: {error}") from error
    path = directory / "model.safetensors"
    content = read_content(path)
    if hashlib.sha256(content).hexdigest() != header.get("tensors_sha256"):
        raise CheckpointError(
            f"{path}: its content is not what {where} was written with (SHA-256 differs): a damaged copy, or files of two models; "
            "copy or save the directory again."
        )
    return config, parse_tensors(content, path), str(path)


def build_model(config: S4DConfig, tensors: dict[str, Tensor], where: str) -> S4D:
    """A model in evaluation mode from its tensors, which must match the configuration to the last key and shape."""
    layers = {name.split(".")[1] for name in tensors if name.startswith("s4_layers.")}
    if len(layers) != config.n_layers:
        raise CheckpointError(f"{where}: holds {len(layers)} layers, the configuration says {config.n_layers}.")
    with torch.device("meta"):  # shapes only: a configuration may ask for more memory than there is
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
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise CheckpointError(f"{where}: unknown keys {', '.join(unknown[:5])}{more}; nothing was loaded.")
    return _fill(model, tensors, where)


def _fill(model: S4D, tensors: dict[str, Tensor], where: str) -> S4D:
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"{where}: {name} has dtype {tensor.dtype}, expected a real floating-point tensor.")
        finite = torch.isfinite(tensor.double())
        if not bool(finite.all()):
            count = int((~finite).sum())
            raise CheckpointError(
                f"{where}: {name} holds {count} NaN or infinite values; the training run that wrote it diverged."
            )
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors.values()) else torch.float32
    model = model.to(dtype).to_empty(device="cpu")
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in tensors.items()})
    for name, tensor in model.state_dict().items():
        # Steps and decay rates are exponentials of what is stored.
        stored = name.endswith((".log_dt", ".log_A_real", ".log_decay"))
        if stored and not bool(torch.isfinite(torch.exp(tensor.double())).all()):
            raise CheckpointError(
                f"{where}: {name} reaches {float(tensor.max()):g}, whose exponential overflows; these are no trained weights."
            )
    for index in range(model.config.n_layers):
        if not bool(torch.isfinite(model.layer(index).poles().abs()).all()):
            raise CheckpointError(
                f"{where}: the coupling of layer {index} gives poles beyond the largest number; these are no trained weights."
            )
    return model.eval()


def read_content(path: Path) -> bytes:
    """The bytes of a file, or a sentence."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    if kind_of(content[:512]) == "git-lfs":
        raise CheckpointError(
            f"{path}: this is a Git LFS pointer, not the file it stands for; fetch the file itself with `git lfs pull`."
        )
    return content


def parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    """Tensors of the bytes of a safetensors file, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: damaged safetensors file ({error}); copy or write it again.") from error


def read_json(path: Path, hint: str) -> dict[str, Any]:
    """A JSON object from a file, or a sentence."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); {hint}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}.")
    return value


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file that appears under its name only when whole."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)
