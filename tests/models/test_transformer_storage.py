"""Directories of transformers: bit-equal round trips, and every kind of damage refused with a sentence."""

import hashlib
import json
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from oplens.errors import CheckpointError
from oplens.models import S4D, S4DConfig
from oplens.models.transformer import Transformer
from oplens.models.transformer_config import TransformerConfig
from oplens.operators.attention import BigBird, Performer

SMALL = {"d_model": 12, "n_heads": 2, "d_ffn": 7, "n_frequencies": 2}
CONFIGS = {
    "tokens": TransformerConfig(3, vocabulary=5, **SMALL),
    "tied": TransformerConfig(
        5, vocabulary=5, tied=True, positions="learned", max_length=9, causal=True, attention=Performer(5, 2), readout="position",
        **SMALL,
    ),
    "sparse": TransformerConfig(3, d_input=2, weights="sparse", attention=BigBird(block_size=2), norm="none", **SMALL),
    "mixed layers": TransformerConfig(2, d_input=3, d_model=12, n_layers=2, n_heads=(0, 3), d_ffn=(4, 0), n_frequencies=1),
}  # fmt: skip


def build(name, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    config = CONFIGS[name]
    if config.weights == "dense":
        return Transformer(config).to(dtype)
    dense = Transformer(replace(config, weights="dense"))
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.mul_(torch.rand(parameter.shape) < 0.3)
    return dense.to_sparse().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_round_trip_changes_no_bit(tmp_path, name, dtype):
    model = build(name, dtype)
    model.save_pretrained(tmp_path / "a" / "b")
    loaded = Transformer.from_pretrained(tmp_path / "a" / "b")
    assert loaded.config == model.config
    assert not loaded.training
    assert list(loaded.state_dict()) == list(model.state_dict())
    for key, tensor in model.state_dict().items():
        found = loaded.state_dict()[key]
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor), key
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["config.json", "model.safetensors"]
    config = model.config
    x = torch.tensor([[1, 4, 0, 2]]) if config.vocabulary else torch.randn(1, 4, config.d_input)
    assert torch.equal(loaded(x), model.eval()(x))
    loaded.save_pretrained(str(tmp_path / "c"))
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "c" / file).read_bytes() == (tmp_path / "a" / "b" / file).read_bytes()


def test_sparse_files_are_small(tmp_path):
    model = build("sparse")
    model.to_dense().save_pretrained(tmp_path / "dense")
    model.save_pretrained(tmp_path / "sparse")
    large = Transformer(TransformerConfig(1, d_input=1, d_model=300, n_heads=1, n_layers=1, weights="sparse"))
    large.save_pretrained(tmp_path / "large")
    assert (tmp_path / "large" / "model.safetensors").stat().st_size < 100_000
    assert sum(p.numel() for p in large.to_dense().parameters()) > 1_000_000


def test_the_configuration_is_read_by_people(tmp_path):
    build("tied").save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["format"] == "oplens-transformer"
    assert content["config"]["attention"] == {"family": "performer", "n_features": 5, "seed": 2, "orthogonal": True}
    assert content["config"]["d_ffn"] == [7, 7]


@pytest.mark.parametrize("failing", [0, 1])
def test_an_interrupted_save_leaves_the_old_model_or_a_refusal(tmp_path, monkeypatch, failing):
    old, new = build("tokens", seed=1), build("tokens", seed=2)
    old.save_pretrained(tmp_path)
    calls, replace = [], os.replace

    def fail(source, target):
        calls.append(target)
        if len(calls) == failing + 1:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        new.save_pretrained(tmp_path)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
    if failing == 0:
        found = Transformer.from_pretrained(tmp_path).state_dict()
        assert all(torch.equal(found[key], tensor) for key, tensor in old.state_dict().items())
    else:
        with pytest.raises(CheckpointError, match="files of two models"):
            Transformer.from_pretrained(tmp_path)


def damaged(tmp_path, name, *, tensors=None, config=None, header=None, cut=None):
    """A directory whose tensors or configuration were changed, and whose checksum says nothing of it."""
    model = build(name)
    model.save_pretrained(tmp_path)
    content = {**model.state_dict(), **(tensors or {})}
    content = save({key: value for key, value in content.items() if value is not None})[:cut]
    (tmp_path / "model.safetensors").write_bytes(content)
    read = json.loads((tmp_path / "config.json").read_text())
    read["tensors_sha256"] = hashlib.sha256(content).hexdigest()
    read["config"] = {**read["config"], **(config or {})}
    read = {**read, **(header or {})}
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in read.items() if v is not None}))
    return tmp_path


