"""`oplens build`: what it writes can be read back and computes the function; what cannot be built is one sentence."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from command_line import typed
from oplens.cli import built_files, constructions
from oplens.construction import journal
from oplens.models import Transformer
from oplens.results import read_results


@pytest.fixture(autouse=True)
def render(request, monkeypatch):
    """Pages take longer than all the rest, so only tests that are about them have one; gives the real function."""
    real = built_files.render
    if "page" not in request.node.name:
        monkeypatch.setattr(built_files, "render", lambda tree, path: path.write_text("page"))
    return real


def run(monkeypatch, capsys, *words):
    """Exit code, standard output and standard error in one line each."""
    code, out, err = typed(monkeypatch, capsys, "build", *words)
    return code, out, " ".join(err.split())


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


PARITY = ("--function", "parity", "--length", 3)


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
        (["fourier", "--degree", 2, "--lipschitz", "max:1"], '--function "FORMULA", or --python FILE.py:NAME'),
        (
            ["fourier", "--function", "x1", "--degree", 2, "--lipschitz", "max:1", "--dtype", "float16"],
            "float64 or float32",
        ),
        (["fourier", "--function", "x1", "--degree", 2, "--lipschitz", "max:1", "--step", 2], "step"),
        (
            ["fourier", "--function", "x1", "--degree", 9, "--lipschitz", "max:1", "--memory-limit", "1K"],
            "memory_limit",
        ),
        (["fourier", "--function", "x1*x2", "--degree", 2, "--lipschitz", "l1:1", "--variables", 1], "has 2 variables"),
        (
            ["fourier", "--function", "x1", "--degree", 2, "--lipschitz", "max:1", "--example", "1,2"],
            "give 1 number separated",
        ),
        (["lookup", *PARITY, "--table", "t.csv"], "not --function and --table together"),
        (["lookup", *PARITY, "--hops", 2], "unknown option hops"),
        (["lookup", *PARITY, "--labels", 2], "unknown option labels"),
        (["lookup", *PARITY, "--output", "f"], "--output means nothing here"),
        (["bits", "--table", "t.csv", "--modulus", 2], "--modulus means nothing here"),
        (["bits", "--table", "t.csv", "--length", 2], "--length means nothing here"),
        (["bits", *PARITY, "--vocabulary", "a,b"], "names are for --table"),
        (["bits", *PARITY, "--vocabulary", "many"], "give a number of symbols"),
        (["bits", *PARITY, "--memory-limit", "lots"], "--memory-limit lots: give a number of bytes"),
        (["bits", *PARITY, "--memory-limit", "100"], "above the limit of 100"),
        (["bits", *PARITY, "--weights", "thin"], "choose dense, sparse"),
        (["bits", *PARITY, "--n-frequencies", 0], "n_frequencies=0"),
        (["bits", *PARITY, "--frequency-base", 0.5], "frequency_base=0.5"),
        (["bits", *PARITY, "--example", "0,1"], "give 3 symbols separated by commas, out of 0, 1"),
        (["bits", *PARITY, "--example", "0,1,2"], "give 3 symbols"),
        (["bits", *PARITY, "--verify-budget", 0], "budget=0"),
        (["bits", *PARITY, "--shuffles", -1], "shuffles=-1"),
        (["bits", *PARITY, "--seed", -1], "verify(seed=-1)"),
        (["bits", *PARITY, "--out", "huge.csv/w"], "huge.csv is a file, and holds no folders"),
        (["lookup", "--table", "huge.csv"], "the function's values reach 1e+39, float32 ends at 3.40282e+38"),
        (["lookup", "--table", "columns.csv", "--output", "f"], "columns a, g hold its symbols"),
        (["fourier", "--function", "x1", "--degree", 2, "--lipschitz", "l1:1", "--seed", -1], "seed=-1"),
        (["bits", "--function", "k-hop", "--length", 3, "--hops", 0], "at least 1"),
        (["bits", "--python", "nowhere.py:f", "--length", 3], "there is no file nowhere.py"),
        (["bits", "--python", "f", "--length", 3], "give a file and the name of a function"),
    ],
)
def test_what_cannot_be_built_is_one_sentence_and_leaves_nothing(words, sentence, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "huge.csv").write_text("a,f\n0,1e39\n1,2\n")
    (tmp_path / "columns.csv").write_text("a,f,g\n0,1,7\n1,2,8\n")
    code, _, err = run(monkeypatch, capsys, words[0], "--out", tmp_path / "w", *words[1:])
    assert code == 1
    assert sentence in err
    assert "Traceback" not in err
    assert not (tmp_path / "w").exists()


def test_results_and_page_stand_beside_the_weights(monkeypatch, capsys, tmp_path):
    words = [*PARITY, "--example", "1,0,1", "--example", "1,1,1", "--dtype", "float32", "--out", tmp_path / "w"]
    code, _, err = run(monkeypatch, capsys, "lookup", *words)
    assert code == 0, err
    assert sorted(path.name for path in (tmp_path / "w").iterdir()) == [
        "certificate.json",
        "config.json",
        "model.safetensors",
        "report.html",
        "results.nc",
        "verification.json",
    ]
    tree = read_results(tmp_path / "w" / "results.nc")
    assert tree["construction_states"].text.values.tolist() == [["1", "0", "1"], ["1", "1", "1"]]
    assert json.loads((tmp_path / "w" / "certificate.json").read_text())["dtype"] == "float32"
    assert str(next(Transformer.from_pretrained(tmp_path / "w").parameters()).dtype) == "torch.float32"
    assert "all 8 inputs run in float32" in (tmp_path / "w" / "report.html").read_text()
    assert "all 8 inputs run in float32" in err


@pytest.mark.parametrize(
    ("words", "f"),
    [
        (["--function", "k-hop", "--hops", 2], lambda x: k_hop(x, 2)),
        (["--function", "modular-sum", "--modulus", 4], lambda x: sum(x) % 4),
        (["--function", "modular_sum"], lambda x: sum(x) % 3),
        (["--function", "threshold", "--threshold", 2], lambda x: sum(x) >= 2),
    ],
)
def test_families_take_their_options(words, f, monkeypatch, capsys, tmp_path):
    words = [*words, "--length", 4, "--vocabulary", 3, "--dtype", "float64", "--shuffles", 0, "--out", tmp_path]
    code, _, err = run(monkeypatch, capsys, "bits", *words)
    assert code == 0, err
    inputs = list(itertools.product(range(3), repeat=4))
    assert answers(tmp_path, inputs).tolist() == [float(f(x)) for x in inputs]


def k_hop(x, hops):
    """By the definition: where the last earlier occurrence of the symbol here is followed."""
    here = len(x) - 1
    for _ in range(hops):
        earlier = [j for j in range(here) if x[j] == x[here]]
        if not earlier:
            return 3
        here = earlier[-1] + 1
    return x[here]


def test_random_labels_follow_the_seed(monkeypatch, capsys, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        words = [
            "--function",
            "random",
            "--labels",
            5,
            "--length",
            4,
            "--seed",
            seed,
            "--dtype",
            "float64",
            "--shuffles",
            0,
        ]
        code, _, err = run(monkeypatch, capsys, "bits", *words, "--out", tmp_path / name)
        assert code == 0, err
    inputs = list(itertools.product(range(2), repeat=4))
    a, b, c = (answers(tmp_path / name, inputs).tolist() for name in "abc")
    assert a == b != c
    assert 2 < max(a) <= 4


def test_weights_frequencies_and_mask_are_chosen(monkeypatch, capsys, tmp_path):
    words = ["--weights", "sparse", "--n-frequencies", 6, "--frequency-base", 50, "--causal", "--dtype", "float64"]
    code, _, err = run(monkeypatch, capsys, "lookup", *PARITY, *words, "--out", tmp_path)
    assert code == 0, err
    config = Transformer.from_pretrained(tmp_path).config
    assert (config.weights, config.n_frequencies, config.frequency_base, config.causal) == ("sparse", 6, 50.0, True)


def test_a_budget_that_is_too_small_for_all_inputs_makes_a_sample(monkeypatch, capsys, tmp_path):
    words = ["--function", "parity", "--length", 6, "--verify-budget", 2000, "--dtype", "float64", "--out", tmp_path]
    code, out, err = run(monkeypatch, capsys, "lookup", *words)
    assert code == 0, err
    assert "a stratified sample (2 strata, seed 0) of 64 inputs" in out
    assert json.loads((tmp_path / "verification.json").read_text())["mode"] == "sampled"


FILE = """
import numpy as np

