"""TwoNN and MLE against scikit-dimension and loops; repeats, samples, coverage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gamma

from oplens.errors import ArgumentError, DataError
from oplens.measurement import PointSample, mle_dimension, two_nn
from oplens.measurement.neighbours import merged


def sphere(n, d, seed):
    x = np.random.default_rng(seed).standard_normal((n, d + 1))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("d", [1, 3])
def test_against_scikit_dimension(d):
    skdim = pytest.importorskip("skdim")
    x = sphere(300, d, d) @ np.random.default_rng(9).standard_normal((d + 1, d + 4))
    assert float(two_nn(x).dimension) == pytest.approx(skdim.id.TwoNN().fit(x).dimension_, rel=1e-8)
    theirs = skdim.id.MLE().fit_transform_pw(x, n_neighbors=12)
    harmonic = 1 / np.mean(1 / theirs)
    assert float(mle_dimension(x, neighbours=12).dimension) == pytest.approx(harmonic, rel=1e-8)


def test_against_loops():
    x = sphere(40, 2, 0)
    logs, inverses, trios = [], [], []
    for i in range(40):
        near = sorted(range(40), key=lambda j: np.linalg.norm(x[i] - x[j]))
        trios.append(set(near[:3]))
        r = sorted(float(np.sqrt(((x[i] - x[j]) ** 2).sum())) for j in range(40) if j != i)
        logs.append(np.log(r[1] / r[0]))
        inverses.append(sum(np.log(r[4] / r[j]) for j in range(4)) / 4)
    ds = two_nn(x)
    assert float(ds.dimension_likelihood) == pytest.approx(39 / sum(logs), rel=1e-10)
    kept = np.sort(logs)[:36]
    heights = [-np.log(1 - k / 40) for k in range(1, 37)]
    assert float(ds.dimension) == pytest.approx(np.dot(kept, heights) / np.dot(kept, kept), rel=1e-10)
    e = np.array(logs) - np.mean(logs)
    spread = sum(e[i] * e[j] for i in range(40) for j in range(40) if trios[i] & trios[j])
    effective = min(40, sum(logs) ** 2 / max(spread, (e**2).sum()))
    ends = gamma.ppf([0.025, 0.975], effective) / effective * 40 / sum(logs)
    assert [float(ds.dimension_low), float(ds.dimension_high)] == pytest.approx(ends.tolist(), rel=1e-10)
    assert float(mle_dimension(x, neighbours=5).dimension) == pytest.approx(40 / sum(inverses), rel=1e-10)


@pytest.mark.parametrize("measure", [two_nn, mle_dimension])
def test_repeats_are_taken_out_and_counted(measure):
    x = sphere(300, 2, 1)
    repeated = np.concatenate([x, x[:75], -0.0 * x[:1]])  # 20 % repeats, and a zero in either sign
    repeated = np.concatenate([repeated, 0.0 * x[:1]])
    ds, clean = measure(repeated), measure(np.concatenate([x, 0 * x[:1]]))
    assert int(ds.n_repeated) == 76
    assert int(ds.n_points) == 301
    assert float(ds.dimension) == pytest.approx(float(clean.dimension), rel=1e-12)
    assert 1.7 < float(ds.dimension) < 2.4
    assert ds.dimension.claim == "fitted"


@pytest.mark.parametrize("measure", [two_nn, mle_dimension])
@pytest.mark.parametrize(("dtype", "noise"), [(np.float64, 1e-15), (np.float64, 0.0), (np.float32, 4e-7)])
def test_copies_that_differ_by_rounding_are_taken_out(measure, dtype, noise):
    """Of points whose norms differ a thousandfold, so that no rounding is common to all; taken as points, copies would give nearly 0."""
    rng = np.random.default_rng(3)
    clean = (sphere(300, 2, 1) * 10.0 ** rng.uniform(-1.5, 1.5, (300, 1))).astype(dtype)
    chosen = clean[rng.integers(0, 300, 200)]
    copies = (chosen * (1 + noise * rng.standard_normal(chosen.shape))).astype(dtype)
    ds, expected = measure(np.concatenate([clean, copies])), measure(clean)
    assert (int(ds.n_repeated), int(ds.n_points)) == (200, 300)
    assert int(expected.n_repeated) == 0
    for name in expected:
        if name != "n_repeated":
            assert float(ds[name]) == float(expected[name]), name
    if noise:
        trusted = measure(np.concatenate([clean, copies]).astype(float), spacing=0)
        assert float(trusted.dimension) < 0.3 * float(ds.dimension)
        given = measure(np.concatenate([clean, copies]).astype(float), spacing=float(np.finfo(dtype).eps))
        assert float(given.dimension) == float(ds.dimension)


def test_repeats_are_chains_within_rounding_and_the_first_stays():
    x = np.array([[2.0, 0], [1.0, 0], [1 + 1e-13, 0], [1 + 3e-13, 0], [1 + 1e-12, 0], [1e-20, 0], [2e-20, 0]])
    assert merged(x, 2.2e-16)[:, 0].tolist() == [2.0, 1.0, 1 + 1e-12, 1e-20, 2e-20]
    assert len(merged(np.concatenate([x, x[:2]]), 0.0)) == 7
    assert len(merged(x[:4], 1.2e-7)) == 2
    assert len(merged(np.array([[1.0], [1.002]]), 9.8e-4)) == 1  # half precision


def test_dimensions_do_not_depend_on_the_scale():
    x = sphere(60, 2, 5)
    for measure in (two_nn, mle_dimension):
        for scale in (1e-200, 1e200):
            assert float(measure(x * scale).dimension) == pytest.approx(float(measure(x).dimension), rel=1e-10)


def test_the_interval_covers():
    """On flat tori, where there is no boundary; ratios of neighbours taken as independent would cover 80 %, and fail here."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(120):
        angles = rng.uniform(0, 2 * np.pi, (300, 2))
        ds = two_nn(np.concatenate([np.cos(angles), np.sin(angles)], axis=1), level=0.9)
        hits += float(ds.dimension_low) <= 2 <= float(ds.dimension_high)
    assert abs(hits - 0.88 * 120) < 2 * np.sqrt(120 * 0.88 * 0.12)  # 0.87 to 0.90 in long runs


