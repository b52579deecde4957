"""What a summary says, recomputed by hand; which cases are chosen; damaged operator directories."""

import hashlib
import json

import numpy as np
import pytest
import torch
import xarray as xr

from oplens.errors import OplensError
from oplens.explanation import (
    CentredLogits,
    Channels,
    ExplicitOperator,
    LayerWaves,
    Waves,
    choose_cases,
    expand,
    storage,
    summarise,
)
from oplens.models import S4D, S4DConfig
from oplens.results import validate

CLASSES = ("x", "y", "z")


def make(n_classes=3, n=30, n_layers=1, seed=0):
    torch.manual_seed(seed)
    architecture = "plain" if n_layers == 1 else "reference"
    model = S4D(
        S4DConfig(2, n_classes, 4, 6, n_layers, architecture, dt_min=0.05, dt_max=0.5, classes=CLASSES[:n_classes])
    )
    rng = np.random.default_rng(seed)
    labels = np.array(CLASSES[:n_classes])[np.arange(n) % n_classes]
    X = rng.normal(size=(n, 2, 30)) + (np.arange(n) % n_classes)[:, None, None] * np.array([[0.5], [-0.3]])
    return model, X, labels


def r2(truth, estimate):
    """Over all columns together."""
    return (
        1
        - sum((t - e) ** 2 for t, e in zip(truth.ravel(), estimate.ravel(), strict=True))
        / ((truth - truth.mean(0)) ** 2).sum()
    )


@pytest.mark.parametrize("n_classes", [2, 3])
def test_every_number_recomputed(n_classes):
    model, X, labels = make(n_classes)
    train, test = slice(0, 20), slice(20, 30)
    op = expand(model, X[train], labels[train], order=3)
    ds = op.explain(X[test], labels[test])
    found = summarise(op, ds, X[test], labels[test])
    validate(xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "t"}), "/summary": found}))
    logits, classes = ds["logits"].values, np.array(CLASSES[:n_classes])
    direction = np.array([[-1.0, 1.0]]) if n_classes == 2 else np.eye(3) - 1 / 3
    decided = classes[logits.argmax(1)]
    assert float(found["model_accuracy"]) == np.mean(decided == labels[test])
    for k in range(3):
        cut = ds["truncated_logits"].values[k]
        choice = classes[cut.argmax(1)]
        assert float(found["agreement"][k]) == np.mean(choice == decided)
        assert float(found["accuracy"][k]) == np.mean(choice == labels[test])
        assert float(found["relative_accuracy"][k]) == pytest.approx(
            np.mean(choice == labels[test]) / np.mean(decided == labels[test])
        )
        assert float(found["margin_r2"][k]) == pytest.approx(r2(logits @ direction.T, cut @ direction.T), rel=1e-10)
    means = X.mean(-1)
    own = torch.from_numpy(X.astype(np.float32).astype(float)).transpose(1, 2)
    margins = model.as_float64()(own).numpy() @ direction.T
    weights = np.linalg.lstsq(
        np.column_stack([np.ones(20), X[train].astype(np.float32).astype(float).mean(-1)]), margins[train], rcond=None
    )[0]
    fitted = np.column_stack([np.ones(10), means[test]]) @ weights
    assert float(found["channel_mean_r2"]) == pytest.approx(r2(logits @ direction.T, fitted), rel=1e-6)
    assert float(found["completeness"]) < 1e-12
    assert float(found["cancellation"]) == pytest.approx(np.median(ds["sum_abs_terms"] / abs(ds["target"])), rel=1e-12)