NUMBER = 3

def both(x):
    return x[0] & x[1]

def wave(x):
    return np.sin(3 * x[:, 0]) * x[:, 1]

def broken(x):
    return 1 / (x[0] - 1)
"""


def test_a_python_function_is_built(monkeypatch, capsys, tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    words = [
        "--python",
        f"{tmp_path / 'mine.py'}:both",
        "--length",
        2,
        "--labels",
        2,
        "--one-hot",
        "--dtype",
        "float64",
    ]
    code, _, err = run(monkeypatch, capsys, "bits", *words, "--out", tmp_path / "w")
    assert code == 0, err
    inputs = list(itertools.product(range(2), repeat=2))
    assert answers(tmp_path / "w", inputs).tolist() == [[1 - (a & b), a & b] for a, b in inputs]
    words = [
        "--python",
        f"{tmp_path / 'mine.py'}:wave",
        "--variables",
        2,
        "--lipschitz",
        "l1:3",
        "--knots",
        4,
        "--points",
        500,
    ]
    code, _, err = run(monkeypatch, capsys, "piecewise-linear", *words, "--out", tmp_path / "r")
    assert code == 0, err
    assert "wave is computed in 4 layers within" in err


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("missing", FILE, "has no function 'missing'; it has both, wave, broken."),
        ("NUMBER", FILE, "has no function 'NUMBER'"),
        ("broken", FILE, "raised ZeroDivisionError at input (1, 0)"),
        ("f", "x = 1\nimport nothing_of_that_name\n", "line 2: running it raised ModuleNotFoundError"),
        ("f", "def f(:\n", "running it raised SyntaxError"),
        ("f", "raise SystemExit(3)\n", "running it raised SystemExit: 3"),
        ("f", "", "has no function 'f', and no other function."),
    ],
)
def test_a_python_file_that_cannot_serve_is_one_sentence(name, text, sentence, monkeypatch, capsys, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    words = ["--python", f"{tmp_path / 'mine.py'}:{name}", "--length", 2, "--out", tmp_path / "w"]
    code, _, err = run(monkeypatch, capsys, "bits", *words)
    assert (code, sentence in err) == (1, True), err
    assert not (tmp_path / "w").exists()
    if name != "f":
        words = ["--python", f"{tmp_path / 'mine.py'}:{name}", "--out", tmp_path / "w"]
        assert "is missing" in run(monkeypatch, capsys, "bits", *words)[2]
        words += ["--knots", 2, "--lipschitz", "l1:1"]
        assert "--variables is missing" in run(monkeypatch, capsys, "piecewise-linear", *words)[2]


def test_a_table_with_named_symbols_and_columns(monkeypatch, capsys, tmp_path):
    rows = ["f,a,b,g", "0,y,y,5", "1,y,n,6", "2,n,y,7", "3,n,n,8"]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    words = [
        "--table",
        tmp_path / "t.csv",
        "--vocabulary",
        "y,n",
        "--output",
        "g",
        "--output",
        "f",
        "--dtype",
        "float64",
    ]
    code, _, err = run(monkeypatch, capsys, "depth2", *words, "--example", "n,y", "--out", tmp_path / "w")
    assert code == 0, err
    assert answers(tmp_path / "w", [(0, 0), (0, 1), (1, 0), (1, 1)]).tolist() == [[5, 0], [6, 1], [7, 2], [8, 3]]
    tree = read_results(tmp_path / "w" / "results.nc")
    assert tree["construction_states"].text.values.tolist() == [["n", "y"]]
    (tmp_path / "t.csv").write_text("a,b,f\ny,y,3\ny,n,1\nn,y,2\nn,n,0\n")
    for more, sentence in (
        (["--labels", 3], "is no label from 0 to 2"),
        (["--vocabulary", "y,m"], "outside the vocabulary"),
        (["--memory-limit", 16], "above the limit of 16"),
    ):
        _, _, err = run(monkeypatch, capsys, "bits", *words[:2], *more, "--out", tmp_path / "v")
        assert sentence in err


def test_reals_take_bounds_and_their_own_options(monkeypatch, capsys, tmp_path):
    words = [
        "--function",
        "x1**2",
        "--lipschitz",
        "max:4",
        "--bounds",
        "-1:2",
        "--degree",
        4,
        "--step",
        0.2,
        "--nodes",
        3,
    ]
    words += ["--points", 100, "--example", "-0.5", "--dtype", "float32", "--n-frequencies", 5, "--out", tmp_path / "w"]
    code, _, err = run(monkeypatch, capsys, "fourier", *words)
    assert code == 0, err
    certificate = json.loads((tmp_path / "w" / "certificate.json").read_text())
    assert certificate["dtype"] == "float32"
    assert "degree 4" in certificate["statement"]
    assert "knots 0.2 apart" in certificate["statement"]
    assert Transformer.from_pretrained(tmp_path / "w").config.n_frequencies == 5
    assert read_results(tmp_path / "w" / "results.nc")["construction_states"].text.values.tolist() == [["-0.5"]]


def test_a_failure_while_writing_leaves_no_half_of_it(monkeypatch, capsys, tmp_path):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(built_files, "render", fail)
    code, _, err = run(monkeypatch, capsys, "bits", *PARITY, "--dtype", "float64", "--out", tmp_path / "a" / "w")
    assert code == 1
    assert "No space left on device" in err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "config.json").write_text("older")
    run(monkeypatch, capsys, "bits", *PARITY, "--dtype", "float64", "--out", tmp_path / "w")
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["config.json"]
    assert (tmp_path / "w" / "config.json").read_text() == "older"


def test_a_verification_that_was_interrupted_continues(monkeypatch, capsys, tmp_path):
    """After a minute, here at once, counts are kept; the same command takes them up, another one does not."""
    monkeypatch.setattr(journal, "AFTER", 0.0)
    monkeypatch.setattr(journal, "EVERY", 0.0)
    stop, told = [40], []

    def progress():
        def tell(done, total):
            told.append(done)
            if stop and done >= stop[0]:
                raise KeyboardInterrupt

        return tell

    monkeypatch.setattr(constructions, "progress", lambda words: contextlib.nullcontext(progress()))
    words = ["--function", "parity", "--length", 5, "--dtype", "float64", "--dtype", "float16", "--out", tmp_path / "w"]
    code, _, err = run(monkeypatch, capsys, "bits", *words)
    assert code == 130
    assert "the same command continues it" in err
    assert [path.name for path in (tmp_path / "w").iterdir()] == ["verification-float64-float16.partial.json"]
    stop.clear(), told.clear()
    code, _, err = run(monkeypatch, capsys, "bits", *words)
    assert code == 0, err
    assert told == [32, 64, 96, 128], "two passes were there already"
    found = json.loads((tmp_path / "w" / "verification.json").read_text())
    assert [check["inputs"] for check in found["checks"]] == [32] * 4
    assert not list((tmp_path / "w").glob("*partial*"))


def test_an_interrupt_within_a_minute_leaves_nothing(monkeypatch, capsys, tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    monkeypatch.setattr(constructions, "progress", lambda words: contextlib.nullcontext(stop))
    code, out, err = run(monkeypatch, capsys, "bits", *PARITY, "--out", tmp_path / "w")
    assert (code, out) == (130, "")
    assert "interrupted; no model was written" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_signal_soon_after_the_start_leaves_nothing(tmp_path):
    words = [
        sys.executable,
        "-c",
        "from oplens.cli import main; main()",
        "build",
        "lookup",
        "--function",
        "parity",
        "--length",
        "14",
        "--out",
        str(tmp_path / "w"),
    ]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert process.stderr is not None
    for line in process.stderr:
        if "verified" in line:
            break
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; no model was written" in err
    assert list(tmp_path.iterdir()) == []
