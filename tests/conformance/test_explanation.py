"""Completeness as a test: on every data set and golden model, terms, remainder and logit by three routes, and one case alone."""

import numpy as np
import pytest
import torch

from oplens.data import load_example, noisy_sinusoids, read_ts
from oplens.explanation import Bands, CentredLogits, Channels, LayerWaves, Pairs, Waves, Windows, expand
from oplens.models import S4D, Preprocessing, S4DConfig, load_checkpoint
from oplens.results import recomputed_completeness

PARTITIONS = [
    Waves(),
    Channels(),
    Bands(),
    Windows(8),
    (Channels(), Bands()),
    (Bands(), Windows(4)),
    (Waves(), Windows(2)),
]


def cases_of(data, indices):
    return [data.X[i, :, : data.lengths[i]] for i in indices]


def load(name, shared_data):
    """Training and test sequences."""
    if name == "SelfRegulationSCP1":
        folder = shared_data / "data" / name
        return tuple(read_ts(folder / f"{name}_{part}.ts", sampling_rate=256.0) for part in ("TRAIN", "TEST"))
    if name == "sinusoids":
        return noisy_sinusoids(n_cases=40, seed=0), noisy_sinusoids(n_cases=20, seed=1)
    return load_example(name, "train"), load_example(name, "test")


@pytest.fixture(scope="module", params=["SelfRegulationSCP1", "BasicMotions", "JapaneseVowels", "sinusoids"])
def example(request):
    shared = request.getfixturevalue("shared_data") if request.param == "SelfRegulationSCP1" else None
    train, test = load(request.param, shared)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    config = S4DConfig(
        train.X.shape[1], len(train.classes), 32, 64, channels=train.channels, classes=train.classes, sampling_rate=train.sampling_rate,
        preprocessing=Preprocessing.standardise(train.X, train.lengths),
    )  # fmt: skip
    model = S4D(config)
    some = cases_of(train, rng.choice(len(train.X), 24, replace=False))
    rows = rng.choice(len(test.X), 10, replace=False)
    return model, some, cases_of(test, rows), test.y[rows]


def miss(ds):
    """Largest relative miss of every account that the Dataset holds, by the public check."""
    return recomputed_completeness(ds)


def assert_complete_and_sharp(ds):
    assert miss(ds) < 1e-10
    names = [
        name for name in ("share", "full_share", "layer_share", "remainder", "order_0", "residual_share") if name in ds
    ]
    for name in names:
        values = ds[name].values.copy()
        flat = values.reshape(-1)
        scale = float(ds["sum_abs_terms"].min())
        flat[np.abs(flat).argmax()] += 1e-6 * scale
        assert miss(ds.assign({name: ds[name].copy(data=values)})) > 1e-10, name


@pytest.mark.parametrize("by", PARTITIONS)
@pytest.mark.parametrize(("family", "order"), [("hermite", 2), ("taylor", 3), ("hermite", 4)])
def test_nothing_is_left_over(example, family, order, by):
    model, train, test, _ = example
    ds = expand(model, train, family=family, order=order).explain(test, by=by)
    assert_complete_and_sharp(ds)
    # The target is the model's own, by its own forward pass in its own batch.
    logits = np.stack([model.as_float64()(torch.from_numpy(x.T)[None])[0].numpy() for x in test])
    assert np.abs(ds["logits"].values - logits).max() < 1e-12 * np.abs(logits).max()
    directions = (
        np.array([[-1.0, 1.0]]) if len(model.config.classes) == 2 else np.eye(len(logits[0])) - 1 / len(logits[0])
    )
    assert (
        np.abs(ds["target"].values.reshape(len(test), -1) - logits @ directions.T).max() < 1e-12 * np.abs(logits).max()
    )