UP = "layers.0.feedforward.up"
FALLING = build("sparse").state_dict()[f"{UP}.crow_indices"]
FALLING[3] = FALLING[-1]
DAMAGES = {
    "another format": ("tokens", {"header": {"format": "oplens-s4d"}}, r"not a transformer.*'oplens-s4d'"),
    "another version": ("tokens", {"header": {"version": 9}}, "version 9 of the layout"),
    "no configuration": ("tokens", {"header": {"config": None}}, "key 'config' is missing"),
    "an impossible value": ("tokens", {"config": {"n_heads": [5, 5]}}, r"config\.json: .*no multiple of n_heads|has shape"),
    "an unknown key": ("tokens", {"config": {"rotary": True}}, "unknown keys rotary"),
    "an unknown family": ("tokens", {"config": {"attention": {"family": "x"}}}, "'x' is unknown"),
    "more layers": (
        "tokens",
        {"config": {"n_layers": 3, "n_heads": 2, "d_head": 6, "d_value": 6, "d_ffn": 7}},
        "holds 2 layers, the configuration says 3",
    ),
    "a missing key": ("tokens", {"tensors": {"readout.weight": None}}, r"'readout\.weight' is missing"),
    "a wrong shape": ("tokens", {"tensors": {"readout.weight": torch.zeros(3, 13)}}, r"shape \(3, 13\), expected \(3, 12\)"),
    "a key too many": ("tokens", {"tensors": {"lm_head": torch.zeros(1)}}, "unknown keys lm_head"),
    "NaN": ("tokens", {"tensors": {"readout.bias": torch.full((3,), float("nan"))}}, "3 NaN or infinite"),
    "integers": ("tokens", {"tensors": {"readout.bias": torch.zeros(3, dtype=torch.int32)}}, "dtype torch.int32"),
    "mixed dtypes": ("tokens", {"tensors": {"readout.bias": torch.zeros(3).double()}}, "expected one dtype"),
    "a cut file": ("tokens", {"cut": 300}, "damaged safetensors file"),
    "a column too far": (
        "sparse",
        {"tensors": {f"{UP}.col_indices": torch.full_like(build("sparse").state_dict()[f"{UP}.col_indices"], 12)}},
        r"col_indices leave 0 to 11",
    ),
    "rows that fall": ("sparse", {"tensors": {f"{UP}.crow_indices": FALLING}}, "crow_indices do not rise"),
    "rows that end early": (
        "sparse",
        {"tensors": {f"{UP}.crow_indices": torch.zeros_like(FALLING)}},
        "crow_indices do not rise",
    ),
    "columns that fall": (
        "sparse",
        {"tensors": {f"{UP}.col_indices": build("sparse").state_dict()[f"{UP}.col_indices"].flip(0)}},
        "do not rise within a row",
    ),
    "fewer values": ("sparse", {"tensors": {f"{UP}.values": torch.zeros(1)}}, r"col_indices has shape"),
    "no values": ("sparse", {"tensors": {f"{UP}.values": None}}, r"'layers\.0\.feedforward\.up\.values' is missing"),
    "floating-point indices": (
        "sparse",
        {"tensors": {f"{UP}.crow_indices": torch.zeros(8)}},
        "expected int64 indices",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_refused_with_a_sentence(tmp_path, kind):
    name, changes, words = DAMAGES[kind]
    with pytest.raises(CheckpointError, match=words):
        Transformer.from_pretrained(damaged(tmp_path, name, **changes))


def test_other_contents_and_missing_files_are_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        Transformer.from_pretrained(tmp_path / "none")
    build("tokens").save_pretrained(tmp_path)
    with (tmp_path / "model.safetensors").open("ab") as file:
        file.write(b" ")
    with pytest.raises(CheckpointError, match="SHA-256 differs"):
        Transformer.from_pretrained(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be used as a model directory"):
        build("tokens").save_pretrained(tmp_path / "file")
    S4D(S4DConfig(1, 2, d_model=2, d_state=2)).save_pretrained(tmp_path / "s4d")
    with pytest.raises(CheckpointError, match=r"not a transformer"):
        Transformer.from_pretrained(tmp_path / "s4d")
