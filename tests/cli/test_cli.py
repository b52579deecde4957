"""The command line as a user meets it: what it writes, what it refuses, and with which words and exit codes."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from command_line import typed
from oplens.cli import verbs
from oplens.cli.main import main
from oplens.data import SequenceData, noisy_sinusoids
from oplens.explanation import ExplicitOperator
from oplens.models import S4D, S4DConfig
from oplens.results import read_results


def write_ts(data: SequenceData, path: Path, labelled: bool = True) -> Path:
    """The sequences as a .ts file, every digit kept."""
    lines = [f"@problemName {data.name}", f"@dimensions {data.n_channels}"]
    names = [name.replace(" ", "_") for name in data.classes]
    lines.append(f"@classLabel true {' '.join(names)}" if labelled else "@classLabel false")
    lines.append("@data")
    for index, case in enumerate(data.cases()):
        parts = [",".join(repr(float(v)) for v in channel) for channel in case]
        if labelled:
            parts.append(str(data.y[index]).replace(" ", "_"))
        lines.append(":".join(parts))
    path.write_text("\n".join(lines) + "\n")
    return path


def run(monkeypatch, capsys, *words: object) -> tuple[int, str]:
    """Exit code and what stood on stderr."""
    code, _, err = typed(monkeypatch, capsys, *words)
    return code, err


@pytest.fixture(autouse=True)
def no_page(request, monkeypatch):
    """Pages take as long as explaining, so only tests that are about them have one."""
    if "page" not in request.node.name:
        real = verbs.render
        monkeypatch.setattr(
            verbs, "render", lambda what, out: out if isinstance(what, xr.DataTree) else real(what, out)
        )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    train = noisy_sinusoids(n_cases=24, n_timepoints=48, sampling_rate=64.0, seed=0)
    test = noisy_sinusoids(n_cases=10, n_timepoints=48, sampling_rate=64.0, seed=1)
    write_ts(train, folder / "TRAIN.ts")
    write_ts(test, folder / "TEST.ts")
    write_ts(test, folder / "UNLABELLED.ts", labelled=False)
    return folder


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "model"
    with pytest.MonkeyPatch.context() as patch:
        arguments = ["--sampling-rate", "64", "--max-epochs", "2", "--d-model", "3", "--d-state", "6"]
        patch.setattr(sys, "argv", ["oplens", "train", str(files / "TRAIN.ts"), "--out", str(folder), *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code in (0, None)
    return folder


def test_train_leaves_a_model_and_its_operator(trained):
    model = S4D.from_pretrained(trained)
    assert model.config.classes == ("15_Hz", "20_Hz")
    assert model.config.sampling_rate == 64.0
    op = ExplicitOperator.load(trained / "operator")
    assert (op.family, op.order) == ("hermite", 2)
    assert len(op.training.lengths) == 24


def test_train_makes_rings(files, tmp_path, monkeypatch, capsys):
    words = ["--initialisation", "inv", "--coupling", 2, "--phase-delay", -0.01, "--max-epochs", 1, "--d-model", 3]
    code, _ = run(monkeypatch, capsys, "train", files / "TRAIN.ts", "--out", tmp_path, "--d-state", 8, *words)
    assert code == 0
    config = S4D.from_pretrained(tmp_path).config
    assert (config.initialisation, config.coupling, config.phase_delay, config.d_state) == ("inv", 2, -0.01, 8)


def test_explain_writes_results_that_add_up_to_the_model_and_a_page_that_report_renders_again(
    trained, files, tmp_path, monkeypatch, capsys
):
    code, _ = run(monkeypatch, capsys, "explain", trained, files / "TEST.ts", "--out", tmp_path)
    assert code == 0
    tree = read_results(tmp_path / "results.nc")
    groups = {
        "waves",
        "channels_bands",
        "windows",
        "pairs_waves",
        "pairs_channels_bands",
        "summary",
        "inputs",
        "baselines",
        "ring",
        "certificates",
        "kernels",
        "reduction",
    }
    assert set(tree.children) == groups
    test = noisy_sinusoids(n_cases=10, n_timepoints=48, sampling_rate=64.0, seed=1)
    import torch

    logits = S4D.from_pretrained(trained).double()(torch.from_numpy(test.X).transpose(1, 2)).detach().numpy()
    for name in ("waves", "channels_bands", "windows"):
        ds = tree[name].to_dataset()
        over = [d for d in ds.share.dims if d != "case"]
        total = ds.order_0 + ds.share.sum(over) + ds.source_share.sum(("order", "source")) + ds.remainder
        np.testing.assert_allclose(total, logits[:, 1] - logits[:, 0], atol=1e-10)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page) < 8_000_000
    assert tree.attrs["headline"].split('"')[0].strip() in page
    assert json.loads(tree.attrs["model"])["sampling_rate"] == 64.0
    code, _ = run(monkeypatch, capsys, "report", tmp_path / "results.nc", "--out", tmp_path / "again.html")
    assert code == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page


def test_views_and_their_sections_on_the_page_are_chosen_by_name(trained, files, tmp_path, monkeypatch, capsys):
    words = ["explain", trained, files / "TEST.ts", "--out", tmp_path, "--by", "channels"]
    code, text = run(monkeypatch, capsys, *words, "--view", "none")
    assert code == 0, text
    assert set(read_results(tmp_path / "results.nc").children) == {"channels", "summary", "inputs", "baselines"}
    code, text = run(monkeypatch, capsys, *words, "--view", "ablation", "--view", "ring")
    assert code == 0, text
    tree = read_results(tmp_path / "results.nc")
    assert set(tree.children) == {"channels", "summary", "inputs", "baselines", "ablation", "ring"}
    assert 'id="ablation"' in (tmp_path / "report.html").read_text(encoding="utf-8")
    for views, sentence in (
        (["waterfall"], "'waterfall' is no view; choose from ring"),
        (["none", "ring"], "--view none and --view ring contradict each other"),
        (["ray"], "'ray' is no view of this model (plain architecture, 1 layer, 2 classes); it can have ring"),
    ):
        code, text = run(monkeypatch, capsys, *words, *(word for view in views for word in ("--view", view)))
        assert code == 1
        assert sentence in " ".join(text.split())


def test_what_if_prints_the_change_that_flips_each_decision(trained, files, tmp_path, monkeypatch, capsys):
    import torch

    monkeypatch.setattr(
        sys, "argv", ["oplens", "explain", str(trained), str(files / "TEST.ts"), "--out", str(tmp_path), "--what-if"]
    )
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code in (0, None)
    lines = capsys.readouterr().out.strip().splitlines()
    tree = read_results(tmp_path / "results.nc")
    ds, delta = tree["what_if"].to_dataset(), tree["what_if_cases"].to_dataset()["delta"].sortby("case")
    assert len(lines) == ds.sizes["case"] + 1
    model = S4D.from_pretrained(trained).double()
    test = noisy_sinusoids(n_cases=10, n_timepoints=48, sampling_rate=64.0, seed=1)
    with torch.no_grad():
        before, after = (
            model(torch.from_numpy(np.ascontiguousarray(x)).transpose(1, 2)).argmax(-1)
            for x in (test.X, test.X + delta.values)
        )
    flipped = (before != after).numpy()
    assert flipped.sum() == int(ds["flipped"].sum()) >= 5
    for case, line in enumerate(lines[: len(flipped)]):
        assert line.startswith(f"case {case}")
        assert "15_Hz" in line
        assert "20_Hz" in line
    assert f"{flipped.sum()} of {len(flipped)}" in lines[-1]


def test_options_choose_family_order_and_parts(trained, files, tmp_path, monkeypatch, capsys):
    words = ["--family", "taylor", "--order", 3, "--by", "channels,bands", "--by", "waves", "--bands", "0-10,10-32"]
    code, _ = run(monkeypatch, capsys, "explain", trained, files / "TEST.ts", "--out", tmp_path, *words)
    assert code == 0
    tree = read_results(tmp_path / "results.nc")
    assert {"channels_bands", "waves"} <= set(tree.children)
    assert "windows" not in tree.children
    ds = tree["channels_bands"].to_dataset()
    assert ds.attrs["family"] == "taylor"
    assert ds.order.values.tolist() == [1, 2, 3]
    assert ds.band_high.values.tolist() == [10.0, 32.0]


def test_unlabelled_sequences_are_explained_without_accuracies(trained, files, tmp_path, monkeypatch, capsys):
    code, _ = run(monkeypatch, capsys, "explain", trained, files / "UNLABELLED.ts", "--out", tmp_path)
    assert code == 0
    tree = read_results(tmp_path / "results.nc")
    assert "accuracy" not in tree["summary"]
    assert "agreement" in tree["summary"]
    assert "label" not in tree["waves"].coords


def test_another_training_set_expands_anew(trained, files, tmp_path, monkeypatch, capsys):
    words = ["--train", files / "TEST.ts"]
    code, _ = run(monkeypatch, capsys, "explain", trained, files / "TEST.ts", "--out", tmp_path, *words)
    assert code == 0
    op = ExplicitOperator.load(tmp_path / "operator")
    assert (len(op.training.lengths), op.family, op.order) == (10, "hermite", 2)


def test_what_is_not_asked_for_stays_as_it_was_trained(files, tmp_path, monkeypatch, capsys):
    """A Taylor operator of order 3 stays one with another training set, and learns its sampling rate late."""
    words = ["--max-epochs", "1", "--d-model", "2", "--d-state", "4", "--family", "taylor", "--order", "3"]
    code, text = run(monkeypatch, capsys, "train", files / "TRAIN.ts", "--out", tmp_path / "m", *words)
    assert code == 0, text
    words = ["--train", files / "TEST.ts", "--by", "bands", "--sampling-rate", "64"]
    code, text = run(
        monkeypatch, capsys, "explain", tmp_path / "m", files / "TEST.ts", "--out", tmp_path / "[/o]", *words
    )
    assert code == 0, text
    assert "[/o]" in text
    ds = read_results(tmp_path / "[/o]" / "results.nc")["bands"].to_dataset()
    assert (ds.attrs["family"], int(ds.attrs["order"])) == ("taylor", 3)
    assert ds.band_high.attrs["units"] == "Hz"
    assert float(ds.band_high[-1]) == 32.0


def test_a_trained_stack_is_explained_with_bands_of_ones_own_and_any_order(files, tmp_path, monkeypatch, capsys):
    words = ["--architecture", "reference", "--n-layers", "2", "--max-epochs", "1", "--d-model", "2", "--d-state", "4"]
    code, text = run(
        monkeypatch, capsys, "train", files / "TRAIN.ts", "--out", tmp_path, "--sampling-rate", "64", *words
    )
    assert code == 0, text
    words = ["--bands", "0-10,10-32", "--windows", "3", "--order", "3"]
    code, text = run(monkeypatch, capsys, "explain", tmp_path, files / "TEST.ts", "--out", tmp_path / "o", *words)
    assert code == 0, text
    assert "--order and --family change nothing" in " ".join(text.split())
    tree = read_results(tmp_path / "o" / "results.nc")
    assert {"layer_waves", "channels_bands", "windows"} <= set(tree.children)
    assert tree["channels_bands"].to_dataset().band_high.values.tolist() == [10.0, 32.0]
    assert tree["windows"].sizes["window"] == 3
    assert float(tree["summary/completeness"]) < 1e-10


def test_bands_and_windows_of_ones_own_leave_the_other_defaults(trained, files, tmp_path, monkeypatch, capsys):
    words = ["--bands", "0-10,10-32", "--windows", "3"]
    code, text = run(monkeypatch, capsys, "explain", trained, files / "TEST.ts", "--out", tmp_path, *words)
    assert code == 0, text
    tree = read_results(tmp_path / "results.nc")
    assert {"waves", "channels_bands", "windows", "pairs_waves", "pairs_channels_bands"} <= set(tree.children)
    assert tree["pairs_channels_bands"].sizes["band_2"] == 2


def test_a_training_run_that_breaks_off_leaves_no_operator_of_an_older_model(files, tmp_path, monkeypatch, capsys):
    words = ["train", files / "TRAIN.ts", "--out", tmp_path, "--max-epochs", "1", "--d-model", "2", "--d-state", "4"]
    assert run(monkeypatch, capsys, *words)[0] == 0

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verbs, "expand", stop)
    assert run(monkeypatch, capsys, *words, "--seed", "1")[0] == 130
    monkeypatch.undo()
    code, text = run(monkeypatch, capsys, "explain", tmp_path, files / "TEST.ts", "--out", tmp_path / "o")
    assert code == 1
    assert "holds no operator" in text


def test_the_operator_itself_may_be_named(trained, files, tmp_path, monkeypatch, capsys):
    for k, model in enumerate((trained, trained / "operator")):
        words = ["explain", model, files / "TEST.ts", "--out", tmp_path / str(k), "--by", "channels"]
        assert run(monkeypatch, capsys, *words)[0] == 0
    trees = [read_results(tmp_path / str(k) / "results.nc") for k in (0, 1)]
    assert trees[0]["channels"].to_dataset().drop_attrs().identical(trees[1]["channels"].to_dataset().drop_attrs())


def test_units_a_million_times_smaller_are_noted_once_and_sizes_of_misfit_stay_short(
    trained, files, tmp_path, monkeypatch, capsys
):
    test = noisy_sinusoids(n_cases=6, n_timepoints=48, sampling_rate=64.0, seed=1)
    volts = write_ts(dataclasses.replace(test, X=1e-6 * test.X), tmp_path / "VOLTS.ts")
    code, text = run(monkeypatch, capsys, "explain", trained, volts, "--out", tmp_path / "v")
    assert code == 0
    words = " ".join(text.split())
    assert words.count("note: explain: the sequences vary 1e-06 times as much as the training set") == 1
    assert re.search(r"order 1: decides as the model in [\d.]+%, R2 -\d\.\de\+\d+;", words), words
    one = write_ts(dataclasses.replace(test.select(np.array([0])), name="one"), tmp_path / "ONE.ts")
    code, text = run(monkeypatch, capsys, "explain", trained, one, "--out", tmp_path / "o")
    assert code == 0
    assert "R2 undefined" in " ".join(text.split())
    assert "note: explain" not in text


def test_a_second_train_of_the_same_run_repeats_nothing_and_gives_the_same_bits(trained, files, monkeypatch, capsys):
    before = (trained / "model.safetensors").read_bytes()
    words = ["--sampling-rate", "64", "--max-epochs", "2", "--d-model", "3", "--d-state", "6"]
    code, _ = run(monkeypatch, capsys, "train", files / "TRAIN.ts", "--out", trained, *words)
    assert code == 0
    assert (trained / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(("checkpoint", "stride"), [("scp1_1layer", 1), ("scp1_2layer_stride2", 2)])
def test_the_golden_checkpoints_are_explained_from_raw_files(
    checkpoint, stride, shared_data, tmp_path, monkeypatch, capsys
):
    import oplens

    root = shared_data / "data" / "SelfRegulationSCP1"
    data = oplens.read_ts(root / "SelfRegulationSCP1_TEST.ts")
    few, lengths = slice(0, 6), -(-data.lengths[:6] // stride)
    short = dataclasses.replace(data, X=data.X[few, :, ::stride].copy(), lengths=lengths, y=data.y[few])
    test = write_ts(short, tmp_path / "TEST.ts")
    # The golden models were standardised with all steps of the training file, also where every second step was trained on.
    whole = root / "SelfRegulationSCP1_TRAIN.ts"
    words = ["--standardise-with", whole, "--sampling-rate", 256 / stride, "--by", "channels", "--order", 2]
    # The expansion needs a training set; the six cases keep the test short, standardisation uses all 268.
    words += ["--train", test]
    target = shared_data / "golden" / "s4d_reference"
    code, text = run(
        monkeypatch, capsys, "explain", target / f"{checkpoint}.pth", test, "--out", tmp_path / "o", *words
    )
    assert code == 0, text
    ds = read_results(tmp_path / "o" / "results.nc")["channels"].to_dataset()
    expected = np.load(target / f"{checkpoint}_expected.npz")["logits"][:6]
    # The golden inputs were rounded to float32 after standardising, which moves logits by about 1e-7.
    np.testing.assert_allclose(ds.logits, expected, atol=2e-5)
    assert "conditional" in ds.attrs["account"]
    assert float((abs(ds.completeness_residual) / ds.sum_abs_terms).max()) < 1e-10
    assert ds.logits.dims == ("case", "class")


REFUSED = {
    "no such data": (["explain", "{model}", "{dir}/none.ts", "--out", "{out}"], "none.ts"),
    "no such model": (["explain", "{dir}/none", "{test}", "--out", "{out}"], "no such file"),
    "training data missing": (["explain", "{pth}", "{test}", "--out", "{out}"], "--train"),
    "preprocessing unsaid": (
        ["explain", "{pth}", "{test}", "--train", "{train}", "--out", "{out}"],
        "--standardise-with",
    ),
    "contradiction": (
        [
            "explain",
            "{pth}",
            "{test}",
            "--train",
            "{train}",
            "--raw",
            "--standardise-with",
            "{train}",
            "--out",
            "{out}",
        ],
        "contradict",
    ),
    "own model, foreign options": (["explain", "{model}", "{test}", "--raw", "--out", "{out}"], "foreign"),
    "order 0": (["explain", "{model}", "{test}", "--order", "0", "--out", "{out}"], "at least 1"),
    "family": (["explain", "{model}", "{test}", "--family", "fourier", "--out", "{out}"], "taylor"),
    "unknown part": (["explain", "{model}", "{test}", "--by", "chanels", "--out", "{out}"], "chanels"),
    "bad band": (["explain", "{model}", "{test}", "--bands", "4..8", "--out", "{out}"], "low-high"),
    "empty band": (["explain", "{model}", "{test}", "--bands", "8-4", "--out", "{out}"], "8, 4"),
    "overlap": (["explain", "{model}", "{test}", "--bands", "0-8,4-12", "--out", "{out}"], "overlap"),
    "no window": (
        ["explain", "{model}", "{test}", "--windows", "0", "--by", "windows", "--out", "{out}"],
        "at least 1",
    ),
    "bands nobody asked for": (
        ["explain", "{model}", "{test}", "--by", "waves", "--bands", "0-8", "--out", "{out}"],
        "--by bands",
    ),
    "windows nobody asked for": (
        ["explain", "{model}", "{test}", "--by", "waves", "--windows", "4", "--out", "{out}"],
        "--by windows",
    ),
    "the same part twice": (
        ["explain", "{model}", "{test}", "--by", "waves", "--by", "waves", "--out", "{out}"],
        "both be the group 'waves'",
    ),
    "above Nyquist": (["explain", "{model}", "{test}", "--bands", "40-50", "--out", "{out}"], "Nyquist"),
    "another rate": (["explain", "{model}", "{test}", "--sampling-rate", "100", "--out", "{out}"], "64 Hz"),
    "negative rate": (["train", "{train}", "--sampling-rate", "-1", "--out", "{out}"], "sampling_rate"),
    "out is a file": (["explain", "{model}", "{test}", "--out", "{test}"], "file"),
    "model is text": (["explain", "{test}", "{test}", "--train", "{train}", "--raw", "--out", "{out}"], "TEST.ts"),
    "family of training": (["train", "{train}", "--family", "fourier", "--out", "{out}"], "taylor"),
    "order of training": (["train", "{train}", "--order", "0", "--out", "{out}"], "at least 1"),
    "seed": (["train", "{train}", "--seed", "-1", "--out", "{out}"], "random_state=-1"),
    "an order beyond numbers": (
        ["explain", "{model}", "{test}", "--order", "1000", "--out", "{out}"],
        "lower the order",
    ),
    "unlabelled training": (["train", "{unlabelled}", "--out", "{out}"], "no labels"),
    "architecture": (["train", "{train}", "--architecture", "lstm", "--out", "{out}"], "lstm"),
    "initialisation": (["train", "{train}", "--initialisation", "legs", "--out", "{out}"], "lin, inv, real"),
    "reach": (["train", "{train}", "--coupling", "40", "--out", "{out}"], "neighbours 1 to 32 sites away"),
    "delay": (["train", "{train}", "--phase-delay", "0.1", "--out", "{out}"], "between -1.5708 and 0.00513399"),
    "impute": (["train", "{train}", "--impute", "magic", "--out", "{out}"], "linear"),
    "channel names": (["train", "{train}", "--channels", "a,b", "--out", "{out}"], "channel"),
    "report of text": (["report", "{test}", "--out", "{dir}/p.html"], "TEST.ts"),
    "report of nothing": (["report", "{dir}/none.nc", "--out", "{dir}/p.html"], "none.nc"),
    "foreign labels": (["explain", "{model}", "{other}", "--out", "{out}"], "labels"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_one_sentence_and_exit_code_one(name, trained, files, tmp_path, monkeypatch, capsys):
    import torch

    words, expected = REFUSED[name]
    model = S4D.from_pretrained(trained)
    reference = S4D(type(model.config)(d_input=1, n_classes=2, d_model=2, d_state=4, architecture="reference"))
    torch.save({"model": reference.state_dict()}, tmp_path / "ckpt.pth")
    other = noisy_sinusoids(n_cases=4, n_timepoints=48, sampling_rate=64.0, frequencies=(5.0, 9.0), seed=1)
    known = {
        "model": trained,
        "dir": tmp_path,
        "out": tmp_path / "out",
        "pth": tmp_path / "ckpt.pth",
        "train": files / "TRAIN.ts",
        "test": files / "TEST.ts",
        "unlabelled": files / "UNLABELLED.ts",
        "other": write_ts(other, tmp_path / "OTHER.ts"),
    }
    code, text = run(monkeypatch, capsys, *[word.format(**known) for word in words])
    assert code == 1, text
    last = text.strip().splitlines()[-1]
    assert last.startswith("oplens: ")
    assert expected in last, last
    assert "Traceback" not in text
    assert not (tmp_path / "out" / "results.nc").exists()
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert not list((tmp_path / "out").glob("run/run-*")), (
        "nothing is trained before it is known that it can be explained"
    )


@pytest.mark.parametrize("words", [["explain"], ["fly"], ["train", "x.ts"], ["report", "a", "--order", "2"]])
def test_wrong_usage_is_exit_code_two(words, monkeypatch, capsys):
    code, text = run(monkeypatch, capsys, *words)
    assert code == 2
    assert "Usage" in text or "Error" in text


def test_a_model_that_answers_at_every_step_has_no_page_and_is_told_what_has(files, tmp_path, monkeypatch, capsys):
    S4D(S4DConfig(d_input=1, n_classes=1, d_model=2, d_state=4, pooling="none")).save_pretrained(tmp_path / "filter")
    code, text = run(monkeypatch, capsys, "explain", tmp_path / "filter", files / "TEST.ts", "--out", tmp_path / "out")
    assert code == 1
    assert "at every step" in text
    assert "explain(X, at=t)" in text
    assert "report.html" not in text
    (tmp_path / "filter" / "report.html").write_text("a page")
    assert (
        "report.html"
        in run(monkeypatch, capsys, "explain", tmp_path / "filter", files / "TEST.ts", "--out", tmp_path)[1]
    )


def test_debug_shows_the_traceback(tmp_path, monkeypatch):
    from oplens.errors import OplensError

    monkeypatch.setattr(sys, "argv", ["oplens", "--debug", "report", str(tmp_path / "none.nc"), "--out", "x"])
    with pytest.raises(OplensError, match=r"none\.nc"):
        main()


def test_an_interrupt_says_how_to_go_on(monkeypatch, capsys):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verbs, "run_report", stop)
    code, text = run(monkeypatch, capsys, "report", "a.nc", "--out", "b.html")
    assert code == 130
    assert "interrupted" in text


def test_a_page_that_fails_leaves_whole_results_and_no_half_page(trained, files, tmp_path, monkeypatch, capsys):
    from oplens.errors import ResultError

    def fail(*_: object) -> None:
        raise ResultError("the disk is full.")

    monkeypatch.setattr(verbs, "render", fail)
    code, text = run(monkeypatch, capsys, "explain", trained, files / "TEST.ts", "--out", tmp_path, "--by", "waves")
    assert code == 1
    assert "disk is full" in text
    assert "waves" in read_results(tmp_path / "results.nc").children
    assert sorted(path.name for path in tmp_path.iterdir()) == ["operator", "results.nc"]


@pytest.mark.slow
def test_the_demonstration_leaves_the_pages_and_results_it_promises(tmp_path, monkeypatch, capsys):
    code, text = run(monkeypatch, capsys, "demo", "--out", tmp_path)
    assert code == 0, text
    for name in ("sinusoids", "basic_motions"):
        tree = read_results(tmp_path / f"{name}.nc")
        assert float(tree["summary/model_accuracy"]) >= 0.9
        assert float(tree["summary/completeness"]) < 1e-10
        assert S4D.from_pretrained(tmp_path / name).config.n_classes in (2, 4)
        assert ExplicitOperator.load(tmp_path / name / "operator").order == 2
    sinusoids = read_results(tmp_path / "sinusoids.nc")["summary"].to_dataset()
    # Frequency cannot be read off an offset: order 1 must be near chance, the pairs of waves must decide.
    assert float(sinusoids.agreement.sel(order=1)) < 0.7
    assert float(sinusoids.agreement.sel(order=2)) > 0.9
    assert (tmp_path / "report.html").stat().st_size < 8_000_000