@pytest.mark.parametrize("by", PARTITIONS)
def test_one_case_order_of_cases_and_chunks_do_not_matter(example, by, monkeypatch):
    model, train, test, labels = example
    op = expand(model, train, order=3)
    whole = op.explain(test, labels, by=by)
    names = [
        name
        for name in (
            "share",
            "source_share",
            "full_share",
            "source_full_share",
            "order_0",
            "remainder",
            "truncated_logits",
        )
        if name in whole
    ]
    scale = float(whole["sum_abs_terms"].max())

    def apart(ds, rows):
        return max(float(np.abs(ds[name].values - whole[name].isel(case=rows).values).max()) for name in names)

    assert apart(op.explain(test[7:8], by=by), [7]) < 1e-12 * scale
    backwards = list(range(len(test)))[::-1]
    assert apart(op.explain(test[::-1], by=by), backwards) < 1e-12 * scale
    monkeypatch.setattr("oplens.explanation.training.BATCH_BYTES", 1)
    chunked = op.explain(test, by=by)
    assert apart(chunked, backwards[::-1]) < 1e-12 * scale
    # Training moments fitted in chunks of one case are the same moments.
    assert (
        float(np.abs(expand(model, train, order=3).explain(test, by=by)["share"].values - whole["share"].values).max())
        < 1e-11 * scale
    )


@pytest.mark.parametrize("by", [Waves(), (Channels(), Windows(2))])
def test_pairs_sum_to_shares_on_every_data_set(example, by):
    model, train, test, _ = example
    op = expand(model, train, order=2)
    few = test[:3]
    pairs, shares = op.explain(few, by=Pairs(by)), op.explain(few, by=by).sel(order=[2])
    rows = pairs["pair_share"].sum([d for d in pairs["pair_share"].dims if d.endswith("_2")]) + pairs[
        "pair_source_share"
    ].sum("source")
    assert float(abs(rows - shares["share"]).max()) < 1e-10 * float(shares["sum_abs_terms"].max())


def golden(shared_data, name):
    folder = shared_data / "golden" / "s4d_reference"
    with np.load(folder / f"{name}_expected.npz") as expected:
        X, logits = expected["inputs"].astype(np.float64).transpose(0, 2, 1), expected["logits"]
    return load_checkpoint(folder / f"{name}.pth", preprocessing="none", sampling_rate=256.0), X, logits


@pytest.mark.parametrize(("family", "order"), [("hermite", 2), ("hermite", 5), ("taylor", 2)])
@pytest.mark.parametrize("by", PARTITIONS[:5])
def test_conditional_orders_of_the_golden_layer(shared_data, family, order, by):
    model, X, logits = golden(shared_data, "scp1_1layer")
    op = expand(model, X, family=family, order=order)
    ds = op.explain(X, by=by, target=CentredLogits())
    assert_complete_and_sharp(ds)
    assert np.abs(ds["logits"].values - logits).max() < 1e-9
    alone = op.explain(X[3:4], by=by, target=CentredLogits())
    assert np.abs(alone["share"].values - ds["share"].values[:, 3:4]).max() < 1e-12 * float(ds["sum_abs_terms"].max())
    if "residual" in ds["source"].values:
        assert float(abs(ds["source_share"].sel(source="residual", order=1)).max()) > 0


ONE, TWO = "scp1_1layer", "scp1_2layer_stride2"


@pytest.mark.parametrize(
    ("name", "by"), [(ONE, LayerWaves()), (TWO, LayerWaves()), *((TWO, by) for by in PARTITIONS[1:6])]
)
def test_accounts_of_the_golden_stacks(shared_data, name, by):
    model, X, logits = golden(shared_data, name)
    op = expand(model, X)
    ds = op.explain(X, by=by)
    assert_complete_and_sharp(ds)
    assert np.abs(ds["logits"].values - logits).max() < 1e-9
    share = "layer_share" if by == LayerWaves() else "full_share"
    alone = op.explain(X[2:3], by=by)[share].values
    assert np.abs(alone[0] - ds[share].values[2]).max() < 1e-12 * float(ds["sum_abs_terms"].max())


@pytest.mark.slow
def test_the_whole_eeg_test_set(shared_data):
    train, test = load("SelfRegulationSCP1", shared_data)
    torch.manual_seed(1)
    config = S4DConfig(
        6,
        2,
        32,
        64,
        classes=train.classes,
        sampling_rate=256.0,
        preprocessing=Preprocessing.standardise(train.X, train.lengths),
    )
    op = expand(S4D(config), train, order=2)
    for by in (Waves(), (Channels(), Bands(), Windows(8))):
        assert_complete_and_sharp(op.explain(test, by=by))
    raw = S4D(
        S4DConfig(6, 2, 32, 64, classes=train.classes, sampling_rate=256.0, preprocessing=Preprocessing.identity(6))
    )
    assert_complete_and_sharp(
        expand(raw, train, order=2).explain(test, by=(Channels(), Bands()))
    )  # raw microvolts, tens in size
