"""`oplens build ssm`: filters from designs and files, read back and run; bad input is one sentence and leaves nothing."""

import json

import numpy as np
import pytest
import torch
from scipy import signal

from command_line import typed
from oplens.models import S4D
from oplens.results import read_results


def run(monkeypatch, capsys, *words):
    """Exit code, standard output and standard error in one line each."""
    code, out, err = typed(monkeypatch, capsys, "build", "ssm", *words)
    return code, out, " ".join(err.split())


def output(folder, x):
    model = S4D.from_pretrained(folder)
    with torch.no_grad():
        return model(torch.tensor(x, dtype=model.decoder.weight.dtype)[None, :, None])[0, :, 0].double().numpy()


X = np.random.default_rng(0).uniform(-1, 1, 300).astype(np.float32).astype(float)


def test_a_butterworth_design_is_written_with_its_proof_and_page(monkeypatch, capsys, tmp_path):
    words = ["--butterworth", 4, "--cutoff", 40, "--sampling-rate", 256, "--length", 300, "--out", tmp_path / "w"]
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    expected = signal.sosfilt(signal.butter(4, 40, output="sos", fs=256), X)
    certificate = json.loads((tmp_path / "w" / "certificate.json").read_text())
    assert np.abs(output(tmp_path / "w", X) - expected).max() < certificate["error_bound"] < 1e-11
    assert (certificate["claim"], certificate["construction"], certificate["error_parts"]) == (
        "exact",
        "ssm",
        {"kernels": 0.0},
    )
    assert S4D.from_pretrained(tmp_path / "w").config.sampling_rate == 256
    found = json.loads((tmp_path / "w" / "verification.json").read_text())
    assert found["passed"]
    assert {check["dtype"] for check in found["checks"]} == {"float64", "float32"}
    assert "white noise: largest error" in out
    page = (tmp_path / "w" / "report.html").read_text()
    assert "Butterworth filter of order 4: 2 waves" in page
    tree = read_results(tmp_path / "w" / "results.nc")
    slices = tree["construction_slices"]
    noise = next(i for i, name in enumerate(slices["along"].values) if "white noise" in str(name))
    np.testing.assert_allclose(slices["answer"].values[noise], slices["wanted"].values[noise], rtol=0, atol=1e-12)
    assert "construction_checks" in tree.children


@pytest.mark.parametrize("kind", ["npy", "csv"])
def test_sections_and_coefficients_from_files(kind, monkeypatch, capsys, tmp_path):
    sos = signal.butter(3, (0.2, 0.4), "bandpass", output="sos")
    b, a = signal.butter(2, 0.3)
    for name, values in (("sos", sos), ("ba", np.stack([b, a]))):
        path = tmp_path / f"{name}.{kind}"
        if kind == "npy":
            np.save(path, values)
        else:
            path.write_text("\n".join(",".join(map(repr, row)) for row in values.tolist()) + "\n")
        words = [f"--{name}", path, "--dtype", "float32", "--length", 300, "--out", tmp_path / name]
        code, _, err = run(monkeypatch, capsys, *words)
        assert code == 0, err
    assert np.abs(output(tmp_path / "sos", X) - signal.sosfilt(sos, X)).max() < 1e-6
    assert np.abs(output(tmp_path / "ba", X) - signal.lfilter(b, a, X)).max() < 1e-6


