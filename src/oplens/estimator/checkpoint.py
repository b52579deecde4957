"""The state of a training run between two epochs: one safetensors file, tensors and a JSON header, nothing pickled."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oplens.errors import CheckpointError
from oplens.models.storage import write_bytes

FORMAT = "oplens-training"
VERSION = 1
FILE = "training.safetensors"


@dataclass
class RunState:
    """Everything the next epoch depends on.

    Parameters
    ----------
    fingerprint : str
        Hash of the data, the configuration and the plan: what a run must share to be the same run.
    history : list of dict
        One entry per finished epoch; learning rates and early stopping are functions of it.
    best : dict of Tensor
        Weights of the best epoch so far.
    model, moments : dict of Tensor
        Weights and the optimiser's state after the last finished epoch; `moments` is keyed "parameter.name".
    dropout, order : Tensor
        States of the generators of dropout masks and of the order of cases.
    """

    fingerprint: str
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)
    model: dict[str, Tensor] = field(default_factory=dict)
    moments: dict[str, Tensor] = field(default_factory=dict)
    dropout: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    order: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))


_GROUPS = ("best", "model", "moments")


def save_run(state: RunState, directory: Path) -> None:
    """Write the state under its name only when complete."""
    from safetensors.torch import save

    tensors = {f"{group}/{name}": t for group in _GROUPS for name, t in getattr(state, group).items()}
    tensors |= {"dropout": state.dropout, "order": state.order}
    header = {"format": FORMAT, "version": VERSION, "fingerprint": state.fingerprint, "history": state.history}
    # Two names may share storage in memory (weights and best weights of one epoch); in the file they are two tensors.
    content = save({name: t.detach().clone().contiguous() for name, t in tensors.items()}, {"run": json.dumps(header)})
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_bytes(directory / FILE, content)
    except OSError as error:
        raise CheckpointError(
            f"{directory}: training checkpoints cannot be written here ({error.strerror}); choose another checkpoint_dir."
        ) from error


def load_run(directory: Path) -> RunState | None:
    """Read the state of a run, None where there is none yet, a sentence where it is damaged."""
    from safetensors import SafetensorError, safe_open

    path = directory / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(str(path), framework="pt") as file:
            header = _header(file.metadata(), path)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: damaged training checkpoint ({error}); delete it to start again.") from error
    missing = [name for name in ("dropout", "order") if name not in tensors]
    if missing:
        raise CheckpointError(f"{path}: {missing[0]!r} is missing; delete the file to start again.")
    state = RunState(header["fingerprint"], header["history"], dropout=tensors["dropout"], order=tensors["order"])
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        if group in _GROUPS:
            getattr(state, group)[rest] = tensor
    return state


def _header(metadata: dict[str, str] | None, path: Path) -> dict[str, Any]:
    try:
        header = json.loads((metadata or {})["run"])
        known = header["format"] == FORMAT and header["version"] == VERSION
        known = known and isinstance(header["fingerprint"], str) and isinstance(header["history"], list)
    except (KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise CheckpointError(
            f"{path}: not a training checkpoint of this version of the library; delete it to start again."
        )
    return dict(header)
