"""Hugging Face directories as recorders."""

from pathlib import Path

from oplens.errors import CheckpointError
from oplens.models.recording import Recorder


def load_huggingface(directory: Path, dtype: str) -> Recorder:
    """Not yet."""
    raise CheckpointError(f"{directory}: Hugging Face models cannot be read yet.")
