"""Checkpoints of the S4D reference implementation, in every wrapping they are met in, and our own model directories."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from oplens.errors import ArgumentError, CheckpointError
from oplens.models.archives import read_archive
from oplens.models.configuration import Preprocessing, S4DConfig
from oplens.models.s4d import S4D
from oplens.models.storage import build_model, load_model

_WRAPPERS = ("model", "state_dict", "model_state_dict", "net")
_WRAPPED_SEGMENTS = frozenset({"module", "_orig_mod", "model"})  # DataParallel, torch.compile, Lightning

# Parameters (last segment of the key) of relatives of S4D, which this library does not read.
_RELATIVES = {
    "P": "S4 with a low-rank term (DPLR), which is not diagonal in the stored basis",
    "Q": "S4 with a low-rank term (DPLR), which is not diagonal in the stored basis",
    "p": "S4 with a low-rank term (DPLR), which is not diagonal in the stored basis",
    "inv_dt": "a diagonal kernel of the full S4 repository (version 4 naming), not of its models/s4/s4d.py",
    "inv_A_real": "a diagonal kernel of the full S4 repository (version 4 naming), not of its models/s4/s4d.py",
    "A_real": "a diagonal kernel of the full S4 repository (version 4 naming), not of its models/s4/s4d.py",
    "inv_w_real": "a diagonal kernel of the full S4 repository (version 3 naming), not of its models/s4/s4d.py",
    "log_w_real": "a diagonal kernel of the full S4 repository (version 3 naming), not of its models/s4/s4d.py",
    "w_real": "a diagonal kernel of the full S4 repository (version 3 naming), not of its models/s4/s4d.py",
    "w_imag": "a diagonal kernel of the full S4 repository (version 3 naming), not of its models/s4/s4d.py",
    "B": "an S4 kernel with trained input weights, not S4D of models/s4/s4d.py",
    "Lambda": "S5",
    "Lambda_re": "S5",
    "Lambda_im": "S5",
    "nu_log": "LRU",
    "theta_log": "LRU",
    "A_log": "Mamba",
}
# Parameters of models trained as rings, which only a configuration tells apart.
_RINGS = frozenset({"log_decay", "damping", "coupling", "delay_position"})


class _Sizes(TypedDict):
    d_input: int
    n_classes: int
    d_model: int
    d_state: int
    n_layers: int


def load_checkpoint(
    path: str | Path,
    prenorm: bool = False,
    *,
    preprocessing: Preprocessing | str | None = None,
    classes: Sequence[str] | None = None,
    channels: Sequence[str] | None = None,
    sampling_rate: float | None = None,
) -> S4D:
    """Load an S4D model, whole or not at all, from a reference checkpoint (`.pth`, `.safetensors`) or a model directory.

    Parameters
    ----------
    path : str or Path
        A file of weights in the layout of the S4D reference implementation (bare, under `model` or `state_dict`, with
        `module.`, `_orig_mod.` or `model.` prefixes), or a directory written by :meth:`S4D.save_pretrained`.
    prenorm : bool
        Whether LayerNorm comes before each block. The weights do not say.
    preprocessing : Preprocessing or "none"
        What was done to the data before they entered the encoder; "none" if raw values did. Required for foreign files.
    classes, channels : sequence of str, optional
        Names; numbered when omitted.
    sampling_rate : float, optional
        Hz; without it frequencies are in cycles per step.

    Returns
    -------
    S4D
        In evaluation mode, on the CPU, in float32 unless float64 weights were stored.

    Raises
    ------
    CheckpointError
        If the file is damaged, incomplete, carries anything but tensors and plain values, or holds another model.
    ArgumentError
        If an argument does not fit the model, or contradicts what a model directory states.

    Notes
    -----
    Accuracy: *exact*; weights are not changed. Source: models/s4/s4d.py and example.py of github.com/state-spaces/s4.

    Examples
    --------
    >>> import tempfile
    >>> model = S4D(S4DConfig(d_input=2, n_classes=2, d_model=4, d_state=8, architecture="reference"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"model": model.state_dict(), "acc": 81.5}, f"{folder}/ckpt.pth")
    ...     load_checkpoint(f"{folder}/ckpt.pth", preprocessing="none", classes=("rest", "task")).config.classes
    ('rest', 'task')
    """
    path = Path(path)
    _check_arguments(prenorm, preprocessing, classes, channels)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise CheckpointError(
                f"{path}: a directory without config.json is no model; a model directory holds config.json and model.safetensors."
            )
        model = load_model(path)
        _refuse_conflicts(
            path,
            model.config,
            {
                "prenorm": prenorm or None,
                "preprocessing": Preprocessing.identity(model.config.d_input)
                if preprocessing == "none"
                else preprocessing,
                "classes": None if classes is None else tuple(classes),
                "channels": None if channels is None else tuple(channels),
                "sampling_rate": sampling_rate,
            },
        )
        return model
    tensors = _state_dict(read_archive(path), path)
    sizes = _sizes(tensors, path)
    if preprocessing is None:
        if (path.parent / "config.json").is_file() and path.name == "model.safetensors":
            raise CheckpointError(
                f"{path}: a part of a model directory; give the directory, {path.parent}, which holds its preprocessing."
            )
        raise CheckpointError(
            f"{path}: the file does not say how its training data were standardised, and the wrong answer gives wrong decisions without "
            "any warning (the same weights were measured at 0.77 accuracy on standardised and 0.65 on raw data). State it: "
            "preprocessing=Preprocessing.standardise(...) of the training set, or preprocessing='none' if raw values entered "
            "(on the command line: --standardise-with TRAIN.ts, or --raw)."
        )
    config = S4DConfig(
        **sizes,
        architecture="reference",
        prenorm=prenorm,
        channels=tuple(channels or ()),
        classes=tuple(classes or ()),
        sampling_rate=sampling_rate,
        preprocessing=preprocessing if isinstance(preprocessing, Preprocessing) else None,
    )
    return build_model(config, tensors, str(path))


def _check_arguments(prenorm: object, preprocessing: object, *names: object) -> None:
    if not isinstance(prenorm, bool):
        raise ArgumentError(f"load_checkpoint(prenorm={prenorm!r}): give True or False.")
    if not (preprocessing is None or preprocessing == "none" or isinstance(preprocessing, Preprocessing)):
        raise ArgumentError(
            f"load_checkpoint(preprocessing={preprocessing!r}): give a Preprocessing, or 'none' if raw values entered the model."
        )
    for value in names:
        if isinstance(value, str) or not isinstance(value, Sequence | None):
            raise ArgumentError(
                f"load_checkpoint: {value!r} is no sequence of names; give a tuple such as ('left', 'right')."
            )


def _refuse_conflicts(path: Path, config: S4DConfig, given: Mapping[str, object]) -> None:
    for name, value in given.items():
        stored = getattr(config, name)
        if value is not None and value != stored:
            raise ArgumentError(
                f"load_checkpoint({name}={value!r}): {path} states {name}={stored!r}; leave the argument out."
            )


def _state_dict(content: object, path: Path) -> dict[str, Tensor]:
    """The tensors under their plain names, out of whatever they are wrapped in."""
    while isinstance(content, Mapping) and not any(isinstance(value, Tensor) for value in content.values()):
        inner = [name for name in _WRAPPERS if isinstance(content.get(name), Mapping)]
        if not inner:
            found = ", ".join(str(key) for key in list(content)[:5]) or "nothing"
            raise CheckpointError(
                f"{path}: holds no weights (its keys: {found}); expected a state dictionary, bare or under 'model' or 'state_dict'."
            )
        if len(inner) > 1:
            raise CheckpointError(
                f"{path}: holds weights under {' and '.join(map(repr, inner))}; save the one that is meant by itself."
            )
        content = content[inner[0]]
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{path}: holds a value of type {type(content).__name__}, expected a dictionary of tensors."
        )
    tensors: dict[str, Tensor] = {}
    for key, value in content.items():
        if not isinstance(value, Tensor):
            if isinstance(key, str) and "." not in key:
                continue  # epoch, accuracy or optimizer beside the weights
            raise CheckpointError(f"{path}: {key} is a {type(value).__name__}, expected a tensor.")
        name = ".".join(part for part in str(key).split(".") if part not in _WRAPPED_SEGMENTS)
        if name in tensors:
            raise CheckpointError(
                f"{path}: holds {name} twice under different prefixes (two copies of a model); save the one that is meant by itself."
            )
        tensors[name] = _plain(name, value, path)
    return tensors


def _plain(name: str, tensor: Tensor, path: Path) -> Tensor:
    """The tensor itself, if its values are really in the file: a shape alone may claim more than all memory."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise CheckpointError(f"{path}: {name} is stored sparse or quantised, expected a dense tensor.")
    if tensor.device.type != "cpu":
        raise CheckpointError(
            f"{path}: {name} holds a shape but no values (device {tensor.device}); save the model after loading its weights."
        )
    if tensor.numel() * tensor.element_size() > path.stat().st_size:
        raise CheckpointError(
            f"{path}: {name} declares shape {tuple(tensor.shape)}, more than the file holds; nothing was loaded."
        )
    return tensor.detach()


