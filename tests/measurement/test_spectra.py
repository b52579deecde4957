"""Ranks against definitions written out, mpmath and the invariances they must have."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.errors import ArgumentError, DataError
from oplens.measurement import effective_rank, eigenvalue_effective_rank, numerical_rank, stable_rank


def rotation(rng, n):
    q, r = np.linalg.qr(rng.standard_normal((n, n)))
    return q * np.sign(np.diag(r))


def entropy_exp(values):
    total, entropy = sum(values), 0.0
    for v in values:
        if v > 0:
            entropy -= v / total * math.log(v / total)
    return math.exp(entropy)


def test_the_previous_token_head_shows_why_eigenvalues_do_not_do():
    head = np.eye(8, k=-1)
    head[0, 0] = 1
    assert eigenvalue_effective_rank(head) == 1.0  # eigenvalues {1, 0 x 7}
    assert effective_rank(head) == pytest.approx(entropy_exp([math.sqrt(2)] + [1.0] * 6), rel=1e-12)
    assert round(float(effective_rank(head)), 2) == 6.94
    assert numerical_rank(head) == 7
    assert stable_rank(head) == pytest.approx(8 / 2, rel=1e-12)


def test_the_printed_rank_is_ill_conditioned_and_the_effective_rank_is_not():
    """A rotation of the tokens leaves both spectra in exact arithmetic; in float64 a sevenfold eigenvalue 0 becomes 0.005."""
    head = np.eye(8, k=-1)
    head[0, 0] = 1
    turn = rotation(np.random.default_rng(0), 8)
    rotated = turn @ head @ turn.T
    assert effective_rank(rotated) == pytest.approx(float(effective_rank(head)), rel=1e-12)
    assert 1.01 < eigenvalue_effective_rank(rotated) < 2
    assert eigenvalue_effective_rank(head.T) == 1.0


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_ranks_do_not_change_under_rotation_and_scale(rows, columns, seed, scale):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, columns))
    moved = scale * rotation(rng, rows) @ A @ rotation(rng, columns)
    for rank in (effective_rank, stable_rank, numerical_rank):
        assert rank(moved) == pytest.approx(float(rank(A)), rel=1e-9)
    assert 1 - 1e-12 <= stable_rank(A) <= effective_rank(A) ** 2 + 1e-9
    assert effective_rank(A) <= min(rows, columns) + 1e-9


def test_singular_values_against_mpmath():
    A = np.random.default_rng(3).standard_normal((4, 4)) * np.logspace(0, -6, 4)
    with mpmath.workdps(40):
        singular = [float(s) for s in mpmath.svd_r(mpmath.matrix(A.tolist()), compute_uv=False)]
        eigen = [float(abs(v)) for v in mpmath.eig(mpmath.matrix(A.tolist()), left=False, right=False)]
    assert effective_rank(A) == pytest.approx(entropy_exp(singular), rel=1e-10)
    assert eigenvalue_effective_rank(A) == pytest.approx(entropy_exp(eigen), rel=1e-10)


def test_stacks_are_measured_matrix_by_matrix():
    A = np.random.default_rng(1).standard_normal((2, 3, 4, 4))
    A[1, 2] = np.tril(A[1, 2])
    for rank in (effective_rank, stable_rank, numerical_rank, eigenvalue_effective_rank):
        alone = [[float(rank(A[i, j])) for j in range(3)] for i in range(2)]
        np.testing.assert_allclose(rank(A), alone, rtol=1e-12)


def test_the_rank_of_float32_is_counted_with_float32s_rounding():
    rng = np.random.default_rng(0)
    A = (rng.standard_normal((50, 5)) @ rng.standard_normal((5, 50))).astype(np.float32)
    assert numerical_rank(A) == 5
    assert numerical_rank(torch.from_numpy(A)) == 5
    assert numerical_rank(A.astype(np.float64)) == 50  # as float64 its rounding looks like rank
    assert numerical_rank(np.diag([1.0, 0.3, 0.01]), tolerance=0.1) == 2


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: effective_rank(np.zeros((2, 2))), DataError, "zeros"),
        (lambda: stable_rank(np.zeros((2, 2))), DataError, "zeros"),
        (lambda: effective_rank(np.array([[np.nan]])), DataError, "NaN"),
        (lambda: effective_rank(np.ones(3)), ArgumentError, "rows, columns"),
        (lambda: effective_rank(np.ones((0, 3))), ArgumentError, "empty"),
        (lambda: effective_rank([[1.0], [1.0, 2.0]]), ArgumentError, "different lengths"),
        (lambda: effective_rank(np.ones((2, 2), dtype=complex)), ArgumentError, "real numbers"),
        (lambda: eigenvalue_effective_rank(np.ones((2, 3))), ArgumentError, "square"),
        (lambda: numerical_rank(np.ones((2, 3)), tolerance=2.0), ArgumentError, "relative"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_no_eigenvalues_no_printed_rank():
    assert np.isnan(eigenvalue_effective_rank(np.eye(3, k=1)))
