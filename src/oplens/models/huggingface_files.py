"""A Hugging Face directory, checked before anything of it is loaded: nothing is downloaded, unpickled or run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from oplens.errors import CheckpointError
from oplens.files import kind_of
from oplens.models.storage import read_json

Head = Literal["causal language model", "sequence classifier", "masked language model", "token classifier", "no head"]

MOST_LAYERS = 2**12  # beyond, a configuration is damaged; building it would take all memory or time
_HEADS: tuple[tuple[Head, str, str], ...] = (
    ("causal language model", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AutoModelForCausalLM"),
    ("sequence classifier", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "AutoModelForSequenceClassification"),
    ("masked language model", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "AutoModelForMaskedLM"),
    ("token classifier", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", "AutoModelForTokenClassification"),
)
_SAFE, _PICKLED = "model.safetensors", "pytorch_model.bin"
_CONVERT = "AutoModel.from_pretrained(...).save_pretrained(FOLDER) of transformers writes safetensors"


@dataclass(frozen=True)
class Source:
    """What a directory holds, before its weights are read.

    Attributes
    ----------
    config : Any
        The `transformers` configuration.
    head : str
    auto_class : str
        Class of `transformers` that builds it.
    pickled : tuple of str
        Names of the files of weights where these are no safetensors: only torch's restricted unpickler may read them.
    notes : tuple of str
    """

    config: Any
    head: Head
    auto_class: str
    pickled: tuple[str, ...]
    notes: tuple[str, ...]


def read_source(directory: Path) -> Source:
    """Refuse, with a sentence, what cannot be measured or must not be loaded."""
    where = directory / "config.json"
    values = read_json(where, "a Hugging Face directory holds config.json and model.safetensors")
    _check_config(where, values)
    if (directory / "adapter_config.json").exists():
        raise CheckpointError(
            f"{directory}: holds an adapter (adapter_config.json), not a whole model; merge it into its base model with peft's "
            "merge_and_unload() and save that."
        )
    config = _load_config(directory, where, values)
    pickled = _check_weights(directory)
    head, auto_class, notes = _choose(config, values)
    if pickled:
        notes = (
            *notes,
            f"Weights come from {pickled[0]}, read by torch's restricted unpickler, which builds tensors only.",
        )
    return Source(config, head, auto_class, pickled, notes)


def _check_config(where: Path, values: dict[str, Any]) -> None:
    if values.get("quantization_config") is not None:
        raise CheckpointError(
            f"{where}: the weights are quantised (quantization_config); measures of packed integers would be those of another model. "
            "Give the original checkpoint, or dequantise and save it."
        )
    if not isinstance(values.get("model_type"), str):
        raise CheckpointError(
            f"{where}: names no model_type and no format of this library; a Hugging Face model's config.json has the former, our own "
            "models the latter."
        )


def _load_config(directory: Path, where: Path, values: dict[str, Any]) -> Any:
    from transformers import CONFIG_MAPPING, AutoConfig, __version__

    kind = values["model_type"]
    if kind not in CONFIG_MAPPING:
        code = "; the code that it brings along (auto_map) is never run" if "auto_map" in values else ""
        raise CheckpointError(
            f"{where}: transformers {__version__} knows no model_type {kind!r}{code}. A newer version may, or the model cannot be measured here."
        )
    try:
        # Experts one by one: the default product of groups is not to be had in float64.
        config = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, experts_implementation="eager"
        )
    except Exception as error:
        raise CheckpointError(
            f"{where}: transformers cannot read this configuration ({_first_line(error)})."
        ) from error
    if config.is_encoder_decoder and not _is_encoder(values):
        raise CheckpointError(
            f"{where}: {kind!r} is an encoder-decoder; its decoder needs a second input and attends to two sequences. Save its encoder "
            "alone (for T5: T5EncoderModel.from_pretrained(...).save_pretrained(FOLDER)) and measure that."
        )
    if config.get_text_config() is not config or not isinstance(getattr(config, "vocab_size", None), int):
        raise CheckpointError(
            f"{where}: {kind!r} takes more or other things than tokens (images, sound); save its language model alone and measure that."
        )
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and not 0 < layers <= MOST_LAYERS:
        raise CheckpointError(f"{where}: num_hidden_layers is {layers}; expected 1 to {MOST_LAYERS}.")
    return config


def _is_encoder(values: dict[str, Any]) -> bool:
    names = values.get("architectures") or []
    return len(names) == 1 and str(names[0]).endswith("EncoderModel")


def _choose(config: Any, values: dict[str, Any]) -> tuple[Head, str, tuple[str, ...]]:
    """Head and class that the configuration's architecture asks for."""
    from transformers.models.auto import modeling_auto

    names = values.get("architectures") or []
    if not names:
        return "no head", "AutoModel", ("config.json names no architecture, so the model is measured without a head.",)
    wanted = str(names[0])
    if _is_encoder(values):
        return "no head", "AutoModelForTextEncoding", ()
    tables = {name: vars(modeling_auto)[name] for _, name, _ in _HEADS} | {"": modeling_auto.MODEL_MAPPING_NAMES}
    for head, table, auto_class in (*_HEADS, ("no head", "", "AutoModel")):
        found = tables[table].get(config.model_type, ())
        if wanted in ((found,) if isinstance(found, str) else found):
            return head, auto_class, ()
    if config.model_type not in modeling_auto.MODEL_MAPPING_NAMES:
        raise CheckpointError(
            f"{wanted}: transformers has no model of type {config.model_type!r} that takes tokens alone."
        )
    return "no head", "AutoModel", (f"The head of {wanted} is left out; the output is the last hidden state.",)


def _check_weights(directory: Path) -> tuple[str, ...]:
    """Names of pickled files, () where weights are safetensors; every file is there, none a stand-in for one."""
    for single, safe in ((_SAFE, True), (_PICKLED, False)):
        index = directory / f"{single}.index.json"
        if (directory / single).exists():
            shards = [single]
        elif index.exists():
            shards = _shards(index)
        else:
            continue
        if not safe:
            return tuple(shards)
        for shard in shards:
            _check_file(directory / shard)
        return ()
    others = sorted(
        path.name for path in directory.iterdir() if path.suffix in (".h5", ".msgpack", ".gguf", ".bin", ".pt", ".pth")
    )
    found = (
        f"there is {others[0]}, which is not read; {_CONVERT}"
        if others
        else "there are no weights; copy the whole directory"
    )
    raise CheckpointError(f"{directory}: expected {_SAFE} or {_SAFE}.index.json with its parts; {found}.")


def _shards(index: Path) -> list[str]:
    names = read_json(index, "it lists the parts of the weights").get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index}: has no weight_map, which says what part holds which weight.")
    shards = sorted({str(name) for name in names.values()})
    for shard in shards:
        if Path(shard).name != shard:
            raise CheckpointError(f"{index}: names a part outside of its folder, {shard!r}; this is not followed.")
        if not (index.parent / shard).exists():
            raise CheckpointError(f"{index}: the part {shard} is missing; copy all {len(shards)} parts.")
    return shards


def _check_file(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}).") from error
    if kind_of(head) == "git-lfs":
        raise CheckpointError(
            f"{path}: this is a Git LFS pointer, not the file it stands for; fetch the file itself with `git lfs pull`."
        )
    try:
        with safe_open(path, framework="pt"):
            pass
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged safetensors file ({error}); copy it again.") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