def _sizes(tensors: Mapping[str, Tensor], path: Path) -> _Sizes:
    """d_input, n_classes, d_model, d_state and n_layers, from shapes."""
    for key in tensors:
        relative = _RELATIVES.get(key.rsplit(".", 1)[-1])
        if relative is not None:
            raise CheckpointError(f"{path}: {key} belongs to {relative}; only S4D is read.")
        if key.rpartition(".")[2] in _RINGS and ".kernel." in key:
            raise CheckpointError(
                f"{path}: {key} belongs to a model trained as rings, whose configuration a file of weights does not hold; write it with "
                "save_pretrained and load that folder."
            )
    layers = {int(found[1]) for key in tensors if (found := re.match(r"s4_layers\.(\d{1,6})\.", key))}
    if not layers:
        some = ", ".join(list(tensors)[:3]) or "none"
        raise CheckpointError(
            f"{path}: no key starts with s4_layers (found: {some}); expected the model of the S4D reference implementation."
        )
    gaps = sorted(set(range(max(layers) + 1)) - layers)
    if gaps:
        raise CheckpointError(
            f"{path}: layer {gaps[0]} is missing (layers {', '.join(map(str, sorted(layers)))} are there); the file is incomplete."
        )
    shapes = {}
    for key, dimensions in (("encoder.weight", 2), ("decoder.weight", 2), ("s4_layers.0.kernel.C", 3)):
        if key not in tensors:
            raise CheckpointError(f"{path}: key {key!r} is missing; the file is incomplete or of another architecture.")
        shapes[key] = tuple(tensors[key].shape)
        if len(shapes[key]) != dimensions or 0 in shapes[key]:
            raise CheckpointError(
                f"{path}: {key} has shape {shapes[key]}, expected {dimensions} dimensions, none of them empty."
            )
    d_model, d_input = shapes["encoder.weight"]
    return {
        "d_input": d_input,
        "n_classes": shapes["decoder.weight"][0],
        "d_model": d_model,
        "d_state": 2 * shapes["s4_layers.0.kernel.C"][1],
        "n_layers": len(layers),
    }
