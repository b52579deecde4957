"""CKA against Gram matrices written out, its invariances, and what its debiased form is for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.errors import ArgumentError, DataError
from oplens.measurement import CKATotals, linear_cka


def hsic_biased(K, L):
    n = len(K)
    H = np.eye(n) - 1 / n
    return np.trace(K @ H @ L @ H)


def hsic_unbiased(K, L):
    """Song et al.: Gram matrices with empty diagonals."""
    n, one = len(K), np.ones(len(K))
    K, L = K - np.diag(np.diag(K)), L - np.diag(np.diag(L))
    middle = one @ K @ one * (one @ L @ one) / ((n - 1) * (n - 2))
    return (np.trace(K @ L) + middle - 2 / (n - 2) * (one @ K @ L @ one)) / (n * (n - 3))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 10**6))
def test_streamed_features_equal_gram_matrices(sizes, dx, dy, seed):
    rng = np.random.default_rng(seed)
    n = sum(sizes) + 8
    X = rng.standard_normal((n, dx)) + 5
    Y = rng.standard_normal((n, dy)) + 3 * X[:, :1]
    total, start = CKATotals.of(X[:8], Y[:8]), 8
    for size in sizes:
        padded = [
            np.pad(v[None, start : start + size], ((0, 0), (1, 0), (0, 0)), constant_values=np.nan) for v in (X, Y)
        ]
        total = CKATotals.of(*padded, mask=np.arange(size + 1)[None] > 0) + total
        start += size
    K, L = X @ X.T, Y @ Y.T
    ds = total.statistics()
    assert float(ds.cka) == pytest.approx(hsic_biased(K, L) / np.sqrt(hsic_biased(K, K) * hsic_biased(L, L)), rel=1e-9)
    assert int(ds.n_points) == n
    own = hsic_unbiased(K, K), hsic_unbiased(L, L)
    if min(own) > 1e-3:
        assert float(ds.cka_unbiased) == pytest.approx(
            hsic_unbiased(K, L) / np.sqrt(own[0] * own[1]), rel=1e-6, abs=1e-9
        )
    q, _ = np.linalg.qr(rng.standard_normal((dx, dx)))
    order = rng.permutation(n)
    moved = CKATotals.of((0.1 * X @ q + 2)[order], Y[order]).statistics()
    for name in ds:
        assert float(moved[name]) == pytest.approx(float(ds[name]), rel=1e-6, abs=1e-9, nan_ok=True), name


def test_unrelated_representations_are_alike_only_to_the_biased_form():
    rng, plain, unbiased = np.random.default_rng(0), [], []
    for _ in range(100):
        x, y = rng.standard_normal((2, 20, 60))
        plain.append(linear_cka(x, y, unbiased=False))
        unbiased.append(linear_cka(x, y))
    assert np.mean(plain) > 0.7
    assert abs(np.mean(unbiased)) < 4 * np.std(unbiased) / 10


def test_the_same_representation_is_1_in_both_forms():
    x = np.random.default_rng(1).standard_normal((12, 3))
    assert linear_cka(x, -5 * x + 1) == pytest.approx(1, rel=1e-12)
    assert linear_cka(x, -5 * x + 1, unbiased=False) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("value", [0.3, 1e6 / 3, float(np.float32(0.3))])
@pytest.mark.parametrize("count", [68, 1000, 20_011])
def test_nothing_is_similar_to_a_constant_however_its_mean_rounds(value, count):
    x, y = np.full((count, 3), value), np.random.default_rng(0).standard_normal((count, 2))
    for first, second, name in ((x, y, "x"), (y, x, "y"), (x.astype(np.float32), y, "x")):
        totals = CKATotals.of(first[:50], second[:50]) + CKATotals.of(first[50:], second[50:])
        with pytest.raises(DataError, match=f"{name} is the same"):
            totals.statistics()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: linear_cka(np.ones((5, 2)), np.ones((4, 2))), ArgumentError, "same inputs"),
        (lambda: linear_cka(np.eye(3), np.eye(3)), DataError, "at least 4"),
        (lambda: linear_cka(np.full((7, 2), 0.1), np.eye(7)), DataError, "x is the same"),
        (lambda: linear_cka(np.eye(7), np.full((7, 2), 0.1)), DataError, "y is the same"),
        (lambda: linear_cka(np.eye(7), np.eye(7), unbiased=1), ArgumentError, "True or False"),
        (
            lambda: CKATotals.of(np.eye(5), np.eye(5)) + CKATotals.of(np.eye(5), np.ones((5, 2))),
            ArgumentError,
            "same place",
        ),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()
