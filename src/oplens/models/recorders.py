"""Any model directory as a recorder: our own models and Hugging Face ones, told apart by `config.json`."""

from pathlib import Path

from oplens.errors import CheckpointError
from oplens.models.recording import Recorder
from oplens.models.storage import FORMAT as S4D_FORMAT
from oplens.models.storage import read_json
from oplens.models.transformer_storage import FORMAT as TRANSFORMER_FORMAT


def load_recorder(directory: str | Path, dtype: str = "float64") -> Recorder:
    """Read a model directory, ready to be measured.

    Parameters
    ----------
    directory : str or Path
        Of :meth:`oplens.S4D.save_pretrained`, :meth:`oplens.models.Transformer.save_pretrained`, or a Hugging Face model's. Nothing is
        downloaded, no code of the directory runs.
    dtype : {"float64", "float32", "float16", "bfloat16"}

    Raises
    ------
    CheckpointError
        If files are missing or damaged, or hold a model that cannot be measured.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such folder; give the directory of a model, with config.json in it.")
    config = read_json(directory / "config.json", _elsewhere(directory))
    name = directory.resolve().name
    if config.get("format") == TRANSFORMER_FORMAT:
        from oplens.models.own_recorders import TransformerRecorder
        from oplens.models.transformer_storage import load_transformer

        return TransformerRecorder.of(load_transformer(directory), name, dtype)
    if config.get("format") == S4D_FORMAT:
        from oplens.models.own_recorders import S4DRecorder
        from oplens.models.storage import load_model

        return S4DRecorder.of(load_model(directory), name, dtype)
    from oplens.models.huggingface import load_huggingface

    return load_huggingface(directory, dtype)


def _elsewhere(directory: Path) -> str:
    """Where the model may be instead: the parts of a package or of a construction have folders of their own."""
    parts = sorted(path.parent.name for path in directory.glob("*/config.json"))
    if not parts:
        return "a model directory holds config.json and model.safetensors"
    return f"there is one in {', '.join(parts[:8])}; give such a folder if it holds the model"
