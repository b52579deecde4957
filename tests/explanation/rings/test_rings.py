"""Rings of real models against dense matrices and plain loops: states, pre-activations, waves, speeds, what is refused."""

import math

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from oplens import S4D, S4DConfig, expand
from oplens.data import noisy_sinusoids
from oplens.errors import ArgumentError
from oplens.explanation.rings.layer_rings import past
from oplens.explanation.rings.rings import ring
from oplens.models import Preprocessing
from oplens.operators import ring as rings

P, LENGTHS = 4, (37, 21, 77)  # one longer than a chunk of states
MODELS = {
    "plain": {},
    "bilinear": {"discretisation": "bilinear"},
    "inv": {"initialisation": "inv"},
    "reference": {"architecture": "reference", "n_layers": 2},
    "prenorm": {"architecture": "reference", "n_layers": 2, "prenorm": True},
    "coupled": {"coupling": 2, "phase_delay": 0.003},
    "delayed": {"phase_delay": 0.004},
}


def trained(d_state=2 * P, **options):
    """An operator whose poles have moved from where they started, some to negative frequencies or past each other, and three cases of unequal length."""
    torch.manual_seed(3)
    settings = {"d_input": 2, "n_classes": 2, "d_model": 5, "dt_min": 0.02, "dt_max": 0.5, **options}
    settings["preprocessing"] = Preprocessing((0.3, -0.2), (1.5, 0.7))
    model = S4D(S4DConfig(d_state=d_state, **settings))
    with torch.no_grad():
        for layer in model.s4_layers:
            if "coupling" in options:
                layer.kernel.coupling += 0.2 * torch.randn_like(layer.kernel.coupling)
            else:
                layer.kernel.log_A_real += 0.3 * torch.randn_like(layer.kernel.log_A_real)
                layer.kernel.A_imag += 0.8 * torch.randn_like(layer.kernel.A_imag)
                layer.kernel.A_imag[1] *= -1
                layer.kernel.A_imag[3] = layer.kernel.A_imag[3].flip(0)
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(2, n)) + 0.5 for n in LENGTHS]
    return expand(model, X), X


def basis(n_modes):
    """F[:, :P] by its formula."""
    N = 2 * n_modes
    return np.array([[np.exp(2j * np.pi * (k + 0.5) * j / N) for k in range(n_modes)] for j in range(N)]) / math.sqrt(N)


def at_wavenumbers(ds, h, values):
    """Values (P,) of stored modes of the h-th feature, at wavenumbers, as the result says where they stand."""
    order, turned = ds["wavenumber_mode"].values[h], ds["conjugated"].values[h].astype(bool)
    return np.where(turned, values[order].conj(), values[order])


def poles_of(op, layer=0):
    return op.model.layer(layer).poles().numpy()


@pytest.mark.parametrize("ordering", ["frequency", "stored"])
@pytest.mark.parametrize("name", MODELS)
def test_a_dense_recurrence_on_the_sites_gives_the_picture_and_the_model(name, ordering):
    """r(t) = expm(W dt) r(t-1) + beta u(t) with the dense W of the result's own coupling, and z = weights r + D u."""
    op, X = trained(**MODELS[name])
    layer, features = op.model.config.n_layers - 1, [4, 1]
    ds = ring(op, X, cases=(2, 1), features=features, layer=layer, ordering=ordering)
    assert (ds["case"].values.tolist(), ds["feature"].values.tolist()) == ([2, 1], features)
    N, F, d = 2 * P, basis(P), ds["displacement"].values
    for h, feature in enumerate(features):
        weights = dict(zip(d.tolist(), ds["coupling"].values[h], strict=True))
        column = [weights[j] if j < P else -weights[j - N] for j in range(N)]
        W = np.array([[column[j - k] if j >= k else -column[j - k + N] for k in range(N)] for j in range(N)])
        G = expm(W * float(ds["dt"][h]))
        for row, case in enumerate((2, 1)):
            trace = op.model.trace(torch.from_numpy(X[case].T.copy())[None], mode="step").layers[layer]
            u, z = trace.u[0, :, feature].numpy(), trace.z[0, :, feature].numpy()
            r = np.zeros(N)
            for t in range(LENGTHS[case]):
                r = G @ r + ds["injection"].values[h] * u[t]
                half = F @ (F.conj().T @ r)
                np.testing.assert_allclose(2 * half.real, r, atol=1e-10 * max(1, np.abs(r).max()))
                np.testing.assert_allclose(ds["envelope"].values[row, h, :, t], np.abs(half), atol=1e-10)
                own = ds["readout"].values[h] @ r + op.model.layer(layer).D[feature].item() * u[t]
                assert abs(own - z[t]) < 1e-10 * max(1, np.abs(z).max())
            np.testing.assert_allclose(ds["drive"].values[row, h, : LENGTHS[case]], u, atol=1e-12)
    for row, case in enumerate((2, 1)):
        assert np.isnan(ds["envelope"].values[row, ..., LENGTHS[case] :]).all()
        assert np.isnan(ds["drive"].values[row, :, LENGTHS[case] :]).all()
    assert float(ds["ring_residual"].max()) < 1e-12


