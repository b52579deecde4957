"""Genuine reference checkpoints in every wrapping: the same weights come out, or nothing."""

import collections
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from oplens.errors import ArgumentError, CheckpointError
from oplens.models import S4D, Preprocessing, S4DConfig, load_checkpoint


def reference(n_layers=2, seed=0, **more):
    torch.manual_seed(seed)
    return S4D(S4DConfig(3, 2, d_model=4, d_state=6, n_layers=n_layers, architecture="reference", **more)).eval()


def same(model, weights, dtype=torch.float32):
    loaded = model.state_dict()
    assert set(loaded) == set(weights)
    for name, value in weights.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], value.to(dtype)), name


def prefixed(weights, prefix):
    return collections.OrderedDict((prefix + name, value) for name, value in weights.items())


WRAPPINGS = {
    "bare": dict,
    "bare beside values": lambda w: {
        **w,
        "epoch": 3,
        "optimizer": {"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"lr": 0.01}]},
    },
    "model": lambda w: {"model": w, "acc": 81.2, "epoch": 7},
    "state_dict": lambda w: {"state_dict": w, "hyper_parameters": {"lr": 0.1, "name": "s4d"}, "callbacks": {}},
    "model_state_dict": lambda w: {"model_state_dict": w, "loss": torch.tensor(0.5).item()},
    "data parallel": lambda w: {"net": prefixed(w, "module."), "acc": 81.2},
    "compiled": lambda w: {
        "model": prefixed(w, "_orig_mod."),
        "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}},
    },
    "lightning": lambda w: {"state_dict": prefixed(w, "model."), "epoch": 1},
    "all prefixes": lambda w: {"state_dict": {"model": prefixed(w, "module._orig_mod.model.")}},
    "other order": lambda w: prefixed(w, "_orig_mod.module."),
    "mixed": lambda w: {("module." if i % 2 else "") + name: value for i, (name, value) in enumerate(w.items())},
    "compiled layers": lambda w: {
        name.replace("s4_layers.1.", "s4_layers.1._orig_mod."): value for name, value in w.items()
    },
    "parameters": lambda w: {name: torch.nn.Parameter(value) for name, value in w.items()},
    "views of one storage": lambda w: {
        name: torch.cat((value.flatten(), torch.ones(9)))[:-9].view(value.shape) for name, value in w.items()
    },
    "transposed strides": lambda w: {
        name: value.T.contiguous().T if value.ndim == 2 else value for name, value in w.items()
    },
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_every_wrapping(tmp_path, wrapping, zipped):
    weights = reference().state_dict()
    torch.save(WRAPPINGS[wrapping](weights), tmp_path / "x.pth", _use_new_zipfile_serialization=zipped)
    model = load_checkpoint(tmp_path / "x.pth", preprocessing="none")
    same(model, weights)
    config = model.config
    assert (config.d_input, config.n_classes, config.d_model, config.d_state, config.n_layers) == (3, 2, 4, 6, 2)
    assert config.architecture == "reference"
    assert not model.training


@pytest.mark.parametrize("prefix", ["", "module.", "model._orig_mod."])
def test_a_safetensors_file_of_the_reference_layout(tmp_path, prefix):
    weights = reference().state_dict()
    save_file(dict(prefixed(weights, prefix)), tmp_path / "x.safetensors")
    same(load_checkpoint(tmp_path / "x.safetensors", preprocessing="none"), weights)


@pytest.mark.parametrize(
    ("stored", "loaded"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_dtypes(tmp_path, stored, loaded):
    weights = {name: value.to(stored) for name, value in reference().state_dict().items()}
    torch.save(weights, tmp_path / "x.pth")
    same(load_checkpoint(tmp_path / "x.pth", preprocessing="none"), weights, loaded)


def test_denormal_and_negative_entries_survive(tmp_path):
    weights = reference().state_dict()
    weights["s4_layers.0.kernel.A_imag"][0] = torch.tensor([-3.0, 1e-45, -1e-40])
    weights["s4_layers.0.kernel.log_A_real"][1] = torch.tensor([-200.0, 1e-42, 2.0])
    weights["s4_layers.1.kernel.C"][0, 0] = torch.tensor([1e-44, -1e-44])
    torch.save({"model": weights}, tmp_path / "x.pth")
    model = load_checkpoint(tmp_path / "x.pth", preprocessing="none")
    same(model, weights)
    assert bool(torch.isfinite(model(torch.randn(2, 30, 3))).all())


def test_tensors_of_a_graphics_card_come_to_the_cpu(tmp_path):
    weights = reference().state_dict()
    torch.save({"model": weights}, tmp_path / "cpu.pth")
    with zipfile.ZipFile(tmp_path / "cpu.pth") as source, zipfile.ZipFile(tmp_path / "cuda.pth", "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.endswith("data.pkl"):
                assert b"X\x03\x00\x00\x00cpu" in content
                content = content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
            target.writestr(entry.filename, content)
    same(load_checkpoint(tmp_path / "cuda.pth", preprocessing="none"), weights)


def test_archives_without_checksums_load(tmp_path):
    from torch.serialization import get_crc32_options, set_crc32_options

    before, weights = get_crc32_options(), reference().state_dict()
    set_crc32_options(False)
    try:
        torch.save(weights, tmp_path / "x.pth")
    finally:
        set_crc32_options(before)
    same(load_checkpoint(tmp_path / "x.pth", preprocessing="none"), weights)


def test_what_the_weights_do_not_say_is_kept(tmp_path):
    torch.save(reference().state_dict(), tmp_path / "x.pth")
    preprocessing = Preprocessing((1.0, 2.0, 3.0), (1.0, 2.0, 0.5))
    model = load_checkpoint(
        tmp_path / "x.pth",
        prenorm=True,
        preprocessing=preprocessing,
        classes=["b", "a"],
        channels=("x", "y", "z"),
        sampling_rate=256,
    )
    config = model.config
    assert (config.prenorm, config.preprocessing, config.classes, config.channels, config.sampling_rate) == (
        True,
        preprocessing,
        ("b", "a"),
        ("x", "y", "z"),
        256.0,
    )
    assert load_checkpoint(tmp_path / "x.pth", preprocessing="none").config.preprocessing == Preprocessing.identity(3)
    x = torch.randn(2, 20, 3)
    assert not torch.allclose(model(x), load_checkpoint(tmp_path / "x.pth", preprocessing=preprocessing)(x), atol=1e-3)


def test_preprocessing_must_be_stated(tmp_path):
    torch.save(reference().state_dict(), tmp_path / "x.pth")
    with pytest.raises(
        CheckpointError, match=r"0\.77.*0\.65.*preprocessing='none'.*--standardise-with TRAIN\.ts.*--raw"
    ):
        load_checkpoint(tmp_path / "x.pth")


def test_a_model_directory_needs_no_arguments_and_accepts_equal_ones(tmp_path):
    preprocessing = Preprocessing((1.0, 2.0, 3.0), (1.0, 2.0, 0.5), True)
    saved = reference(preprocessing=preprocessing, classes=("a", "b"), sampling_rate=128.0, prenorm=True)
    saved.save_pretrained(tmp_path / "m")
    for arguments in (
        {},
        {"preprocessing": preprocessing, "classes": ["a", "b"], "sampling_rate": 128, "prenorm": True},
    ):
        model = load_checkpoint(tmp_path / "m", **arguments)
        same(model, saved.state_dict())
        assert model.config == saved.config
    reference().save_pretrained(tmp_path / "raw")
    assert load_checkpoint(tmp_path / "raw", preprocessing="none").config.preprocessing == Preprocessing.identity(3)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"preprocessing": "none"}, "preprocessing"),
        ({"preprocessing": Preprocessing((0.0,) * 3, (2.0,) * 3)}, "preprocessing"),
        ({"classes": ("b", "a")}, r"classes=\('a', 'b'\)"),
        ({"channels": ("x", "y", "z")}, "channels"),
        ({"sampling_rate": 256}, "sampling_rate=128"),
        ({"prenorm": True}, "prenorm=False"),
    ],
)
def test_arguments_that_contradict_a_model_directory_are_refused(tmp_path, argument, words):
    reference(
        preprocessing=Preprocessing((1.0,) * 3, (2.0,) * 3), classes=("a", "b"), sampling_rate=128.0
    ).save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match=f"{words}.*leave the argument out"):
        load_checkpoint(tmp_path, **argument)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"preprocessing": "standardise"}, "a Preprocessing, or 'none'"),
        ({"preprocessing": (0.0, 1.0)}, "a Preprocessing, or 'none'"),
        ({"preprocessing": Preprocessing.identity(2)}, "2 channels.*d_input=3"),
        ({"preprocessing": "none", "classes": ("a",)}, "1 names of classes.*has 2"),
        ({"preprocessing": "none", "classes": "ab"}, "no sequence of names"),
        ({"preprocessing": "none", "classes": ("a", "a")}, "must differ"),
        ({"preprocessing": "none", "channels": 3}, "no sequence of names"),
        ({"preprocessing": "none", "channels": ("a", "b", 3)}, "must be strings"),
        ({"preprocessing": "none", "sampling_rate": -1}, "positive rate"),
        ({"preprocessing": "none", "sampling_rate": "256 Hz"}, "expected a number"),
        ({"preprocessing": "none", "prenorm": "yes"}, "True or False"),
    ],
)
def test_arguments_that_cannot_work_are_refused(tmp_path, argument, words):
    torch.save(reference().state_dict(), tmp_path / "x.pth")
    with pytest.raises(ArgumentError, match=words):
        load_checkpoint(tmp_path / "x.pth", **argument)


def test_golden_accuracy_depends_on_the_preprocessing_as_the_message_says(shared_data):
    """The figures 0.77 and 0.65 in the refusal, measured again on all test trials."""
    from oplens.data import read_ts

    folder = shared_data / "data" / "SelfRegulationSCP1"
    train, test = (read_ts(folder / f"SelfRegulationSCP1_{part}.ts") for part in ("TRAIN", "TEST"))
    standard = Preprocessing.standardise(train.X, train.lengths)
    assert standard.mean == pytest.approx(train.X.mean((0, 2)).tolist())
    assert standard.scale == pytest.approx(train.X.std((0, 2)).tolist())
    truth = np.array([["negativity", "positivity"].index(label) for label in test.y])
    accuracies = []
    for preprocessing in (standard, "none"):
        model = load_checkpoint(shared_data / "golden/s4d_reference/scp1_1layer.pth", preprocessing=preprocessing)
        with torch.no_grad():
            logits = model(torch.from_numpy(test.X.transpose(0, 2, 1).copy()).float())
        accuracies.append(float((logits.argmax(1).numpy() == truth).mean()))
    assert accuracies == pytest.approx([0.77, 0.65], abs=0.006)
