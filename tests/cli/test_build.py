"""`oplens build`: what it writes can be read back and computes the function; what cannot be built is one sentence."""

import itertools
import json
import sys

import numpy as np
import pytest
import torch

from oplens.cli.main import main
from oplens.models import Transformer


def run(monkeypatch, capsys, *words):
    """Exit code, standard output and standard error in one line each."""
    monkeypatch.setattr(sys, "argv", ["oplens", "build", *map(str, words)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main()
    out, err = capsys.readouterr()
    code = stopped.value.code
    return (0 if code is None else int(code)), out, " ".join(err.split())


def answers(folder, inputs):
    model = Transformer.from_pretrained(folder)
    with torch.no_grad():
        return model(torch.tensor(inputs)).squeeze(-1).double().numpy()


@pytest.mark.parametrize("kind", ["lookup", "bits"])
def test_parity_is_written_verified_and_right(kind, monkeypatch, capsys, tmp_path):
    code, out, err = run(
        monkeypatch, capsys, kind, "--function", "parity", "--length", 5, "--vocabulary", 3, "--out", tmp_path / "w"
    )
    assert code == 0, err
    inputs = list(itertools.product(range(3), repeat=5))
    assert answers(tmp_path / "w", inputs).tolist() == [sum(x) % 2 for x in inputs]
    certificate = json.loads((tmp_path / "w" / "certificate.json").read_text())
    assert certificate["claim"] == "exact"
    assert certificate["certified_dtypes"] == ["float64", "float32", "float16", "bfloat16"]
    found = json.loads((tmp_path / "w" / "verification.json").read_text())
    assert (found["mode"], found["errors"], found["total_inputs"]) == ("exhaustive", 0, 243)
    assert {check["dtype"] for check in found["checks"]} == {"float64", "float32", "float16", "bfloat16"}
    assert "0 of 243 wrong" in out


def test_two_layers_are_built_for_each_dtype(monkeypatch, capsys, tmp_path):
    words = ["--function", "majority", "--length", 3, "--out", tmp_path, "--dtype", "float32", "--dtype", "float16"]
    code, _, err = run(monkeypatch, capsys, "depth2", *words)
    assert code == 0, err
    inputs = list(itertools.product(range(2), repeat=3))
    for name in ("float32", "float16"):
        assert answers(tmp_path / name, inputs).tolist() == [float(sum(x) >= 2) for x in inputs]


def test_a_table_file_is_built(monkeypatch, capsys, tmp_path):
    rows = ["first,second,value", "0,0,0.5", "0,1,-2", "1,0,7", "1,1,0"]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    code, _, err = run(monkeypatch, capsys, "bits", "--table", tmp_path / "t.csv", "--out", tmp_path / "w")
    assert code == 0, err
    assert answers(tmp_path / "w", [(0, 0), (0, 1), (1, 0), (1, 1)]).tolist() == [0.5, -2.0, 7.0, 0.0]


@pytest.mark.parametrize(("kind", "size"), [("piecewise-linear", ["--knots", 4]), ("fourier", ["--degree", 3])])
def test_a_function_of_reals_stays_under_its_certificate(kind, size, monkeypatch, capsys, tmp_path):
    words = ["--function", "abs(x1 - x2)", "--lipschitz", "l1:1", *size, "--out", tmp_path]
    code, _, err = run(monkeypatch, capsys, kind, *words)
    assert code == 0, err
    x = np.random.default_rng(0).random((200, 2))
    model = Transformer.from_pretrained(tmp_path)
    with torch.no_grad():
        found = model(torch.from_numpy(x)[..., None]).squeeze(-1).numpy()
    bound = json.loads((tmp_path / "certificate.json").read_text())["error_bound"]
    assert 0 < np.abs(found.reshape(-1) - np.abs(x[:, 0] - x[:, 1])).max() < bound < 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lookup"], "give --function NAME or --python FILE.py:NAME, each with --length N, or --table FILE."),
        (["lookup", "--function", "parity"], "--length is missing"),
        (["lookup", "--function", "sparity", "--length", 3], "sparity"),
        (["lookup", "--function", "parity", "--length", 0], "at least 1"),
        (["lookup", "--function", "parity", "--length", 60], "bytes"),
        (["bits", "--function", "parity", "--length", 3, "--dtype", "int8"], "--dtype int8: choose from float64"),
        (["bits", "--table", "nowhere.csv"], "nowhere.csv"),
        (["piecewise-linear", "--function", "open(x1)", "--knots", 2, "--lipschitz", "max:1"], "open"),
        (["piecewise-linear", "--function", "x1", "--knots", 2, "--lipschitz", "1"], "--lipschitz 1: give a norm"),
        (["piecewise-linear", "--function", "3*x1", "--knots", 2, "--lipschitz", "max:1"], "constant"),
        (["fourier", "--function", "x1", "--degree", 2, "--lipschitz", "max:a"], "'a' is no number"),
    ],
)
def test_what_cannot_be_built_is_one_sentence_and_leaves_nothing(words, sentence, monkeypatch, capsys, tmp_path):
    code, _, err = run(monkeypatch, capsys, *words, "--out", tmp_path / "w")
    assert code == 1
    assert sentence in err
    assert "Traceback" not in err
    assert not (tmp_path / "w").exists()