def test_the_margin_beyond_channel_means():
    """Classes told apart by their oscillation alone: means are at chance, the margin is not."""
    rng = np.random.default_rng(0)
    n, steps = 60, np.arange(60)
    labels = np.array(["x", "y"])[np.arange(n) % 2]
    frequency = np.where(labels == "x", 0.05, 0.2)[:, None]
    X = np.sin(2 * np.pi * frequency * steps + rng.uniform(0, 6, (n, 1)))[:, None] + 0.1 * rng.normal(size=(n, 1, 60))
    X = X - X.mean(-1, keepdims=True) + 0.1 * rng.normal(size=(n, 1, 1))
    torch.manual_seed(0)
    model = S4D(S4DConfig(1, 2, 8, 8, dt_min=0.05, dt_max=0.5, classes=("x", "y"))).double()
    with torch.no_grad():
        model.encoder.bias.zero_()
    op = expand(model, X[:40], labels[:40])
    found = summarise(op, op.explain(X[40:], labels[40:]), X[40:], labels[40:])["accuracy_beyond_means"]
    assert found["quantity"].values.tolist() == ["channel means", "channel means + explained margin"]
    assert float(found[0]) < 0.8
    assert float(found[1]) > 0.9


def test_without_labels_rows_that_need_them_are_absent():
    model, X, _ = make()
    op = expand(model, X)
    found = summarise(op, op.explain(X), X)
    assert {"agreement", "margin_r2", "completeness", "cancellation", "channel_mean_r2"} <= set(found.data_vars)
    assert not {"accuracy", "relative_accuracy", "model_accuracy", "accuracy_beyond_means"} & set(found.data_vars)


def test_a_stack_has_no_rows_per_order():
    model, X, labels = make(n_layers=2)
    op = expand(model, X, labels)
    found = summarise(op, op.explain(X, labels, by=LayerWaves()), X, labels)
    assert "accuracy" not in found
    assert float(found["model_accuracy"]) == np.mean(found_labels(op, X) == labels)


def found_labels(op, X):
    return np.array(op.model.config.classes)[op.model(torch.from_numpy(X).transpose(1, 2)).argmax(-1).numpy()]


def test_chosen_cases_follow_the_stated_rule():
    model, X, labels = make(n=60)
    op = expand(model, X, labels)
    ds = op.explain(X, labels, by=Channels())
    chosen = choose_cases(op, ds, X)
    ordered = np.sort(ds["logits"].values, 1)
    gap = ordered[:, -1] - ordered[:, -2]
    right = ds["predicted"].values == labels
    indices, why = chosen["case"].values, chosen["why"].values
    assert len(set(indices.tolist())) == 12
    best = sorted(np.flatnonzero(right), key=lambda i: -gap[i])[:4]
    assert sorted(indices[why == "right, largest margin"]) == sorted(best)
    closest = [i for i in np.argsort(gap, kind="stable") if i not in best][:4]
    assert sorted(indices[why == "closest call"]) == sorted(closest)
    worst = sorted((i for i in np.flatnonzero(~right) if i not in closest), key=lambda i: -gap[i])[:4]
    assert sorted(indices[why == "wrong, largest margin"]) == sorted(worst)
    for row, index in enumerate(indices):
        assert np.array_equal(chosen["signal"].values[row], X[index].astype(np.float32))
    validate(xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "t"}), "/inputs": chosen}))


def test_signals_of_short_cases_end_in_nan():
    model, X, _ = make()
    cases = [x[:, : 10 + i] for i, x in enumerate(X[:15])]
    op = expand(model, cases)
    chosen = choose_cases(op, op.explain(cases), cases)
    for row, index in enumerate(chosen["case"].values):
        signal = chosen["signal"].values[row]
        assert np.array_equal(np.isnan(signal).any(0), np.arange(signal.shape[-1]) >= 10 + index)


@pytest.mark.parametrize("count", [1, 2, 5, 30, 50])
def test_any_number_of_cases_can_be_chosen(count):
    model, X, labels = make()
    op = expand(model, X, labels)
    for y in (labels, None):
        chosen = choose_cases(op, op.explain(X, y, by=Channels(), target=CentredLogits()), X, count)["case"].values
        assert len(chosen) == len(set(chosen.tolist())) == min(count, 30)


def damage_json(change):
    def act(folder):
        header = json.loads((folder / "operator.json").read_text())
        change(header)
        (folder / "operator.json").write_text(json.dumps(header))

    return act