def test_a_template_and_a_second_order_kernel(monkeypatch, capsys, tmp_path):
    template = np.hanning(32) * np.cos(np.arange(32) / 3)
    g = np.exp(-np.arange(8) / 2)
    np.save(tmp_path / "template.npy", template)
    np.save(tmp_path / "h2.npy", np.outer(g, g))
    words = ["--template", tmp_path / "template.npy", "--second-order", tmp_path / "h2.npy", "--constant", 0.5]
    words += ["--tolerance", 0.3, "--input-bound", 2, "--length", 300, "--out", tmp_path / "w"]
    code, _, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    x = 2 * X
    expected = 0.5 + np.convolve(template[::-1], x)[:300] + np.convolve(g, x)[:300] ** 2
    certificate = json.loads((tmp_path / "w" / "certificate.json").read_text())
    assert certificate["claim"] == "bound"
    error = np.abs(output(tmp_path / "w", x) - expected).max()
    assert 1e-6 < error < certificate["error_bound"] < 2 * 0.3 + 4 * 0.3 * 2 * 3
    kernels = json.loads((tmp_path / "w" / "verification.json").read_text())["kernels"]
    assert [item["order"] for item in kernels] == [1, 2]
    assert max(item["error"] for item in kernels) <= 0.3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no filter given; give one of --butterworth"),
        (["--butterworth", 4], "--cutoff is missing"),
        (["--butterworth", 4, "--cutoff", "a"], "--cutoff a: give a frequency"),
        (["--butterworth", 4, "--cutoff", 200, "--sampling-rate", 256], "cutoff"),
        (["--butterworth", 4, "--cutoff", 40], "give sampling_rate to have it in Hz"),
        (["--butterworth", 4, "--cutoff", 0.2, "--band", "side"], "choose one of low"),
        (["--butterworth", 4, "--cutoff", 0.2, "--dtype", "float16"], "float64 or float32"),
        (["--butterworth", 4, "--cutoff", 0.2, "--modes", 1], "needs 2 modes"),
        (["--butterworth", 4, "--cutoff", 0.2, "--rank", 1], "give that with --second-order"),
        (["--butterworth", 4, "--cutoff", 0.2, "--sos", "x.npy"], "--butterworth and --sos given"),
        (["--sos", "nowhere.npy"], "nowhere.npy: cannot be read"),
        (["--ba", "rows.csv"], "expected two rows, b and a, got 3"),
        (["--template", "row.csv"], "add --modes N"),
        (["--template", "row.csv", "--cutoff", 3], "belong to --butterworth"),
        (["--template", "rows.csv", "--modes", 2], "one row or one column"),
        (["--template", "row.csv", "--modes", 2, "--input-bound", 0], "input_bound"),
        (["--second-order", "rows.csv", "--modes", 2], "square matrix"),
        (["--second-order", "square.csv", "--modes", 2], "--second-order square.csv: SecondOrderKernel.from_matrix: the matrix is 0"),
        (["--template", "zeros.csv", "--modes", 2], "--template zeros.csv: FiniteKernel: all values are 0"),
        (["--template", "objects.npy", "--modes", 2], "objects.npy: holds Python objects"),
        (["--template", "row.csv", "--modes", 0], "n_modes must be a whole number of at least 1."),
        (["--butterworth", 4, "--cutoff", 0.2, "--seed", -1], "seed must be a whole number of at least 0."),
        (["--butterworth", 4, "--cutoff", 0.2, "--constant", "nan"], "constant must be a finite number."),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_one_sentence_and_leaves_nothing(words, sentence, monkeypatch, capsys, tmp_path):
    (tmp_path / "rows.csv").write_text("1,2\n3,4\n5,6\n")
    (tmp_path / "row.csv").write_text("1,2,3,4,2\n")
    (tmp_path / "zeros.csv").write_text("0,0,0\n")
    (tmp_path / "square.csv").write_text("1,2\n3,4\n")
    np.save(tmp_path / "objects.npy", np.array([1, "a"], dtype=object), allow_pickle=True)
    monkeypatch.chdir(tmp_path)
    code, _, err = run(monkeypatch, capsys, *words, "--out", tmp_path / "w")
    assert code == 1
    assert sentence in err
    assert "Traceback" not in err
    assert not (tmp_path / "w").exists()


def test_an_out_that_is_a_file_is_refused(monkeypatch, capsys, tmp_path):
    (tmp_path / "w").write_text("mine")
    code, _, err = run(monkeypatch, capsys, "--butterworth", 2, "--cutoff", 0.2, "--out", tmp_path / "w")
    assert code == 1
    assert "this is a file; give a folder" in err
    assert (tmp_path / "w").read_text() == "mine"
