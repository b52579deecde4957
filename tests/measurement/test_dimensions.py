"""Linear dimensions against dense definitions; unbiasedness by enumerating every sample; batches, padding and rotations."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.errors import ArgumentError, DataError
from oplens.measurement import PointCloud, d_int, participation_ratio
from oplens.measurement.moments import PairMoments


def cut(points, sizes, rng):
    """The same points as batches of padded sequences, NaN and garbage in the padding."""
    start = 0
    for size in sizes:
        part, start = points[start : start + size], start + size
        length = size + int(rng.integers(0, 3))
        batch = np.full((1, length, points.shape[1]), np.nan)
        mask = np.zeros((1, length), dtype=int)
        places = np.sort(rng.permutation(length)[:size])
        batch[0, places], mask[0, places] = part, 1
        yield batch, mask


def streamed(points, sizes, rng):
    parts = [PointCloud.of(*pair) for pair in cut(points, sizes, rng)]
    order = rng.permutation(len(parts))
    total = parts[order[0]]
    for k in order[1:]:
        total = total + parts[k]
    return total


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=3, max_size=6), st.integers(1, 5), st.integers(0, 10**6))
def test_batches_of_any_size_and_order_give_the_same_numbers(sizes, d, seed):
    rng = np.random.default_rng(seed)
    n = sum(sizes)
    points = rng.standard_normal((n, d)) * rng.uniform(0.1, 3, d) + 10 * rng.standard_normal(d)
    if n < 4:
        with pytest.raises(DataError, match="at least 4"):
            streamed(points, sizes, rng).dimensions()
        return
    whole, parts = PointCloud.of(points).dimensions(), streamed(points, sizes, rng).dimensions()
    square = PointCloud.of(points).moments.unbiased_cross("")
    for name in whole:
        if name == "participation_ratio_corrected" and not square > 1e-2:
            continue  # ill-conditioned: a quotient by an estimate near 0
        assert float(parts[name]) == pytest.approx(float(whole[name]), rel=1e-7, nan_ok=True), name
    assert int(parts.n_points) == n


def test_definitions_on_the_dense_matrix():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 6)) @ np.diag([5, 3, 1, 0.1, 1e-5, 1e-9]) + 2
    ds = PointCloud.of(X).dimensions()
    C = np.cov(X.T)
    centred = X - X.mean(0)
    assert float(ds.participation_ratio) == pytest.approx(np.trace(C) ** 2 / np.trace(C @ C), rel=1e-12)
    assert float(ds.d_int) == pytest.approx((np.linalg.norm(X, "nuc") / np.linalg.norm(X)) ** 2, rel=1e-12)
    assert float(ds.d_int_centred) == pytest.approx(
        (np.linalg.norm(centred, "nuc") / np.linalg.norm(centred)) ** 2, rel=1e-12
    )
    assert d_int(X) == float(ds.d_int)
    assert participation_ratio(X, corrected=False) == float(ds.participation_ratio)
    assert float(ds.numerical_rank) == 6
    assert {v.claim for v in ds.values()} == {"measured"}


def test_small_singular_values_survive_streaming():
    """From a scatter matrix the 1e-9 direction would be lost in rounding; a triangular factor keeps it."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 4)) @ np.diag([1, 1e-3, 1e-6, 1e-10])
    cloud = sum((PointCloud.of(X[k : k + 7]) for k in range(7, 60, 7)), PointCloud.of(X[:7]))
    np.testing.assert_allclose(cloud.singular_values(False), np.linalg.svd(X, compute_uv=False), rtol=1e-5)
    np.testing.assert_allclose(cloud.singular_values(True), np.linalg.svd(X - X.mean(0), compute_uv=False), rtol=1e-5)


def test_a_square_gaussian_cloud_has_two_different_dimensions():
    X = np.random.default_rng(0).standard_normal((400, 400))
    assert d_int(X) / 400 == pytest.approx((8 / (3 * np.pi)) ** 2, abs=4e-3)  # quarter-circle law: 0.7205
    assert participation_ratio(X, corrected=False) / 400 == pytest.approx(0.5, abs=5e-3)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_rotation_and_shift_leave_the_centred_dimensions(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((12, 4)) * [3, 2, 1, 0.5]
    q, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    one, two = PointCloud.of(X).dimensions(), PointCloud.of(7 * X @ q + rng.standard_normal(4)).dimensions()
    for name in set(one) - {"d_int"}:
        assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-8), name
    assert d_int(7 * X @ q) == pytest.approx(d_int(X), rel=1e-10)


VALUES_X = np.array([[0.0, 1.0], [2.0, -1.0], [0.5, 3.0]])
VALUES_Y = np.array([[1.0], [0.0], [-4.0]])
CHANCES = np.array([0.5, 0.2, 0.3])


@pytest.mark.parametrize("n", [4, 5])
@pytest.mark.parametrize("Y", [VALUES_X, VALUES_Y], ids=["x with x", "x with y"])
def test_both_traces_are_unbiased_for_a_skewed_distribution_by_enumeration(n, Y):
    """Expectation over all 3^n samples of three unequal atoms, exactly; a Gaussian correction would fail."""
    X = VALUES_X
    mx, my = CHANCES @ X, CHANCES @ Y
    cross = (X - mx).T @ np.diag(CHANCES) @ (Y - my)
    cx, cy = ((v - m).T @ np.diag(CHANCES) @ (v - m) for v, m in ((X, mx), (Y, my)))
    squares = products = plain = 0.0
    for sample in itertools.product(range(3), repeat=n):
        index = list(sample)
        chance = float(np.prod(CHANCES[index]))
        moments = PairMoments.of(X[index], Y[index])
        squares += chance * moments.unbiased_cross("test")
        products += chance * moments.unbiased_trace_product("test")
        plain += chance * float((moments.cross**2).sum()) / (n - 1) ** 2
    assert squares == pytest.approx(float((cross**2).sum()), rel=1e-10)
    assert products == pytest.approx(np.trace(cx) * np.trace(cy), rel=1e-10)
    assert abs(plain / float((cross**2).sum()) - 1) > 0.2  # what there was to correct


