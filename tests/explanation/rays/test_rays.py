"""The ray account against numpy's Chebyshev interpolation of a network written in numpy, and against polynomials known exactly."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial import Chebyshev, Polynomial, chebyshev

from oplens.errors import ArgumentError, DataError
from oplens.explanation import CentredLogits, Margin, expand
from oplens.explanation.rays import rays as module
from oplens.explanation.rays.rays import powers_of_eps, ray
from oplens.models import S4D, Preprocessing, S4DConfig, load_checkpoint
from ray_oracles import RayNetwork, ray_cases, ray_model

ARCHITECTURES = [(n, pre, "reference") for n in (1, 2, 3, 4) for pre in (False, True)] + [(1, False, "plain")]
TRAIN = ray_cases(7, (16, 19, 12))
SAMPLES = np.random.default_rng(5).normal(size=(2, 23))


def mean_of(cases):
    return np.concatenate([c.astype(np.float32).astype(float) for c in cases], axis=1).mean(1)[:, None]


def start_of(baseline, raw):
    """The baseline under one case, (n_channels, 1 or length)."""
    if baseline is None:
        return mean_of(TRAIN)
    if isinstance(baseline, str):
        return np.array([[0.2], [-0.4]])
    return np.array(baseline)[:, None] if np.ndim(baseline) == 1 else np.array(baseline)[:, : raw.shape[1]]


def along(model, raw, baseline, direction):
    """Target at real eps, a function of an array, by the numpy network."""
    network = RayNetwork(model, raw, start_of(baseline, raw))
    return lambda eps: (network(np.ravel(eps)) @ direction).real


def check(model, cases, order, baseline, target):
    ds = ray(expand(model, TRAIN), cases, order, baseline, target=target)
    for index, raw in enumerate(cases):
        for t, direction in enumerate(target.directions(model.config.classes)):
            at = ds.isel({"case": index, "class": t}) if target.per_class else ds.isel(case=index)
            value = along(model, raw, baseline, direction)
            expected = chebyshev.chebinterpolate(lambda s, value=value: value((s + 1) / 2), order)
            scale = np.abs(expected).sum()
            assert np.abs(at["ray_order"].values - expected).max() < 1e-10 * scale
            assert abs(float(at["target"]) - value(1.0)[0]) < 1e-10 * scale
            assert abs(float(at["remainder"]) - (value(1.0)[0] - expected.sum())) < 1e-10 * scale
            assert abs(float(at["completeness_residual"])) < 1e-12 * scale
            eps = ds["position"].values
            course = value(eps)
            assert np.abs(at["model_course"].values - course).max() < 1e-10 * scale
            for k in range(order + 1):
                polynomial = Chebyshev(expected[: k + 1], domain=[0, 1])
                worst = np.abs(polynomial(eps) - course).max()
                assert abs(float(at["ray_error"][k]) - worst) < 1e-10 * scale
            assert np.abs(at["expansion_course"].values - polynomial(eps)).max() < 1e-10 * scale
            powers = polynomial.convert(kind=Polynomial).coef
            np.testing.assert_allclose(at["power_order"].values, powers, rtol=0, atol=1e-8 * np.abs(powers).max())
    return ds


@pytest.mark.parametrize(("n_layers", "prenorm", "architecture"), ARCHITECTURES)
def test_terms_are_those_of_the_interpolating_polynomial(n_layers, prenorm, architecture):
    model = ray_model(n_layers, prenorm, architecture)
    ds = check(model, ray_cases(), 6, None, CentredLogits())
    assert ds["ray_order"].dims == ("order", "case", "class")
    check(
        ray_model(n_layers, prenorm, architecture, seed=1, remove_offset=True), ray_cases(1), 5, None, Margin("z", "x")
    )


@pytest.mark.parametrize("baseline", ["zero", (0.3, -1.0), SAMPLES])
def test_every_kind_of_baseline(baseline):
    ds = check(ray_model(2), ray_cases(), 4, baseline, Margin("z", "x"))
    assert ds.attrs["ray_start"] != ray(expand(ray_model(2), TRAIN), ray_cases()).attrs["ray_start"]


def test_nodes_are_where_the_expansion_meets_the_model():
    ds = ray(expand(ray_model(2), TRAIN), ray_cases(), 5)
    gap = np.abs(ds["model_course"] - ds["expansion_course"]).max(("case", "class"))
    assert ds["position"].values[[0, -1]].tolist() == [0, 1]
    assert int(ds["node"].sum()) == 6
    assert float(gap[ds["node"].values].max()) < 1e-14
    assert float(gap[~ds["node"].values].min()) > 1e-7
    assert math.isclose(float(gap.max()), float(ds["ray_error"].isel(order=-1).max()), rel_tol=1e-6)


def test_the_error_falls_geometrically_with_the_order():
    ds = ray(expand(ray_model(3), TRAIN), ray_cases(), 24)
    error = ds["ray_error"].max("class").values  # (order, case)
    assert (error[24] < 0.2 * error[8]).all()
    assert (error[8] < 0.2 * error[1]).all()
    assert "power_order" not in ds
    assert "left out" in ds.attrs["powers"]


def quadratic(z, *_):
    return 0.1 + 0.5 * z + 0.3 * z * z


def test_a_quadratic_model_has_its_closed_form(monkeypatch):
    """With a polynomial for GELU the plain model is the polynomial operator, whose homogeneous orders are known in closed form."""
    monkeypatch.setattr(torch.nn.functional, "gelu", quadratic)
    model = ray_model(1, architecture="plain", n_classes=2)
    raw = ray_cases()[1]
    ds = ray(expand(model, TRAIN), [raw], 4).isel(case=0)
    network = RayNetwork(model, raw, mean_of(TRAIN))
    W = network.p["decoder.weight"][1] - network.p["decoder.weight"][0]
    length = raw.shape[1]
    lag = np.arange(length)[:, None] - np.arange(length)[None]
    toeplitz = np.where(lag[..., None] >= 0, network.response(0, length)[np.maximum(lag, 0)], 0.0)
    E, e = network.p["encoder.weight"], network.p["encoder.bias"]
    base = np.einsum("ijh,jh->ih", toeplitz, network.start @ E.T + e)
    move = np.einsum("ijh,jh->ih", toeplitz, (network.end - network.start) @ E.T)
    bias = network.p["decoder.bias"][1] - network.p["decoder.bias"][0]
    expected = [
        W @ quadratic(base).mean(0) + bias,
        W @ (0.5 * move + 0.6 * base * move).mean(0),
        W @ (0.3 * move**2).mean(0),
    ]
    np.testing.assert_allclose(ds["power_order"].values[:3], expected, rtol=1e-11)
    assert np.abs(ds["power_order"].values[3:]).max() < 1e-11
    assert abs(float(ds["remainder"])) < 1e-13
    assert float(ds["ray_error"].values[2:].max()) < 1e-13


def test_chebyshev_polynomials_in_powers_of_eps():
    for k, row in enumerate(powers_of_eps(9)):
        expected = Chebyshev.basis(k, domain=[0, 1]).convert(kind=Polynomial).coef
        np.testing.assert_allclose(row[: k + 1], expected, rtol=1e-10)
        assert not row[k + 1 :].any()


def test_one_case_chunks_and_order_do_not_matter(monkeypatch):
    op, cases = expand(ray_model(2), TRAIN), ray_cases()
    whole = ray(op, cases, 5, SAMPLES)
    for i, case in enumerate(cases):
        alone = ray(op, [case], 5, SAMPLES)
        for name in ("ray_order", "model_course"):
            np.testing.assert_allclose(alone[name].values[:, 0], whole[name].values[:, i], rtol=0, atol=1e-13)
    monkeypatch.setattr("oplens.explanation.training.BATCH_BYTES", 1)
    np.testing.assert_allclose(
        ray(op, cases[::-1], 5, SAMPLES)["ray_order"].values[:, ::-1], whole["ray_order"], atol=1e-13
    )


def test_labels_and_words_travel():
    op = expand(ray_model(2), TRAIN)
    ds = ray(op, ray_cases(), 3, y=["x", "y", "z"])
    assert ds["label"].values.tolist() == ["x", "y", "z"]
    assert ds["n_steps"].values.tolist() == [19, 11, 14]
    assert {ds[name].attrs["claim"] for name in ("ray_order", "remainder", "expansion_course", "power_order")} == {
        "truncated"
    }
    assert ds["ray_error"].attrs["claim"] == "measured"
    assert ds["target"].attrs["claim"] == ds["model_course"].attrs["claim"] == "exact"


OP = expand(ray_model(2), TRAIN)
REFUSED = {
    "order 0": ({"order": 0}, r"ray\(order=0\): give a whole number from 1 to 64"),
    "order 65": ({"order": 65}, "order=65"),
    "order True": ({"order": True}, "order=True"),
    "order 2.5": ({"order": 2.5}, "order=2.5"),
    "three channels": ({"baseline": [0.0, 1.0, 2.0]}, r"for 2 channels; got shape \(3,\)"),
    "a scalar": ({"baseline": 0.0}, r"got shape \(\)"),
    "too short": ({"baseline": np.zeros((2, 18))}, "18 steps, but the longest case has 19"),
    "transposed": ({"baseline": np.zeros((19, 2))}, r"got shape \(19, 2\)"),
    "cases": ({"baseline": np.zeros((3, 2, 19))}, r"got shape \(3, 2, 19\)"),
    "NaN": ({"baseline": [0.0, math.nan]}, "NaN or infinite"),
    "a word": ({"baseline": "mean"}, "got 'mean'"),
    "complex": ({"baseline": [1j, 0.0]}, "for 2 channels; got"),
    "ragged": ({"baseline": [[0.0, 1.0], [0.0]]}, "rows of unequal length"),
    "far away": ({"baseline": [1e200, 0.0]}, "leaves double precision"),
    "a target": ({"target": "x"}, r"ray\(target='x'\)"),
    "labels": ({"y": ["x"]}, "one label for each of the 3 cases"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_gets_a_sentence(name):
    values, words = REFUSED[name]
    with pytest.raises(ArgumentError, match=words):
        ray(OP, ray_cases(), **values)


def test_cases_that_cannot_work_get_a_sentence(monkeypatch):
    with pytest.raises(DataError, match="NaN"):
        ray(OP, np.full((1, 2, 5), math.nan))
    with pytest.raises(ArgumentError, match="ray: the model has 2 input channels"):
        ray(OP, np.zeros((1, 3, 5)))
    single = expand(S4D(S4DConfig(1, 1, 2, 4)), np.zeros((1, 1, 5)))
    with pytest.raises(ArgumentError, match="one class has nothing to decide"):
        ray(single, np.zeros((1, 1, 5)))
    monkeypatch.setattr("oplens.explanation.training.TRAINING_LIMIT", 0)
    large = expand(ray_model(2), TRAIN)
    with pytest.raises(ArgumentError, match="channel means are not known; pass baseline="):
        ray(large, ray_cases())
    assert float(abs(ray(large, ray_cases(), baseline="zero")["remainder"]).max()) > 0


def test_degree_8_on_the_golden_stack(shared_data):
    folder = shared_data / "golden" / "s4d_reference"
    with np.load(folder / "scp1_2layer_stride2_expected.npz") as expected:
        X = expected["inputs"].astype(np.float64).transpose(0, 2, 1)
    op = expand(load_checkpoint(folder / "scp1_2layer_stride2.pth", preprocessing="none"), X)
    zero, mean = ray(op, X, 8, "zero"), ray(op, X, 8)
    assert float(abs(zero["remainder"]).median()) < 2e-4  # measured 1.1e-4; largest miss along the ray: median 3.6e-4
    assert float(zero["ray_error"].isel(order=8).median()) < 5e-4
    assert (
        float(mean["ray_error"].isel(order=8).median()) < 1e-5
    )  # measured 3.4e-6: the training mean is nearer to the cases
    assert float(abs(zero["completeness_residual"]).max()) < 1e-12


def test_remainder_knows_when_a_term_is_wrong(monkeypatch):
    """Terms, remainder and target come by three routes: a term off by 1e-6 of its scale shows."""
    right = module._terms
    monkeypatch.setattr(module, "_terms", lambda *a: right(*a) * (1 + 1e-6))
    ds = ray(OP, ray_cases(), 6)
    assert float((abs(ds["completeness_residual"]) / ds["sum_abs_terms"]).max()) > 1e-7


def test_no_data_become_zeros_where_a_mean_is_subtracted_after_the_offset():
    preprocessing = Preprocessing((0.3, -0.2), (1.5, 0.8), remove_offset=True)
    model = S4D(S4DConfig(2, 2, 3, 6, preprocessing=preprocessing))
    with pytest.raises(ArgumentError, match=r"no data become zeros.*give one value per channel"):
        ray(expand(model, TRAIN), TRAIN, baseline="zero")
