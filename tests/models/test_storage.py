"""Model directories: bit-equal round trips, and nothing half-written however saving ends."""

import json
import os

import pytest
import torch

from oplens.errors import CheckpointError
from oplens.models import S4D, Preprocessing, S4DConfig

CONFIGS = {
    "plain": S4DConfig(2, 3, d_model=4, d_state=8),
    "named": S4DConfig(
        2,
        2,
        d_model=3,
        d_state=2,
        discretisation="bilinear",
        dropout=0.1,
        channels=("Fz <µV>", 'a "b"'),
        classes=("négativity", "1"),
        sampling_rate=256.5,
        preprocessing=Preprocessing((0.1, 1 / 3), (1e-30, 7.0), True),
    ),
    "stack": S4DConfig(1, 5, d_model=6, d_state=4, n_layers=3, architecture="reference", prenorm=True),
}


def same(left, right):
    assert left.config == right.config
    tensors = left.state_dict()
    assert list(tensors) == list(right.state_dict())
    for name, tensor in right.state_dict().items():
        assert tensor.dtype == tensors[name].dtype
        assert torch.equal(tensor, tensors[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_round_trip_changes_no_bit(tmp_path, name, dtype):
    torch.manual_seed(1)
    model = S4D(CONFIGS[name]).to(dtype)
    with torch.no_grad():
        model.s4_layers[0].D[0] = 1e-44
    model.save_pretrained(tmp_path / "a" / "b")
    loaded = S4D.from_pretrained(tmp_path / "a" / "b")
    same(loaded, model)
    assert not loaded.training
    x = torch.randn(2, 30, model.config.d_input, dtype=dtype)
    assert torch.equal(loaded(x), model.eval()(x))
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["config.json", "model.safetensors"]
    loaded.save_pretrained(str(tmp_path / "c"))
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "c" / file).read_bytes() == (tmp_path / "a" / "b" / file).read_bytes()


def test_the_configuration_is_read_by_people(tmp_path):
    model = S4D(CONFIGS["named"])
    model.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["format"] == "oplens-s4d"
    assert content["config"]["sampling_rate"] == 256.5
    assert content["config"]["preprocessing"] == {"mean": [0.1, 1 / 3], "scale": [1e-30, 7.0], "remove_offset": True}
    assert content["config"]["classes"] == ["négativity", "1"]


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full disk", "interrupt"]
)
def test_an_interrupted_first_save_leaves_no_model(tmp_path, monkeypatch, failing, error):
    break_replace(monkeypatch, failing, error)
    with pytest.raises(CheckpointError if isinstance(error, OSError) else KeyboardInterrupt):
        S4D(CONFIGS["plain"]).save_pretrained(tmp_path)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors"][:failing]
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read"):
        S4D.from_pretrained(tmp_path)


@pytest.mark.parametrize("failing", [0, 1])
def test_an_interrupted_overwrite_leaves_the_old_model_or_a_refusal(tmp_path, monkeypatch, failing):
    torch.manual_seed(2)
    old, new = S4D(CONFIGS["plain"]), S4D(CONFIGS["plain"])
    old.save_pretrained(tmp_path)
    break_replace(monkeypatch, failing, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        new.save_pretrained(tmp_path)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
    if failing == 0:
        same(S4D.from_pretrained(tmp_path), old)
    else:
        with pytest.raises(CheckpointError, match="files of two models"):
            S4D.from_pretrained(tmp_path)
    new.save_pretrained(tmp_path)
    same(S4D.from_pretrained(tmp_path), new)


def break_replace(monkeypatch, failing, error):
    calls, replace = [], os.replace

    def fail(source, target):
        calls.append(target)
        if len(calls) == failing + 1:
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)


def test_a_file_in_the_way_is_told(tmp_path):
    (tmp_path / "m").write_text("here")
    with pytest.raises(CheckpointError, match="m: cannot be used as a model directory"):
        S4D(CONFIGS["plain"]).save_pretrained(tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read .Not a directory"):
        S4D.from_pretrained(tmp_path / "m")