def test_padding_and_far_origins_do_not_matter():
    x = sphere(60, 2, 4)
    batch = np.full((2, 40, 3), np.nan)
    batch[:, :30] = x.reshape(2, 30, 3)
    mask = np.zeros((2, 40), dtype=bool)
    mask[:, :30] = True
    for measure in (two_nn, mle_dimension):
        assert float(measure(batch, mask).dimension) == pytest.approx(float(measure(x).dimension), rel=1e-12)
        assert float(measure(x + 1000).dimension) == pytest.approx(float(measure(x).dimension), rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 12), st.integers(0, 99))
def test_a_sample_does_not_depend_on_the_batches(sizes, capacity, seed):
    stream = np.arange(float(sum(sizes)))[:, None]
    whole, parts, start = PointSample(capacity, seed).add(stream), PointSample(capacity, seed), 0
    for size in sizes:
        parts, start = parts.add(stream[start : start + size]), start + size
    np.testing.assert_array_equal(parts.x, whole.x)
    assert parts.seen == whole.seen == len(stream)
    assert len(whole.x) == min(capacity, len(stream))


def test_a_sample_is_uniform():
    counts = np.zeros(10)
    for seed in range(2000):
        sample = PointSample(3, seed).add(np.arange(4.0)[:, None]).add(np.arange(4.0, 10.0)[:, None])
        counts[sample.x[:, 0].astype(int)] += 1
    assert (np.abs(counts - 600) < 4 * np.sqrt(2000 * 0.3 * 0.7)).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: two_nn(np.ones((9, 2))), DataError, "1 different points among 9"),
        (lambda: mle_dimension(np.ones((9, 2)) * np.arange(9)[:, None]), DataError, "fewer neighbours"),
        (lambda: two_nn(np.eye(5)), DataError, "grid"),
        (lambda: mle_dimension(np.eye(9), neighbours=3), DataError, "equally far"),
        (lambda: two_nn(sphere(9, 1, 0), discard=1.0), ArgumentError, "discard"),
        (lambda: two_nn(sphere(9, 1, 0), level=95), ArgumentError, "between 0 and 1"),
        (lambda: mle_dimension(sphere(9, 1, 0), neighbours=2), ArgumentError, "at least 3"),
        (lambda: two_nn(np.append(np.arange(6.0) * 1e-200, 1)[:, None], spacing=0), DataError, "underflow"),
        (lambda: two_nn(sphere(9, 1, 0), spacing=-1e-7), ArgumentError, "relative spacing"),
        (lambda: mle_dimension(sphere(9, 1, 0), spacing=True), ArgumentError, "relative spacing"),
        (lambda: PointSample(0), ArgumentError, "at least 1"),
        (lambda: PointSample(3).add(np.ones((2, 2))).add(np.ones((2, 3))), ArgumentError, "same place"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()
