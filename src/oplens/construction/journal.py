"""How far a long verification came, kept in a file so that the same verification continues after an interrupt."""

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch

from oplens.construction.function import FunctionTable
from oplens.files import replacing
from oplens.models.transformer import Transformer

AFTER, EVERY = 60.0, 20.0  # seconds: what took less is not worth a file; between two writes


class Journal:
    """Counts of finished batches, by pass; written once a verification has taken a minute.

    A file of another model, table or set of options, or one that cannot be read, is not used and gets replaced.

    Parameters
    ----------
    path : Path or None
        None: nothing is kept.
    key : str
        Of all that the counts depend on; see :func:`verification_key`.
    """

    def __init__(self, path: Path | None, key: str) -> None:
        self.path, self.key = path, key
        self.passes: dict[str, dict[str, Any]] = self._read()
        self.started = self.written = time.monotonic()

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8")) if self.path else {}
            return dict(found["passes"]) if found.get("key") == self.key else {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}

    def keep(self, name: str, counts: dict[str, Any]) -> None:
        """Take note of a pass's counts so far."""
        self.passes[name] = counts
        if time.monotonic() - self.written >= EVERY:
            self.write()

    def write(self) -> None:
        """Write, if it was long enough."""
        if self.path is None or time.monotonic() - self.started < AFTER:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as temporary:
            temporary.write_text(json.dumps({"key": self.key, "passes": self.passes}), encoding="utf-8")
        self.written = time.monotonic()


def verification_key(model: Transformer, table: FunctionTable, options: Any) -> str:
    """Hash of weights, table and options."""
    digest = hashlib.sha256(repr((model.config, table.vocabulary, table.length, options)).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    digest.update(table.values.tobytes())
    return digest.hexdigest()