def test_what_a_ring_misses_of_the_model_is_said(monkeypatch):
    """The comparison is a real one: with other weights on the sites it reports by how much they miss."""
    op, X = trained()
    monkeypatch.setattr(
        "oplens.explanation.rings.layer_rings.site_weights", lambda R, C: 1.25 * rings.site_weights(R, C)
    )
    ds = ring(op, X, features=[2])
    z = op.model.trace(torch.from_numpy(X[0].T.copy())[None]).layers[0].z[0, :, 2].numpy()
    waves = z - op.model.layer(0).D[2].item() * ds["drive"].values[0, 0]
    assert ds["ring_residual"].item() == pytest.approx(np.abs(0.25 * waves).max() / np.abs(z).max(), rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_waves_before_and_after_training_are_those_of_the_steps(name):
    """omega = angle(a) / dt and sigma = -log abs(a) / dt of every mode, unwrapped; before training a start from the formulas."""
    op, X = trained(**MODELS[name])
    config, features = op.model.config, [0, 1, 3]
    ds = ring(op, X, features=features)
    n, phase = np.arange(P), np.exp(-1j * (config.phase_delay or 0))
    start = {"lin": -0.5 + 1j * np.pi * n, "inv": -0.5 + 1j * 2 * P / np.pi * (2 * P / (2 * n + 1) - 1)}[
        config.initialisation
    ]
    if name == "coupled":  # what is left of S4D-Lin when only neighbours up to two sites away are kept
        F = np.hstack((basis(P), basis(P).conj()[:, ::-1]))
        W = (F @ np.diag([*start, *start.conj()[::-1]]) @ F.conj().T).real
        near = np.minimum((i := np.abs(np.subtract.outer(range(2 * P), range(2 * P)))), 2 * P - i) <= 2
        start = np.diag(F.conj().T @ (W * near) @ F)[:P]
    kappa = 2 * np.pi / (2 * P) * (n + 0.5)
    for suffix, given in (("", poles_of(op)), ("_before", np.tile(start * phase, (5, 1)))):
        for h, feature in enumerate(features):
            dt, rates = float(ds["dt"][h]), given[feature]
            if name == "bilinear":
                rates = np.log((1 + rates * dt / 2) / (1 - rates * dt / 2)) / dt
            if config.coupling is None:
                rates = rates[np.argsort(np.abs(rates.imag), kind="stable")]
                rates = rates.real + 1j * np.abs(rates.imag)
            found = {
                key: ds[key + suffix].values[h] for key in ("frequency", "decay", "phase_velocity", "group_velocity")
            }
            np.testing.assert_allclose(found["frequency"], rates.imag, atol=1e-6)
            np.testing.assert_allclose(found["decay"], -rates.real, atol=1e-6)
            np.testing.assert_allclose(found["phase_velocity"], -rates.imag / kappa, atol=1e-6)
            np.testing.assert_allclose(found["group_velocity"][:-1], -np.diff(rates.imag) * P / np.pi, atol=1e-5)
            assert np.isnan(found["group_velocity"][-1])
        if suffix == "":
            moved = given
            continue
        if name == "bilinear":
            continue  # both sides mapped as above; what follows compares poles
        for h, feature in enumerate(features):
            now, then = (at_wavenumbers(ds, h, poles[feature]) for poles in (moved, given))
            if config.coupling is None:
                then = then.real + 1j * np.abs(then.imag)
            np.testing.assert_allclose(ds["frequency_change"].values[h], (now - then).imag, atol=1e-6)
            np.testing.assert_allclose(ds["decay_ratio"].values[h], now.real / then.real, rtol=1e-5)
    ordered = [at_wavenumbers(ds, h, poles_of(op)[f]) for h, f in enumerate(features)]
    if name != "bilinear":
        np.testing.assert_allclose(ds["frequency"].values, np.imag(ordered), atol=1e-12)
        np.testing.assert_array_equal(ds["aliased"].values, np.abs(np.imag(ordered)) * ds["dt"].values[:, None] > np.pi)
    else:
        assert not ds["aliased"].values.any()
    np.testing.assert_allclose(ds["kappa"].values, kappa, atol=1e-15)
    np.testing.assert_allclose(ds["kappa_between"].values[:-1], (kappa[1:] + kappa[:-1]) / 2, atol=1e-15)


def test_limits_of_a_further_delay_are_those_of_the_poles():
    op, X = trained(phase_delay=0.004)
    ds = ring(op, X, features=[0, 2])
    for h, feature in enumerate((0, 2)):
        A = poles_of(op)[feature]
        both = np.concatenate(
            (A, A.conj())
        )  # a phase turns lambda and its conjugate opposite ways; the stored ones count
        assert float(ds["largest_rate"][h]) == A.real.max() == both.real.max()
        for name, sign in (("delay_low", -1), ("delay_high", 1)):
            limit = float(ds[name][h])
            inside, outside = (np.real(np.exp(-1j * (limit - sign * gap)) * A).max() for gap in (1e-6, -1e-6))
            assert inside < 0 < outside
        assert float(ds["phase_delay"][h]) == op.model.layer(0).phase_delay()[feature].item() != 0


def test_the_speed_is_the_slope_of_the_frequencies_and_sites_hold_the_past_it_says():
    """At S4D-Lin an impulse, followed by a plain loop, is largest at each site when the map says; energy left is e^-2."""
    torch.manual_seed(0)
    model = S4D(S4DConfig(d_input=1, n_classes=2, d_model=2, d_state=32, dt_min=0.02, dt_max=0.05, sampling_rate=50.0))
    op = expand(model, np.random.default_rng(0).normal(size=(2, 1, 20)))
    ds = ring(op, np.ones((1, 1, 20)), features=[1])
    half, dt, F = 16, float(ds["dt"][0]), basis(16)
    assert ds["velocity"].item() == pytest.approx(-half * dt, rel=1e-6) == ds["velocity_before"].item()
    assert ds["revolution"].item() == pytest.approx(2 / dt / 50, rel=1e-6)
    assert ds["resolution"].item() == pytest.approx(1 / (half * dt) / 50, rel=1e-6)
    assert ds["energy_left"].item() == pytest.approx(math.exp(-2), rel=1e-6)
    expected = (-np.arange(32) % 32) / (half * dt) / 50
    np.testing.assert_allclose(ds["site_lag"].values[0], expected, rtol=1e-6, atol=1e-12)
    A, sizes = poles_of(op)[1], []
    s = (np.exp(A * dt) - 1) / A
    for _ in range(math.ceil(2 / dt)):
        sizes.append(np.abs(F @ s))
        s = np.exp(A * dt) * s
    peaks = np.argmax(sizes, axis=0) / 50
    np.testing.assert_allclose(ds["peak_lag"].values[0], peaks, atol=1e-12)
    inner = np.argsort(expected)[1:-1]
    assert ds["lag_miss"].item() == pytest.approx(np.abs(expected - peaks)[inner].max(), rel=1e-4)
    assert ds["lag_agreement"].item() == pytest.approx(np.corrcoef(expected[inner], peaks[inner])[0, 1], rel=1e-9)
    assert ds["lag_miss"].item() < 1.5 / 50


def test_outlying_frequencies_hardly_move_the_speed_and_measured_peaks_agree():
    """The fit on frequencies scattered as training does it (6 % of their distance) meets measured peaks; neighbours' medians do not."""
    rng = np.random.default_rng(5)
    n_modes = 32
    A = -0.5 + 1j * np.pi * (np.arange(n_modes) + rng.normal(0, 0.06, n_modes))
    R = rings.build_ring(torch.from_numpy(A[None]))
    dt = 0.002
    stepped = rings.Ring(R.rates * dt, R.inputs * dt, R.order, R.conjugated, R.ordering, "step")
    held = past(stepped)
    kappa = np.pi / n_modes * (np.arange(n_modes) + 0.5)
    slope = np.polynomial.Polynomial.fit(kappa, np.abs(A.imag) * dt, 1).convert().coef[1]
    assert held["velocity"].item() == pytest.approx(-slope, rel=1e-10)
    assert held["miss"].item() < 0.01 * held["revolution"].item()
    median = np.median(np.diff(np.abs(A.imag) * dt)) * n_modes / np.pi
    lag = (-np.arange(64) % 64) / median
    inner = np.argsort(lag)[1:-1]
    assert np.abs(lag - held["peak_lag"][0].numpy())[inner].max() > 2 * held["miss"].item()


def test_a_ring_that_turns_backwards_has_a_positive_speed():
    A = torch.from_numpy(-0.5 + 1j * np.pi * np.arange(8)[None, ::-1].copy())
    R = rings.build_ring(A, "stored")
    held = past(rings.Ring(R.rates * 0.05, R.inputs * 0.05, R.order, R.conjugated, R.ordering, "step"))
    assert held["velocity"].item() == pytest.approx(8 * 0.05, rel=1e-12)
    np.testing.assert_allclose(held["lag"][0], np.arange(16) / 0.4, rtol=1e-12)


def test_a_revolution_of_very_many_steps_is_not_followed():
    R = rings.build_ring(torch.from_numpy(-0.5 + 1j * np.pi * np.arange(3.0)[None]))
    held = past(rings.Ring(R.rates * 1e-4, R.inputs * 1e-4, R.order, R.conjugated, R.ordering, "step"))
    assert held["revolution"].item() == pytest.approx(20_000, rel=1e-12)
    assert held["peak_lag"].isnan().all()
    assert held["miss"].isnan().all()


@pytest.mark.parametrize(("options", "d_state"), [({"initialisation": "real"}, 8), ({}, 2)])
def test_where_nothing_travels_there_is_no_speed_and_still_a_picture(options, d_state):
    torch.manual_seed(0)
    model = S4D(S4DConfig(d_input=1, n_classes=2, d_model=3, d_state=d_state, **options))
    ds = ring(expand(model, np.random.default_rng(0).normal(size=(3, 1, 12))), np.ones((1, 1, 12)))
    for name in ("velocity", "velocity_before", "revolution", "resolution", "energy_left", "site_lag", "peak_lag"):
        assert np.isnan(ds[name].values).all(), name
    assert (ds["envelope"].values[..., -1] > 0).any()
    assert float(ds["ring_residual"].max()) < 1e-12


def test_every_nth_step_is_the_same_picture_with_fewer_steps():
    op, X = trained()
    whole, thin = (ring(op, X, cases=[0, 1], features=[3], every=every) for every in (1, 4))
    for name in ("envelope", "drive", "time"):
        np.testing.assert_array_equal(thin[name].values, whole[name].values[..., ::4])
    assert (thin.attrs["every"], whole.attrs["every"]) == (4, 1)
    np.testing.assert_array_equal(thin["ring_residual"].values, whole["ring_residual"].values)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_features_of_largest_share_are_shown_when_none_are_named(n_classes):
    """Plain architecture: the share of a ring is W_h mean_t Phi(z) (z - D u), by loops, toward the margin or each centred class."""
    op, X = trained(n_classes=n_classes)
    ds = ring(op, X, cases=[2, 0])
    weight = op.model.decoder.weight.numpy()
    rows = weight[1:] - weight[:1] if n_classes == 2 else weight - weight.mean(0)
    size = np.zeros(5)
    for case in (2, 0):
        layer = op.model.trace(torch.from_numpy(X[case].T.copy())[None]).layers[0]
        for h in range(5):
            u, z = layer.u[0, :, h].tolist(), layer.z[0, :, h].tolist()
            phi = [0.5 * math.erfc(-value / math.sqrt(2)) for value in z]
            ringing = [p * (v - op.model.layer(0).D[h].item() * w) for p, v, w in zip(phi, z, u, strict=True)]
            size[h] += np.abs(rows[:, h] * np.mean(ringing)).mean() / 2
    largest = np.argsort(-size)[:3]
    assert ds["feature"].values.tolist() == largest.tolist()
    np.testing.assert_allclose(ds["mean_share"].values, size[largest], rtol=1e-10)
    assert "3 features" in ds.attrs["rule"]
    assert "mean_share" not in ring(op, X, features=[0])


def test_coordinates_labels_and_words_travel_with_the_result():
    data = noisy_sinusoids(n_cases=6, n_timepoints=40, sampling_rate=64.0, seed=0)
    torch.manual_seed(0)
    config = S4DConfig(d_input=1, n_classes=2, d_model=4, d_state=8, classes=data.classes, sampling_rate=64.0)
    op = expand(S4D(config), data)
    ds = ring(op, data, cases=[4, 1])
    assert ds["label"].values.tolist() == data.y[[4, 1]].tolist()
    logits = op.model.trace(torch.from_numpy(data.X[[4, 1]]).transpose(1, 2)).logits
    assert ds["predicted"].values.tolist() == [data.classes[k] for k in logits.argmax(1).tolist()]
    np.testing.assert_allclose(ds["time"].values, np.arange(40) / 64)
    assert (ds["time"].attrs["units"], ds["revolution"].attrs["units"]) == ("s", "s")
    for name, variable in ds.data_vars.items():
        assert variable.attrs["claim"] in ("exact", "conditional", "measured"), name
        assert variable.attrs["units"], name
        assert variable.attrs["long_name"], name
    assert ds.attrs["before"].startswith("S4D-Lin")
    assert (ds.attrs["ordering"], ds.attrs["layer"]) == ("frequency", 0)
    coupled, X = trained(coupling=2)
    told = ring(coupled, X, features=[0])
    assert told.attrs["ordering"] == "stored"  # as its weights were trained
    assert "coupling cut at 2 sites" in told.attrs["before"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"cases": []}, r"cases=\[\]\): give a non-empty sequence"),
        ({"cases": [0.5]}, "whole numbers"),
        ({"cases": "1"}, "whole numbers"),
        ({"cases": [True]}, "whole numbers"),
        ({"cases": [0, 3]}, r"there are cases 0 to 2"),
        ({"cases": -1}, r"there are cases 0 to 2"),
        ({"features": [5]}, r"a layer has features 0 to 4"),
        ({"features": [2, 2]}, "named twice"),
        ({"layer": 1}, "has layers 0 to 0"),
        ({"layer": True}, "has layers 0 to 0"),
        ({"ordering": "size"}, "frequency, stored"),
        ({"ordering": np.zeros(2)}, "frequency, stored"),
        ({"every": 0}, "at least 1"),
        ({"every": 1.5}, "at least 1"),
        ({"memory_limit": 1000}, r"keep every n-th step with every=n"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments, words):
    op, X = trained()
    with pytest.raises(ArgumentError, match=words):
        ring(op, X, **arguments)


def test_other_channels_and_a_model_of_one_class_are_refused():
    op, _ = trained()
    with pytest.raises(ArgumentError, match="the model has 2 input channels"):
        ring(op, np.ones((1, 3, 8)))
    alone = expand(S4D(S4DConfig(d_input=1, n_classes=1, d_model=2, d_state=4)), np.ones((2, 1, 9)))
    with pytest.raises(ArgumentError, match="decides nothing, so no feature matters most"):
        ring(alone, np.ones((1, 1, 9)))
    assert ring(alone, np.ones((1, 1, 9)), features=[1])["feature"].item() == 1