def test_the_corrected_ratio_is_right_where_the_plain_one_is_far_off():
    """d = 30, skewed coordinates, 20 points; the true ratio from the population's covariance."""
    rng = np.random.default_rng(5)
    scale = np.linspace(0.5, 2, 30)
    truth = (scale**2).sum() ** 2 / (scale**4).sum()
    found = np.array(
        [
            PointCloud.of((rng.exponential(size=(20, 30)) - 1) * scale).dimensions().participation_ratio_corrected
            for _ in range(150)
        ]
    )
    plain = np.array([participation_ratio(rng.exponential(size=(20, 30)) * scale, corrected=False) for _ in range(50)])
    assert abs(np.median(found) / truth - 1) < 0.1
    assert plain.mean() / truth < 0.6


def test_fourth_moments_joined_equal_those_of_the_whole():
    rng = np.random.default_rng(2)
    X, Y = rng.standard_normal((9, 3)) + 100, rng.standard_normal((9, 2)) - 50
    whole, joined = (
        PairMoments.of(X, Y),
        PairMoments.of(X[:4], Y[:4]) + PairMoments.of(X[4:5], Y[4:5]) + PairMoments.of(X[5:], Y[5:]),
    )
    x, y = X - X.mean(0), Y - Y.mean(0)
    a, b = (x**2).sum(1), (y**2).sum(1)
    for one in (whole, joined):
        np.testing.assert_allclose(one.cross, x.T @ y, rtol=1e-10)
        np.testing.assert_allclose(one.third_y, (a[:, None] * y).sum(0), rtol=1e-9)
        np.testing.assert_allclose(one.third_x, (b[:, None] * x).sum(0), rtol=1e-9)
        assert one.fourth == pytest.approx((a * b).sum(), rel=1e-10)
        assert (one.trace_x, one.trace_y) == pytest.approx((a.sum(), b.sum()), rel=1e-10)


@pytest.mark.parametrize("value", [0.3, -0.1, 1e6 / 3, 7e-9, float(np.float32(0.3)), float(np.float32(1e5 / 7))])
@pytest.mark.parametrize("count", [4, 5, 68, 333, 1000, 20_011])
def test_constant_clouds_are_refused_however_their_mean_rounds(value, count):
    """68 times 0.3, added up and divided, misses 0.3 by 7 units in the last place; that is no dimension."""
    x = np.full((count, 3), value) * [1.0, -0.5, 0.7]
    parts = np.split(x, [1, count // 3])
    joined = PointCloud.of(parts[2]) + PointCloud.of(parts[0]) + PointCloud.of(parts[1])
    for cloud in (PointCloud.of(x), joined):
        assert cloud.moments.trace_x == 0
        with pytest.raises(DataError, match="equal up to rounding"):
            cloud.dimensions()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_clouds_that_differ_by_rounding_alone_are_one_point_and_others_are_not(dtype):
    rng, spacing = np.random.default_rng(0), float(np.finfo(dtype).eps)
    steps = rng.integers(-2, 3, (500, 4))
    x = (0.3 * (1 + spacing * steps)).astype(dtype)
    assert len(np.unique(x, axis=0)) > 50
    with pytest.raises(DataError, match="equal up to rounding"):
        PointCloud.of(x).dimensions()
    with pytest.raises(DataError, match="equal up to rounding"):
        PointCloud.of(x.astype(float), spacing=spacing).dimensions()
    wider = (0.3 * (1 + 20 * spacing * steps)).astype(dtype)
    assert 3 < float(PointCloud.of(wider).dimensions().participation_ratio) <= 4


def test_the_rank_counts_no_rounding_of_the_mean_or_the_dtype():
    rng = np.random.default_rng(4)
    plane = rng.standard_normal((300, 2)) @ rng.standard_normal((2, 6))
    for far in (0.0, 1e6):
        cloud = PointCloud.of(plane[:100] + far) + PointCloud.of(plane[100:] + far)
        assert float(cloud.dimensions().numerical_rank) == 2, far
    single = plane.astype(np.float32)
    for cloud in (PointCloud.of(single), PointCloud.of(single.astype(float), spacing=1.2e-7)):
        assert float(cloud.dimensions().numerical_rank) == 2
    assert float(PointCloud.of(single.astype(float)).dimensions().numerical_rank) == 6


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: PointCloud.of(np.ones((5, 2))).dimensions(), DataError, "equal"),
        (lambda: PointCloud.of(np.full((7, 2), 0.1)).dimensions(), DataError, "equal"),
        (lambda: d_int(np.zeros((5, 2))), DataError, "all are 0"),
        (lambda: d_int([[np.nan, 1.0]]), DataError, "outside the padding"),
        (lambda: d_int(np.ones(3)), ArgumentError, "n_features"),
        (lambda: d_int(np.ones((3, 0))), ArgumentError, "no features"),
        (lambda: d_int(np.ones((2, 3, 4)), mask=np.ones((3, 2))), ArgumentError, "expected the leading axes"),
        (lambda: d_int(np.ones((1, 2, 4)), mask=[[0.0, -1e9]]), ArgumentError, "additive"),
        (lambda: participation_ratio(np.ones((5, 2)), corrected="yes"), ArgumentError, "True or False"),
        (lambda: PointCloud.of(np.ones((5, 2))) + PointCloud.of(np.ones((5, 3))), ArgumentError, "same place"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()
