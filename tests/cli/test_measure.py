"""`oplens measure` as a user meets it: what it writes, how it goes on, what it refuses."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
import xarray as xr

from command_line import typed
from oplens.cli import measure as verb
from oplens.construction import FunctionTable, build_depth2
from oplens.data import as_sequences
from oplens.models import S4D, S4DConfig, Transformer, TransformerConfig
from oplens.results import read_results

MODELS = ("decoder", "other", "s4d", "wordy")


@pytest.fixture(autouse=True)
def no_page(request, monkeypatch):
    """Pages take longer than all the rest, so only tests of what is drawn have one."""

    def blank(_, path):
        path.write_text("page")
        return path

    if "drawn" not in request.node.name:
        monkeypatch.setattr(verb, "render", blank)


def run(monkeypatch, capsys, *words):
    """Exit code and what stood on stderr, in one line."""
    code, _, err = typed(monkeypatch, capsys, "measure", *words)
    return code, " ".join(err.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A decoder over 7 symbols, its tokens, a copy with other weights, and a small S4D."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    shape = TransformerConfig(
        d_output=7, vocabulary=7, d_model=8, n_heads=2, d_ffn=8, n_frequencies=2, causal=True, readout="position"
    )
    Transformer(shape).save_pretrained(folder / "decoder")
    Transformer(shape).save_pretrained(folder / "other")
    S4D(S4DConfig(d_input=2, n_classes=2, d_model=3, d_state=4)).save_pretrained(folder / "s4d")
    wordy = TransformerConfig(d_output=1, vocabulary=999, max_length=64, d_model=8, n_heads=2, d_ffn=8, n_frequencies=2)
    Transformer(wordy).save_pretrained(folder / "wordy")
    np.save(folder / "tokens.npy", np.random.default_rng(0).integers(0, 7, (5, 12)))
    spikes = xr.Dataset({"responses": (("stimulus", "neuron"), np.random.default_rng(1).standard_normal((20, 3)))})
    spikes = spikes.assign_coords(case=("stimulus", np.arange(20) % 5))
    spikes.to_netcdf(folder / "v1.nc", engine="h5netcdf")
    return folder


def test_everything_at_once_is_written_and_drawn(folder, tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(1)
    responses = xr.Dataset({"responses": (("stimulus", "neuron"), rng.standard_normal((12, 3)))})
    responses = responses.assign_coords(
        case=("stimulus", np.repeat(np.arange(4), 3)), position=("stimulus", np.tile([2, 5, 8], 4))
    )
    responses.to_netcdf(tmp_path / "v1.nc", engine="h5netcdf")
    out = tmp_path / "out"
    words = (
        folder / "decoder",
        folder / "tokens.npy",
        "--out",
        out,
        "--against",
        folder / "other",
        "--robustness",
        "--draws",
        3,
    )
    code, err = run(monkeypatch, capsys, *words, "--neural", tmp_path / "v1.nc", "--permutations", 9, "--folds", 3)
    assert code == 0, err
    tree = read_results(out / "results.nc")
    assert set(tree.children) == {
        *(
            "attention",
            "attention_maps",
            "errors",
            "neural",
            "predictions",
            "representations",
            "robustness",
            "similarity",
        )
    }
    logits = Transformer.from_pretrained(folder / "decoder").double().eval()
    tokens = torch.from_numpy(np.load(folder / "tokens.npy"))
    with torch.no_grad():
        logs = torch.log_softmax(logits(tokens)[:, :-1], -1).gather(-1, tokens[:, 1:, None])
        other = Transformer.from_pretrained(folder / "other").double().eval()(tokens)
        eam = (logits(tokens) - other).norm(dim=-1).mean()
    assert float(tree["predictions/perplexity"]) == pytest.approx(float(torch.exp(-logs.mean())), rel=1e-10)
    assert float(tree["errors/eam"]) == pytest.approx(float(eam), rel=1e-10)
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "results.nc"]
    assert f"{float(tree['predictions/perplexity']):.4g}"[:4] in err


def test_the_same_command_goes_on_after_an_interrupt_and_others_start_anew(folder, tmp_path, monkeypatch, capsys):
    words = (folder / "decoder", folder / "tokens.npy", "--out", tmp_path, "--against", folder / "other")

    def stop(*_, progress, **__):
        if progress is not None:  # none is told while the stages are asked what they refuse
            raise KeyboardInterrupt
        return xr.Dataset()

    with monkeypatch.context() as patch:
        patch.setattr(verb, "errors_against", stop)
        code, err = run(monkeypatch, capsys, *words)
    assert code == 130
    assert "the same command continues" in err
    assert [path.name for path in tmp_path.iterdir()] == ["partial"]
    shutil.copytree(tmp_path / "partial", tmp_path.parent / "kept", dirs_exist_ok=True)
    code, err = run(monkeypatch, capsys, *words)
    assert (code, "survey: kept from before" in err) == (0, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "results.nc"]
    shutil.copytree(tmp_path.parent / "kept", tmp_path / "partial")
    code, err = run(monkeypatch, capsys, *words, "--sample", 9)
    assert (code, "kept" in err) == (0, False)
    (tmp_path / "partial").mkdir()
    (tmp_path / "partial" / "survey.stage.nc").write_bytes(b"half of a file")
    code, err = run(monkeypatch, capsys, *words)
    assert (code, "kept" in err) == (0, False)


def test_files_of_ones_own_in_the_folder_of_stages_are_left_alone(folder, tmp_path, monkeypatch, capsys):
    kept = {"survey.nc": b"mine", "notes.txt": b"mine as well"}
    (tmp_path / "partial").mkdir()
    for name, content in kept.items():
        (tmp_path / "partial" / name).write_bytes(content)
    code, _ = run(monkeypatch, capsys, folder / "decoder", folder / "tokens.npy", "--out", tmp_path)
    assert code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "partial").iterdir()} == kept


@pytest.mark.parametrize(
    ("model", "words", "sentence"),
    [
        ("decoder", ["tokens.npy", "--draws", "3"], "--draws belongs to --robustness, which was not given"),
        ("decoder", ["tokens.npy", "--lipschitz", "1"], "--lipschitz belongs to --robustness"),
        ("decoder", ["tokens.npy", "--neural-variable", "x"], "--neural-variable belongs to --neural"),
        ("decoder", ["tokens.npy", "--compare", "output"], "--compare belongs to --against"),
        ("decoder", ["tokens.npy", "--sampling-rate", "2"], "measure(--sampling-rate): it is about sequences of real"),
        ("decoder", ["tokens.npy", "--length", "3"], "measure(--length 3): it stands for data"),
        ("s4d", ["tokens.npy", "--window", "3"], "measure(--window): it is about tokens"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(model, words, sentence, folder, tmp_path, monkeypatch, capsys):
    code, err = run(monkeypatch, capsys, folder / model, folder / words[0], *words[1:], "--out", tmp_path / "out")
    assert (code, sentence in err) == (1, True), err
    assert not (tmp_path / "out").exists()


def test_a_length_stands_for_data_also_where_the_directory_holds_some(folder, tmp_path, monkeypatch, capsys):
    shutil.copytree(folder / "decoder", tmp_path / "model")
    np.save(tmp_path / "model" / "tokens.npy", np.zeros((2, 5), np.int64))
    code, err = run(monkeypatch, capsys, tmp_path / "model", "--length", 2, "--out", tmp_path / "out")
    assert (code, "running all 49 sequences of 2 symbols" in err) == (0, True), err


@pytest.mark.parametrize("field", ["y", "channels", "sampling_rate", "name", "lengths"])
def test_stages_know_inputs_by_their_labels_and_names_too(field):
    from oplens.cli.measure import _digest

    series = dataclasses.replace(as_sequences(np.zeros((2, 2, 5))), y=np.array(["a", "b"]), classes=("a", "b"))
    changed = {
        "y": np.array(["b", "a"]),
        "channels": ("left", "right"),
        "sampling_rate": 2.0,
        "name": "other",
        "lengths": np.array([5, 4]),
    }
    assert _digest(series) == _digest(dataclasses.replace(series))
    assert _digest(series) != _digest(dataclasses.replace(series, **{field: changed[field]}))


def test_a_construction_is_run_on_every_input_and_its_uniform_attention_has_rank_one(tmp_path, monkeypatch, capsys):
    model, _ = build_depth2(FunctionTable.from_family("parity", 2, 5))
    model.save_pretrained(tmp_path / "parity")
    np.save(tmp_path / "values.npy", [bin(k).count("1") % 2 for k in range(32)])
    words = (tmp_path / "parity", "--length", 5, "--out", tmp_path / "out", "--against", tmp_path / "values.npy")
    code, err = run(monkeypatch, capsys, *words)
    assert (code, "all 32 sequences" in err) == (0, True)
    tree = read_results(tmp_path / "out" / "results.nc")
    assert float(tree["errors/largest"]) == 0
    assert tree["errors/largest"].attrs["claim"] == "exact"
    np.testing.assert_allclose(tree["attention/effective_rank"], 1, atol=1e-9)
    rows = [
        f"{k >> 4 & 1},{k >> 3 & 1},{k >> 2 & 1},{k >> 1 & 1},{k & 1},{bin(k).count('1') % 2 + 0.5 * (k == 9)}"
        for k in range(32)
    ]
    (tmp_path / "parity.csv").write_text("\n".join(["a,b,c,d,e,f", *rows]) + "\n")
    code, err = run(
        monkeypatch, capsys, tmp_path / "parity", "--against", tmp_path / "parity.csv", "--out", tmp_path / "out2"
    )
    assert code == 0, err
    errors = read_results(tmp_path / "out2" / "results.nc")["errors"]
    assert (float(errors["largest"]), int(errors["largest_case"])) == (0.5, 9)
    told = "Largest error 0.5 and mean error 0.015625 against parity.csv, over all 32 sequences of 5 symbols out of 2."
    assert told in err
    assert read_results(tmp_path / "out2" / "results.nc").attrs["headline"].startswith(told)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("nowhere", "tokens.npy"), "no such folder"),
        (("decoder",), "no data were given"),
        (("s4d",), "give a .ts file"),
        (("decoder", "--length", 99), "7^99 such sequences"),
        (("wordy",), "wordy holds none of sampled_tokens.npy"),
        (("decoder", "none.npy"), "no such file"),
        (("decoder", "tokens.npy", "--cases", 0), "at least 1"),
        (("decoder", "tokens.npy", "--against", "tokens.bin"), "directory of a second model"),
        (("decoder", "tokens.npy", "--against", "text.npy"), "not an array of numbers"),
        (("decoder", "tokens.npy", "--neural", "none.nc"), "none.nc"),
        (("decoder", "tokens.npy", "--compare", "loss", "--against", "other"), "probabilities"),
        (("decoder", "tokens.npy", "--dtype", "float8"), "float8"),
        (("decoder", "tokens.npy", "--robustness", "--dtype", "float32"), "float64"),
        (("decoder", "tokens.npy", "--robustness", "--draws", 1), "draws"),
        (("decoder", "tokens.npy", "--window", 1), "window"),
        (("decoder", "tokens.npy", "--maps", -1), "maps=-1"),
        (("decoder", "tokens.npy", "--seed", -1), "seed=-1"),
        (("decoder", "tokens.npy", "--against", "s4d"), "both must read the same inputs"),
        (("decoder", "tokens.npy", "--against", "tokens.npy", "--cases", 2), "one row a case"),
        (("decoder", "tokens.npy", "--neural", "v1.nc", "--folds", 99), "folds=99"),
        (("decoder", "tokens.npy", "--neural", "v1.nc", "--pool", "max"), "pool='max'"),
        (("decoder", "tokens.npy", "--neural", "v1.nc", "--cases", 3), "there are 3 inputs"),
        (("decoder", "tokens.npy", "--robustness", "--noise-cases", 0), "--noise-cases 0"),
        (("decoder", "tokens.npy", "--robustness", "--lipschitz", -1), "lipschitz=-1"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_leaves_nothing(words, text, folder, tmp_path, monkeypatch, capsys):
    (folder / "text.npy").write_text("no array")
    given = [folder / word if isinstance(word, str) and (word in MODELS or "." in word) else word for word in words]
    code, err = run(monkeypatch, capsys, *given, "--out", tmp_path / "out")
    assert code == 1, err
    assert text in err
    assert err.startswith("oplens: ") or "oplens: " in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_series_are_measured_through_their_model(folder, tmp_path, monkeypatch, capsys):
    lines = ["@problemName two", "@dimensions 2", "@classLabel true 0 1", "@data"]
    lines += [
        f"{','.join(map(str, row))}:{','.join(map(str, row[::-1]))}:{k % 2}"
        for k, row in enumerate(np.random.default_rng(0).standard_normal((6, 20)).round(3))
    ]
    (tmp_path / "data.ts").write_text("\n".join(lines) + "\n")
    code, err = run(monkeypatch, capsys, folder / "s4d", tmp_path / "data.ts", "--cases", 5, "--out", tmp_path / "out")
    assert code == 0, err
    tree = read_results(tmp_path / "out" / "results.nc")
    assert json.loads(tree.attrs["data"])["cases"] == 5
    assert "attention" not in tree.children
