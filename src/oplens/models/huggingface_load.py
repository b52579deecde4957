"""The weights of a Hugging Face directory: all of them from the file, none made up, and the longest case that they can read."""

import contextlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oplens.errors import CheckpointError
from oplens.models.archives import read_archive
from oplens.models.double_precision import DoublePrecision
from oplens.models.huggingface_files import Source

# Older files hold tables that are computed from the configuration.
_COMPUTED = re.compile(r"(position_ids|inv_freq|(attn|attention)\.(masked_)?bias)$")
_NUMBERED = re.compile(r"\.\d+\.")


def load_module(directory: Path, source: Source, dtype: torch.dtype) -> tuple[Any, tuple[str, ...]]:
    """The model, frozen and in evaluation mode, and sentences about what of the file is left out."""
    import transformers

    config = source.config
    if config.model_type == "big_bird":
        # Block-sparse rows do not sum to 1, and a short input would switch the model to full attention for good.
        config.attention_type = "original_full"
    precision = DoublePrecision() if dtype == torch.float64 else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as temporary:
        folder = directory
        if source.pickled:
            folder = Path(temporary)
            _rewrite(directory, source.pickled, folder)
        try:
            with precision:
                module, info = getattr(transformers, source.auto_class).from_pretrained(
                    folder,
                    config=config,
                    local_files_only=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                    dtype=dtype,
                    attn_implementation="eager",
                    output_loading_info=True,
                )
        except Exception as error:  # the library lets anything through, by what the configuration asks for
            if "ignore_mismatched_sizes" in str(error):
                raise CheckpointError(
                    f"{directory}: weights of the file have other shapes than config.json gives them; config.json and the weights are of "
                    "different models."
                ) from error
            text = " ".join(str(error).split())[:300]
            raise CheckpointError(
                f"{directory}: transformers cannot load the model ({type(error).__name__}: {text})."
            ) from error
    notes = _check_keys(directory, source, info)
    for name, value in module.named_parameters():
        if not bool(torch.isfinite(value).all()):
            raise CheckpointError(f"{directory}: {name} holds NaN or infinite values; these are no weights.")
    return module.to(dtype).eval().requires_grad_(False), notes


def longest_case(module: Any) -> int | None:
    """Positions that the model was made for, None where nothing limits them."""
    most = getattr(module.config, "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None
    for name, part in module.named_modules():
        # RoBERTa and its kind count positions from padding_idx + 1.
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding) and part.padding_idx is not None:
            return min(most, part.num_embeddings - part.padding_idx - 1)
    return most


def _rewrite(directory: Path, names: tuple[str, ...], folder: Path) -> None:
    """Pickled weights as safetensors in another folder, read by our own reader: the library then unpickles nothing."""
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for name in names:
        content = read_archive(directory / name)
        if not isinstance(content, dict) or not all(
            isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in content.items()
        ):
            raise CheckpointError(
                f"{directory / name}: holds more than named tensors; save the model's state_dict alone."
            )
        # Copies: tied weights share memory, which safetensors does not write.
        tensors |= {key: value.detach().clone().contiguous() for key, value in content.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(directory / "config.json", folder)


def _check_keys(directory: Path, source: Source, info: dict[str, Any]) -> tuple[str, ...]:
    missing = sorted(info["missing_keys"])
    # The output of a model without head is its last state; nothing reads the pooler.
    unread = [name for name in missing if source.head == "no head" and "pooler." in name]
    missing = [name for name in missing if name not in unread]
    if missing or info["mismatched_keys"]:
        name = missing[0] if missing else str(sorted(info["mismatched_keys"])[0])
        raise CheckpointError(
            f"{directory}: {len(missing) or len(info['mismatched_keys'])} weights of the configuration's model are not in the file in the "
            f"right shape, first {name!r}; they would be random numbers, measured as if trained. config.json and the weights are of "
            "different models, or the file is incomplete."
        )
    left = sorted(name for name in info["unexpected_keys"] if not _COMPUTED.search(name))
    blocks = [name for name in left if _NUMBERED.search(name)]
    if blocks:
        raise CheckpointError(
            f"{directory}: {len(blocks)} weights of the file are not in the configuration's model, first {blocks[0]!r}: layers would be "
            "left out. config.json and the weights are of different models."
        )
    return (f"Left out of the file, being of another head: {_few(left)}.",) if left else ()


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
