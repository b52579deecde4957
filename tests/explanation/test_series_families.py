"""Chebyshev and empirical operators against numpy's own fits on pre-activations from a time loop."""

import math

import numpy as np
import pytest
import torch

from oplens import S4D, Bands, Channels, ExplicitOperator, Pairs, S4DConfig, Waves, Windows, expand
from oplens.errors import ArgumentError, CheckpointError

ORDER = 6


def gelu(z):
    return z * 0.5 * np.vectorize(math.erfc)(-z / math.sqrt(2))


def model_and_data(architecture="plain", n_classes=3):
    torch.manual_seed(4)
    config = S4DConfig(d_input=2, n_classes=n_classes, d_model=4, d_state=6, dt_max=0.4, architecture=architecture)
    rng = np.random.default_rng(2)
    X = [rng.normal(size=(2, n)) * 2 + 0.7 for n in (30, 17, 24, 30, 11)]
    X = [case.astype(np.float32).astype(float) for case in X]  # operators are fitted on float32 inputs
    return S4D(config).double(), X


def pre_activations(model, X):
    """z of every case, (length, d_model), by the step recurrence."""
    return [model.trace(torch.from_numpy(x.T.copy())[None], mode="step").layers[0].z[0].detach().numpy() for x in X]


def fitted(family, z, order):
    """One polynomial per feature, as callables: numpy's Chebyshev interpolation, or a weighted least-squares solve."""
    polynomials = []
    for h in range(z[0].shape[1]):
        values = np.concatenate([case[:, h] for case in z])
        low, high = values.min(), values.max()
        if family == "chebyshev":
            series = np.polynomial.Chebyshev.interpolate(gelu, 80, domain=[low, high]).truncate(order + 1)
        else:
            weights = np.concatenate([np.full(len(case), 1 / len(case)) for case in z])
            series = np.polynomial.Chebyshev.fit(values, gelu(values), order, w=np.sqrt(weights), domain=[low, high])
        polynomials.append(series)
    return polynomials


@pytest.mark.parametrize("family", ["chebyshev", "empirical"])
def test_truncated_logits_are_of_the_own_polynomial_of_each_degree(family):
    model, X = model_and_data()
    ds = expand(model, X, family=family, order=ORDER).explain(X)
    z = pre_activations(model, X)
    W, bias = model.decoder.weight.detach().numpy(), model.decoder.bias.detach().numpy()
    for order in range(1, ORDER + 1):
        polynomials = fitted(family, z, order)
        for case, values in enumerate(z):
            pooled = np.array([polynomials[h](values[:, h]).mean() for h in range(4)])
            # The least-squares solve of numpy is conditioned like its Vandermonde matrix.
            np.testing.assert_allclose(ds.truncated_logits[order - 1, case], W @ pooled + bias, atol=1e-9)


@pytest.mark.parametrize("architecture", ["plain", "reference"])
@pytest.mark.parametrize("family", ["chebyshev", "empirical"])
def test_terms_remainder_and_pairs_add_up(family, architecture):
    model, X = model_and_data(architecture)
    op = expand(model, X, family=family, order=ORDER)
    with torch.no_grad():
        logits = np.concatenate([model(torch.from_numpy(x.T.copy())[None]).numpy() for x in X])
    centred = logits - logits.mean(1, keepdims=True)
    for by in (Waves(), (Channels(), Bands([(0, 0.2), (0.2, 0.5)])), Windows(3)):
        ds = op.explain(X, by=by)
        over = [d for d in ds.share.dims if d not in ("case", "class")]
        total = ds.order_0 + ds.share.sum(over) + ds.source_share.sum(("order", "source")) + ds.remainder
        assert float((abs(total - centred) / ds.sum_abs_terms).max()) < 1e-10
        pairs = op.explain(X, by=Pairs(by))
        second = [d for d in pairs.pair_share.dims if str(d).endswith("_2")]
        rows = pairs.pair_share.sum(second) + pairs.pair_source_share.sum("source")
        np.testing.assert_allclose(rows, ds.share.sel(order=slice(2, None)), atol=1e-10 * float(ds.sum_abs_terms.max()))


def test_chebyshev_has_the_smaller_sup_error_and_empirical_the_smaller_square():
    model, X = model_and_data()
    z = pre_activations(model, X)
    sup, square = {}, {}
    for family in ("chebyshev", "empirical"):
        expansion = expand(model, X, family=family, order=4).expansion
        low = torch.from_numpy(np.min([case.min(0) for case in z], axis=0))
        high = torch.from_numpy(np.max([case.max(0) for case in z], axis=0))
        grid = low[:, None] + (high - low)[:, None] * torch.linspace(0, 1, 4001, dtype=torch.float64)
        gap = expansion.evaluate(grid[None])[0].numpy() - gelu(grid.numpy())
        sup[family] = np.abs(gap).max(1)
        errors = [expansion.evaluate(torch.from_numpy(case.T.copy())[None])[0].numpy() - gelu(case.T) for case in z]
        square[family] = np.mean([(error**2).mean(1) for error in errors], axis=0)
    assert np.all(sup["chebyshev"] < sup["empirical"])
    assert np.all(square["empirical"] < square["chebyshev"])


@pytest.mark.parametrize("family", ["chebyshev", "empirical"])
def test_a_saved_operator_is_the_same_and_explains_the_same(family, tmp_path):
    model, X = model_and_data()
    op = expand(model, X, family=family, order=ORDER)
    op.save(tmp_path / "op")
    back = ExplicitOperator.load(tmp_path / "op")
    assert back == op
    for name in ("share", "truncated_logits", "remainder"):
        np.testing.assert_array_equal(back.explain(X)[name], op.explain(X)[name])
    np.testing.assert_allclose(back(X), op.explain(X).truncated_logits[-1], atol=1e-10)


def test_an_operator_without_its_blocks_is_refused(tmp_path):
    import hashlib
    import json

    from safetensors.torch import load_file, save_file

    model, X = model_and_data()
    expand(model, X, family="chebyshev", order=3).save(tmp_path)
    tensors = load_file(tmp_path / "operator.safetensors")
    for change, words in (("drop", "series.shift"), ("cut", "does not fit")):
        broken = dict(tensors)
        if change == "drop":
            del broken["series.shift"]
        else:
            broken["series.slope"] = broken["series.slope"][:, :1].contiguous()
        save_file(broken, tmp_path / "operator.safetensors")
        header = json.loads((tmp_path / "operator.json").read_text())
        header["tensors_sha256"] = hashlib.sha256((tmp_path / "operator.safetensors").read_bytes()).hexdigest()
        (tmp_path / "operator.json").write_text(json.dumps(header))
        with pytest.raises(CheckpointError, match=words):
            ExplicitOperator.load(tmp_path)


def test_an_unknown_family_names_the_known_ones():
    model, X = model_and_data()
    with pytest.raises(ArgumentError, match="hermite, taylor, chebyshev, empirical"):
        expand(model, X, family="legendre")
