"""Stability of attention on a ball, by search for the worst pair; the Performer's variance by quadrature and simulation."""

import math

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize

from oplens.theory import attention_stability, performer_features


def attention(x, V, A, visible=None):
    scores = x @ A @ x.T
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True) @ x @ V.T


def in_ball(x, r):
    return x * np.minimum(1, r / np.linalg.norm(x, axis=1, keepdims=True))


def largest(x):
    return np.linalg.norm(x, axis=1).max()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("length", "d", "r", "strength"),
    [(2, 1, 1.0, 1.0), (2, 1, 1.0, 8.0), (3, 2, 0.5, 3.0), (6, 3, 1.0, 5.0), (5, 2, 2.0, 0.5)],
)
def test_no_pair_of_inputs_in_the_ball_is_moved_apart_further(length, d, r, strength, causal):
    rng = np.random.default_rng(length)
    V, A = rng.standard_normal((d, d)), strength * rng.standard_normal((d, d))
    visible = np.tril(np.ones((length, length), dtype=bool)) if causal else None
    bound = attention_stability(r, float(np.linalg.norm(V, 2)), float(np.linalg.norm(A, 2))).value

    def ratio(both):
        x, y = (in_ball(half.reshape(length, d), r) for half in np.split(both, 2))
        apart = largest(x - y)
        return 0.0 if apart < 1e-9 else largest(attention(x, V, A, visible) - attention(y, V, A, visible)) / apart

    starts = [
        np.concatenate([x, x + 10.0**-k * rng.standard_normal(x.size)])
        for k in (0, 2, 4)
        for x in r * rng.standard_normal((25, length * d))
    ]
    worst = max(starts, key=ratio)
    found = minimize(lambda both: -ratio(both), worst, method="Nelder-Mead", options={"maxiter": 400})
    assert 0.05 * bound < -found.fun <= bound * (1 + 1e-9)


@pytest.mark.parametrize("length", [2, 7])
@pytest.mark.parametrize("scale", [1e-3, 0.3, 2.0])
def test_no_change_of_the_weights_moves_the_output_further(length, scale):
    rng = np.random.default_rng(7)
    d, r, most = 3, 1.5, 0.0
    for _ in range(300):
        V, A = rng.standard_normal((d, d)), rng.standard_normal((d, d))
        dV, dA = scale * rng.standard_normal((2, d, d)) * rng.choice([0.0, 1.0], (2, 1, 1), p=[0.3, 0.7])
        x = in_ball(2 * r * rng.standard_normal((length, d)), r)
        moved = largest(attention(x, V + dV, A + dA) - attention(x, V, A))
        norms = [float(np.linalg.norm(M, 2)) for M in (V, A, dV, dA)]
        deviation = attention_stability(r, *norms)["deviation"]
        assert moved <= deviation * (1 + 1e-9) + 1e-12
        most = max(most, moved / deviation) if deviation else most
    assert most > 0.05


def test_score_changes_alone_come_near_their_bound_for_two_opposite_tokens():
    """x = (r, -r) in one dimension, A = 0: the covariance is r^2, as large as it can be."""
    r, dA = 1.0, 1e-6
    x = np.array([[r], [-r]])
    moved = largest(attention(x, np.eye(1), dA * np.eye(1)) - attention(x, np.eye(1), np.zeros((1, 1))))
    assert moved == pytest.approx(attention_stability(r, 1.0, 0.0, 0.0, dA)["deviation"], rel=1e-6)


def test_without_a_radius_there_is_no_constant():
    """Dot-product attention at 0 and near it, between two far tokens: the ratio grows as the square of the radius."""
    for r in (1.0, 10.0, 100.0):
        x, y = np.array([[0.0], [r], [-r]]), np.array([[1e-6 / r**2], [r], [-r]])
        ratio = largest(attention(x, np.eye(1), np.eye(1)) - attention(y, np.eye(1), np.eye(1))) / largest(x - y)
        assert ratio == pytest.approx((1 + 2 * r**2) / 3, rel=1e-3)
        assert ratio <= attention_stability(r, 1.0, 1.0).value


@pytest.mark.parametrize(("q", "k"), [(0.3, 0.4), (1.0, -0.2), (0.7, 1.1)])
def test_performer_variance_by_quadrature_in_one_dimension(q, k):
    with mpmath.workdps(20):

        def moment(p):
            return mpmath.quad(
                lambda w: mpmath.npdf(w) * mpmath.exp(p * (w * (q + k) - (q * q + k * k) / 2)),
                [-mpmath.inf, 0, mpmath.inf],
            )

        mean, square = moment(1), moment(2)
        assert float(mean) == pytest.approx(math.exp(q * k), rel=1e-12)
        expected = float((square - mean**2) / mean**2) / 16
    assert performer_features(abs(q + k), 16).value == pytest.approx(expected, rel=1e-10)


def test_performer_features_suffice_and_grow_exponentially():
    rng = np.random.default_rng(1)
    q, k = rng.standard_normal((2, 4)) / 3
    size = float(np.linalg.norm(q + k))
    needed = performer_features(size, 1, error=0.2, confidence=0.9)["features_needed"]
    assert needed == math.ceil((math.exp(size**2) - 1) / (0.04 * (1 - 0.9)))
    w = rng.standard_normal((2000, needed, 4))
    estimate = np.exp(w @ (q + k) - (q @ q + k @ k) / 2).mean(1) / math.exp(q @ k)
    assert (np.abs(estimate - 1) > 0.2).mean() < 0.1
    # Parallel q and k of norm 3: even 2048 features leave a relative standard deviation above 3e5.
    assert performer_features(6.0, 2048).value > 1e11