def damage_tensors(change):
    """Damage that whoever wrote it also wrote the hash of."""

    def act(folder):
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / "operator.safetensors")
        change(tensors)
        save_file(tensors, folder / "operator.safetensors")
        digest = hashlib.sha256((folder / "operator.safetensors").read_bytes()).hexdigest()
        damage_json(lambda header: header.update(tensors_sha256=digest))(folder)

    return act


def flip_a_coefficient(folder):
    path = folder / "operator.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def other_model(folder):
    make(seed=1)[0].double().save_pretrained(folder / "model")


DAMAGE = {
    "no operator.json": lambda f: (f / "operator.json").unlink(),
    "no tensors": lambda f: (f / "operator.safetensors").unlink(),
    "no model": lambda f: (f / "model" / "config.json").unlink(),
    "cut tensors": lambda f: (f / "operator.safetensors").write_bytes((f / "operator.safetensors").read_bytes()[:-9]),
    "not JSON": lambda f: (f / "operator.json").write_text("{"),
    "a list": lambda f: (f / "operator.json").write_text("[]"),
    "foreign": damage_json(lambda h: h.update(format="other")),
    "later version": damage_json(lambda h: h.update(version=99)),
    "no training": damage_json(lambda h: h.pop("training")),
    "unknown family": damage_json(lambda h: h.update(family="fourier")),
    "other order": damage_json(lambda h: h.update(order=7)),
    "text order": damage_json(lambda h: h.update(order="2")),
    "missing label": damage_json(lambda h: h["training"]["y"].pop()),
    "labels no list": damage_json(lambda h: h["training"].update(y="xyz")),
    "no centre": damage_tensors(lambda t: t.pop("centre")),
    "no lengths": damage_tensors(lambda t: t.pop("lengths")),
    "NaN coefficients": damage_tensors(lambda t: t["coefficients"].fill_(float("nan"))),
    "negative variance": damage_tensors(lambda t: t["variance"].fill_(-1.0)),
    "foreign coefficients": damage_tensors(lambda t: t.update(coefficients=t["coefficients"][:2].clone())),
    "fewer inputs": damage_tensors(lambda t: t.update(X_train=t["X_train"][:2].clone())),
    "changed inputs": damage_tensors(lambda t: t["X_train"].add_(1)),
    "lengths too long": damage_tensors(lambda t: t["lengths"].fill_(99)),
    "a flipped bit": flip_a_coefficient,
    "another model": other_model,
    "no hash": damage_json(lambda h: h.pop("tensors_sha256")),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_operators_are_refused(tmp_path, name):
    model, X, labels = make()
    expand(model, X, labels).save(tmp_path)
    DAMAGE[name](tmp_path)
    with pytest.raises(OplensError) as caught:
        ExplicitOperator.load(tmp_path)
    assert len(str(caught.value)) > 30
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("last", ["config.json", "operator.safetensors"])
def test_an_overwrite_that_broke_off_is_refused(tmp_path, monkeypatch, last):
    """Same shapes, same training set, another model and family: nothing but a hash can tell."""
    model, X, labels = make()
    expand(model, X, labels).save(tmp_path)
    write = storage.write_bytes

    def write_then_die(path, content):
        write(path, content)
        if path.name == last:
            raise KeyboardInterrupt

    monkeypatch.setattr(storage, "write_bytes", write_then_die)
    monkeypatch.setattr("oplens.models.storage.write_bytes", write_then_die)
    with pytest.raises(KeyboardInterrupt):
        expand(make(seed=1)[0], X, labels, family="taylor").save(tmp_path)
    with pytest.raises(OplensError, match="not of one operator"):
        ExplicitOperator.load(tmp_path)


def test_an_undamaged_one_is_not(tmp_path):
    model, X, labels = make()
    expand(model, X, labels).save(tmp_path)
    assert ExplicitOperator.load(tmp_path).explain(X[:2], by=Waves())["share"].shape == (2, 2, 3, 4, 3)
