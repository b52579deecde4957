"""The operator alone, from its kernels, against the logits that `explain` cuts after its orders: on every data set, by two routes."""

import numpy as np
import pytest
import torch

from oplens.data import load_example, noisy_sinusoids, read_ts
from oplens.explanation import Channels, expand
from oplens.models import S4D, Preprocessing, S4DConfig, load_checkpoint

DATA = ["SelfRegulationSCP1", "BasicMotions", "JapaneseVowels", "sinusoids"]
EXPANSIONS = [("hermite", 2), ("hermite", 8), ("taylor", 3), ("chebyshev", 8), ("empirical", 4)]


def load(name, request):
    """Training and test sequences, a few of each."""
    if name == "SelfRegulationSCP1":
        folder = request.getfixturevalue("shared_data") / "data" / name
        both = [read_ts(folder / f"{name}_{part}.ts", sampling_rate=256.0) for part in ("TRAIN", "TEST")]
    elif name == "sinusoids":
        both = [noisy_sinusoids(n_cases=40, seed=seed) for seed in (0, 1)]
    else:
        both = [load_example(name, part) for part in ("train", "test")]
    rng = np.random.default_rng(0)
    return [data.select(rng.choice(data.n_cases, 16, replace=False)) for data in both]


@pytest.fixture(scope="module", params=DATA)
def example(request):
    train, test = load(request.param, request)
    torch.manual_seed(0)
    config = S4DConfig(
        train.n_channels, len(train.classes), 16, 32, channels=train.channels, classes=train.classes,
        sampling_rate=train.sampling_rate, preprocessing=Preprocessing.standardise(train.X, train.lengths),
    )  # fmt: skip
    model = S4D(config)
    with torch.no_grad():
        model.encoder.weight *= 2.0  # untrained pre-activations are small, and any polynomial would do there
    return model, train, test


@pytest.mark.parametrize(("family", "order"), EXPANSIONS)
def test_the_operator_alone_gives_the_truncated_logits(example, family, order):
    model, train, test = example
    op = expand(model, train, family=family, order=order)
    ds = op.explain(test, by=Channels())
    alone = op(test)
    scale = float(ds.sum_abs_terms.max())
    assert np.abs(alone - ds.truncated_logits.values[-1]).max() < 1e-10 * scale
    # What the operator misses is the remainder that `explain` computes pointwise from the recurrence.
    missed = ds.logits.values - alone
    missed = missed[:, 1] - missed[:, 0] if len(model.config.classes) == 2 else missed - missed.mean(1, keepdims=True)
    assert np.abs(missed - ds.remainder.values).max() < 1e-10 * scale
    assert np.abs(missed).max() > 1e-6 * scale, "a remainder of nothing would compare nothing"


def test_the_golden_model_has_conditional_orders_only(request):
    folder = request.getfixturevalue("shared_data") / "golden" / "s4d_reference"
    model = load_checkpoint(folder / "scp1_1layer.pth", preprocessing="none")
    with np.load(folder / "scp1_1layer_expected.npz") as expected:
        X, logits = expected["inputs"][:2].transpose(0, 2, 1).astype(float), expected["logits"][:2]
    ds = expand(model, X, order=4).explain(X, by=Channels())
    assert ds.attrs["account"].startswith("conditional")
    margin = ds.truncated_logits.values[-1]
    margin = margin[:, 1] - margin[:, 0]
    np.testing.assert_allclose(margin + ds.remainder.values, logits[:, 1] - logits[:, 0], atol=1e-9)
