"""Weights: the same for the same seed, the same after an interruption, and what an independent loop in plain torch gives."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from sklearn.model_selection import StratifiedShuffleSplit

from oplens.data import SequenceData, load_example, noisy_sinusoids
from oplens.errors import ArgumentError, CheckpointError
from oplens.estimator import S4DClassifier, training
from oplens.models import S4D, Preprocessing, S4DConfig

SMALL = {"d_model": 6, "d_state": 8, "max_epochs": 6, "batch_size": 8, "dropout": 0.2, "lr_ssm": 0.004, "patience": 20}


@pytest.fixture(scope="module")
def data() -> SequenceData:
    return noisy_sinusoids(n_cases=30, n_timepoints=40, seed=0)


@pytest.fixture(scope="module")
def ragged() -> SequenceData:
    whole = load_example("JapaneseVowels")
    return whole.select(np.flatnonzero(np.isin(whole.y, ["2", "7", "9"]))[::3])


def weights(model: S4DClassifier) -> dict[str, torch.Tensor]:
    return model.model_.state_dict()


def equal(a: S4DClassifier, b: S4DClassifier) -> bool:
    first, second = weights(a), weights(b)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("architecture", ["plain", "reference"])
def test_same_seed_same_bits_and_another_seed_others(ragged: SequenceData, architecture: str):
    model = S4DClassifier(**SMALL, architecture=architecture)
    first, second = model.fit(ragged), S4DClassifier(**SMALL, architecture=architecture).fit(ragged)
    assert equal(first, second)
    assert first.history_ == second.history_
    assert not equal(first, S4DClassifier(**SMALL, architecture=architecture, random_state=1).fit(ragged))


def test_the_callers_random_state_neither_matters_nor_changes(data: SequenceData):
    torch.manual_seed(1)
    first = S4DClassifier(**SMALL).fit(data)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)
    np.random.seed(5)  # noqa: NPY002 (the global generator is the point)
    assert equal(first, S4DClassifier(**SMALL).fit(data))


def test_weights_equal_a_plain_loop(ragged: SequenceData):
    """The whole recipe written out again: split, standardisation, jitter, two groups, cosine, label smoothing, best epoch."""
    model = S4DClassifier(
        **{**SMALL, "dropout": 0.0}, weight_decay=0.05, label_smoothing=0.2, lr=0.02, offset_jitter=0.7
    ).fit(ragged)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    classes = sorted(set(ragged.y.tolist()))
    targets = np.array([classes.index(label) for label in ragged.y])
    split = StratifiedShuffleSplit(1, test_size=math.ceil(0.2 * len(targets)), random_state=seed)
    kept, held = (np.sort(part) for part in next(split.split(targets[:, None], targets)))
    steps = np.concatenate([ragged.cases()[i] for i in kept], axis=1)
    preprocessing = Preprocessing(tuple(steps.mean(1)), tuple(steps.std(1)))
    torch.manual_seed(seed)
    net = S4D(S4DConfig(12, 3, 6, 8, preprocessing=preprocessing))
    poles = [p for name, p in net.named_parameters() if name.endswith(("log_dt", "log_A_real", "A_imag"))]
    others = [p for p in net.parameters() if all(p is not q for q in poles)]
    optimiser = torch.optim.AdamW([{"params": others, "lr": 0.02, "weight_decay": 0.05}], lr=0.02)
    optimiser.add_param_group({"params": poles, "lr": 0.004, "weight_decay": 0.0})
    order = torch.Generator().manual_seed(seed)
    x, y = torch.tensor(ragged.X).transpose(1, 2), torch.tensor(targets)
    lengths, n_batches = torch.tensor(ragged.lengths), math.ceil(len(kept) / 8)
    losses, states = [], []
    for epoch in range(6):
        net.train()
        for k, index in enumerate(torch.tensor(kept)[torch.randperm(len(kept), generator=order)].split(8)):
            cosine = 0.5 + 0.5 * math.cos(math.pi * (epoch * n_batches + k) / (6 * n_batches))
            optimiser.param_groups[0]["lr"], optimiser.param_groups[1]["lr"] = 0.02 * cosine, 0.004 * cosine
            optimiser.zero_grad()
            jitter = (
                0.7 * torch.randn(len(index), 12, generator=order, dtype=torch.float64) * torch.tensor(steps.std(1))
            )
            log_p = torch.log_softmax(net(x[index] + jitter[:, None], lengths[index]), 1)
            smooth = 0.8 * torch.nn.functional.one_hot(y[index], 3) + 0.2 / 3
            (-(smooth * log_p).sum(1).mean()).backward()
            optimiser.step()
        net.eval()
        with torch.no_grad():
            log_p = torch.log_softmax(net(x[held], lengths[held]), 1)
        losses.append(-float(log_p[torch.arange(len(held)), y[held]].mean()))
        states.append({name: t.clone() for name, t in net.state_dict().items()})
    np.testing.assert_allclose([entry["valid_loss"] for entry in model.history_], losses, rtol=2e-4)
    best = int(np.argmin(losses))
    assert model.best_epoch_ == best + 1
    for name, tensor in weights(model).items():
        torch.testing.assert_close(tensor, states[best][name], rtol=2e-3, atol=2e-4)


POLES = ("log_dt", "log_A_real", "A_imag")
RINGS = ("log_dt", "log_decay", "damping", "coupling", "delay_position")


@pytest.mark.parametrize(
    ("more", "own"),
    [({}, POLES), ({"coupling": 2, "phase_delay": 0.01}, RINGS), ({"phase_delay": 0.01}, (*POLES, "delay_position"))],
)
def test_only_poles_and_steps_have_their_own_rate_and_no_decay(data: SequenceData, more: dict, own: tuple[str, ...]):
    """With no gradient worth the name, what moves is weight decay: everything but the state-space parameters."""
    tiny = {**SMALL, "lr": 1e-3, "lr_ssm": 1e-30, "max_epochs": 1, "patience": None, **more}
    plain = S4DClassifier(**tiny, weight_decay=0.5)
    moved = weights(plain.fit(data))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.RandomState(0).randint(2**31 - 1)))
        start = S4D(plain.model_.config).state_dict()
    assert {name.split(".")[-1] for name in moved if ".kernel." in name} == {*own, "C"}
    for name, tensor in moved.items():
        still = name.split(".")[-1] in own
        # Adam moves a weight by at most its rate, whatever the gradient.
        assert torch.allclose(tensor, start[name], rtol=0, atol=1e-25) == still, name


def test_rings_are_trained_by_every_weight_they_have(data: SequenceData):
    """Two neighbours and a delay: the loss falls, all weights move, and every wave still decays."""
    settings = {"d_model": 16, "d_state": 16, "max_epochs": 30, "lr": 0.04, "lr_ssm": 0.04, "offset_jitter": 0.0}
    model = S4DClassifier(**settings, coupling=2, phase_delay=0.01).fit(data)
    assert (model.model_.config.coupling, model.model_.config.phase_delay) == (2, 0.01)
    assert model.history_[-1]["train_loss"] < 0.6 * model.history_[0]["train_loss"]
    assert model.score(data) > 0.9
    layer, start = model.model_.layer(0), S4D(model.model_.config).layer(0)
    for name in RINGS[1:]:
        moved = getattr(layer.kernel, name) - getattr(start.kernel, name)
        assert moved.abs().amax(0).min() > 1e-4, name
    assert layer.poles().real.max() < 0
    assert (layer.phase_delay() - 0.01).abs().min() > 1e-6
    other = S4DClassifier(**{**settings, "max_epochs": 2}, initialisation="real").fit(data)
    assert other.model_.config.initialisation == "real"
    assert other.model_.layer(0).kernel.log_A_real.exp().amax(1).min() > 4, "S4D-Real starts with decays up to 8"


class KilledError(Exception):
    pass


@pytest.mark.parametrize(
    "kind",
    [{}, {"architecture": "reference"}, {"coupling": 2, "phase_delay": 0.01}],
    ids=["plain", "reference", "rings"],
)
@pytest.mark.parametrize("epoch", [1, 4])
def test_a_run_that_broke_off_ends_with_the_same_bits(
    ragged: SequenceData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: dict, epoch: int
):
    settings = {**SMALL, **kind}
    whole = S4DClassifier(**settings).fit(ragged)
    save = training.save_run

    def save_then_die(state, directory):
        save(state, directory)
        if len(state.history) == epoch:
            raise KilledError

    monkeypatch.setattr(training, "save_run", save_then_die)
    model = S4DClassifier(**settings, checkpoint_dir=tmp_path)
    with pytest.raises(KilledError):
        model.fit(ragged)
    assert not hasattr(model, "model_")
    saved = []
    monkeypatch.setattr(
        training, "save_run", lambda state, directory: (saved.append(len(state.history)), save(state, directory))
    )
    model.fit(ragged)
    assert saved == list(range(epoch + 1, 7))
    assert equal(model, whole)
    assert model.history_ == whole.history_
    assert model.best_epoch_ == whole.best_epoch_


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_same_bits(tmp_path: Path):
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from oplens.data import noisy_sinusoids\nfrom oplens.estimator import S4DClassifier\n"
        "data = noisy_sinusoids(n_cases=60, n_timepoints=60, seed=2)\n"
        "model = S4DClassifier(d_model=6, d_state=8, dropout=0.3, max_epochs=40, patience=None, checkpoint_dir={!r})\n"
        "model.fit(data).model_.save_pretrained({!r})\n"
    )
    command = [sys.executable, "-c", code.format(str(tmp_path / "runs"), str(tmp_path / "resumed"))]
    process = subprocess.Popen(command)
    while process.poll() is None and epochs_saved(tmp_path / "runs") < 3:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 3 <= epochs_saved(tmp_path / "runs") < 40, "the process was to be killed in the middle"
    assert not (tmp_path / "resumed").exists()
    subprocess.run(command, check=True)
    command[2] = code.replace("checkpoint_dir={!r}", "checkpoint_dir=None or {!r}").format(
        str(tmp_path / "other"), str(tmp_path / "whole")
    )
    subprocess.run(command, check=True)
    resumed, whole = (tmp_path / name / "model.safetensors" for name in ("resumed", "whole"))
    assert resumed.read_bytes() == whole.read_bytes()


def epochs_saved(folder: Path) -> int:
    for path in folder.glob("run-*/training.safetensors"):
        with safe_open(str(path), framework="pt") as file:
            return len(json.loads(file.metadata()["run"])["history"])
    return 0


def test_a_finished_run_is_not_repeated_and_other_data_start_their_own(
    data: SequenceData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = S4DClassifier(**SMALL, checkpoint_dir=tmp_path).fit(data)
    again = S4DClassifier(**SMALL, checkpoint_dir=str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(training, "save_run", lambda *args: pytest.fail("a finished run was trained again"))
        again.fit(data)
    assert equal(model, again)
    S4DClassifier(**{**SMALL, "lr": 0.02}, checkpoint_dir=tmp_path).fit(data)
    other = S4DClassifier(**SMALL, checkpoint_dir=tmp_path).fit(data.X + 1e-9, data.y)
    assert len(list(tmp_path.glob("run-*"))) == 3
    assert equal(other, S4DClassifier(**SMALL).fit(data.X + 1e-9, data.y))


def test_checkpoints_hold_tensors_and_json_only(data: SequenceData, tmp_path: Path):
    S4DClassifier(**SMALL, checkpoint_dir=tmp_path).fit(data)
    (run,) = tmp_path.iterdir()
    assert [path.name for path in run.iterdir()] == ["training.safetensors"]
    content = (run / "training.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert {"model/encoder.weight", "best/encoder.weight", "moments/encoder.weight.exp_avg", "dropout", "order"} <= set(
        header
    )


@pytest.mark.parametrize("damage", ["cut", "foreign", "header", "generator"])
def test_damaged_checkpoints_are_refused(data: SequenceData, tmp_path: Path, damage: str):
    from safetensors.torch import save_file

    model = S4DClassifier(**SMALL, checkpoint_dir=tmp_path).fit(data)
    (path,) = tmp_path.glob("run-*/training.safetensors")
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif damage == "foreign":
        path.write_bytes(b"\x80\x04pickle")
    elif damage == "header":
        save_file({"order": torch.zeros(1)}, path, {"run": "{}"})
    else:
        run = {"format": "oplens-training", "version": 1, "fingerprint": "f", "history": []}
        save_file({"order": torch.zeros(1)}, path, {"run": json.dumps(run)})
    with pytest.raises(CheckpointError, match=r"delete .* to start again"):
        model.fit(data)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a folder that the user cannot write to")
def test_a_folder_that_cannot_be_written_is_named(data: SequenceData, tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(CheckpointError, match="cannot be written"):
        S4DClassifier(**SMALL, checkpoint_dir=tmp_path / "runs").fit(data)


def test_a_file_in_place_of_the_folder_is_named(data: SequenceData, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written here .* choose another checkpoint_dir"):
        S4DClassifier(**SMALL, checkpoint_dir=tmp_path / "file").fit(data)


def test_a_checkpoint_needs_a_seed(data: SequenceData, tmp_path: Path):
    with pytest.raises(ArgumentError, match="same seed; give random_state a whole number"):
        S4DClassifier(**SMALL, checkpoint_dir=tmp_path, random_state=None).fit(data)


def test_stopping_keeps_the_best_epoch(data: SequenceData):
    """A learning rate far too high, so that the held-out loss soon rises."""
    model = S4DClassifier(d_model=6, d_state=8, lr=0.3, schedule="constant", max_epochs=200, patience=4).fit(data)
    losses = [entry["valid_loss"] for entry in model.history_]
    assert model.best_epoch_ == 1 + losses.index(min(losses))
    assert model.n_iter_ == len(losses) == model.best_epoch_ + 4 < 200
    shorter = S4DClassifier(
        d_model=6, d_state=8, lr=0.3, schedule="constant", max_epochs=model.best_epoch_, patience=4
    ).fit(data)
    assert equal(model, shorter)


def test_jitter_takes_the_weight_off_offsets():
    """Class one is offset by 1 and oscillates; after training with jitter the offset alone convinces less."""
    rng, t = np.random.default_rng(0), np.arange(40)
    y = np.arange(60) % 2
    wave = np.sin(0.9 * t + rng.uniform(0, 6.28, (60, 1)))
    X = (y[:, None] * (0.5 + wave) + 0.3 * rng.normal(size=(60, 40)))[:, None]
    margins = {}
    for jitter in (0.0, 1.0):
        model = S4DClassifier(d_model=16, d_state=16, max_epochs=40, offset_jitter=jitter).fit(X, y)
        assert model.score(X, y) > 0.95
        margins[jitter] = (
            model.decision_function(np.full((1, 1, 40), 0.5))[0] - model.decision_function(np.zeros((1, 1, 40)))[0]
        )
    assert margins[0.0] > 4 * abs(margins[1.0])


def test_jitter_means_nothing_where_offsets_are_removed(data: SequenceData):
    first, second = (S4DClassifier(**SMALL, remove_offset=True, offset_jitter=j).fit(data) for j in (0.0, 2.0))
    assert equal(first, second)


def test_patience_none_trains_on_all_cases(data: SequenceData):
    model = S4DClassifier(**{**SMALL, "patience": None}).fit(data)
    assert (model.best_epoch_, model.n_iter_) == (6, 6)
    assert all(set(entry) == {"epoch", "train_loss"} for entry in model.history_)
    np.testing.assert_allclose(model.model_.config.preprocessing.mean, data.X.mean((0, 2)), atol=1e-14)


def test_divergence_is_a_sentence(data: SequenceData):
    with pytest.raises(ArgumentError, match=r"training diverged in epoch \d+ .* lower lr="):
        S4DClassifier(d_model=6, d_state=8, lr=1e30, lr_ssm=1e30, max_epochs=20).fit(data)


def test_progress_is_silent_unless_asked_for(data: SequenceData, capfd: pytest.CaptureFixture[str]):
    model = S4DClassifier(**SMALL).fit(data)
    assert capfd.readouterr() == ("", "")
    S4DClassifier(**SMALL, verbose=1).fit(data)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "6/6" in shown.err
    assert f"held out {model.history_[-1]['valid_loss']:.3f}" in shown.err
