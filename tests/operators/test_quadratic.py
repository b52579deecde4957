"""The smallest change of given effect on a quadratic, against dense linear algebra, known hard cases and random directions."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from oplens.errors import ArgumentError
from oplens.operators import quadratic
from oplens.operators.quadratic import Spectrum, smallest_change, spectrum


def symmetric(n, seed, low=-1.0, high=1.0):
    """A symmetric matrix with eigenvalues spread from low to high."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(n, n)))
    return basis @ np.diag(np.linspace(low, high, n)) @ basis.T, rng


def by_dense_solves(Q, b, rise):
    """delta = l (1 - l Q)^-1 b with l in (0, 1 / lambda_max) found by Brent's method: the form of the design."""
    largest = np.linalg.eigvalsh(Q)[-1]

    def change(scale):
        return scale * np.linalg.solve(np.eye(len(b)) - scale * Q, b)

    def excess(scale):
        delta = change(scale)
        return b @ delta + delta @ Q @ delta / 2 - rise

    end = (1 - 1e-9) / largest if largest > 0 else 1e9
    return change(brentq(excess, 0, end, xtol=1e-16, rtol=1e-15))


def solve(Q, b, rise, known=None, **options):
    Q, b, rise = (torch.as_tensor(value, dtype=torch.float64) for value in (Q, b, rise))
    known = spectrum(lambda rows: rows @ Q, len(Q)) if known is None else known
    return smallest_change(lambda rows: rows @ Q, known, b, rise, **options)


def effect(Q, b, delta):
    return (b * delta).sum(-1) + np.einsum("bi,ij,bj->b", delta, Q, delta) / 2


@pytest.mark.parametrize("low", [-1.0, -3.0, 0.01])
def test_all_eigenpairs_give_what_dense_solves_give(low):
    Q, rng = symmetric(9, 1, low=low)
    b, rise = rng.normal(size=(6, 9)), np.array([1e-6, 0.01, 0.3, 1.0, 5.0, 40.0])
    found = solve(Q, b, rise)
    for k in range(6):
        expected = by_dense_solves(Q, b[k], rise[k])
        np.testing.assert_allclose(found.delta[k], expected, atol=1e-9 * np.linalg.norm(expected))
    np.testing.assert_allclose(effect(Q, b, found.delta.numpy()), rise, rtol=1e-12)
    assert bool(found.reachable.all())
    assert bool(torch.isinf(found.reach).all())


@pytest.mark.parametrize("count", [0, 1, 5])
def test_lanczos_with_few_known_eigenpairs_gives_what_all_of_them_give(count):
    Q, rng = symmetric(60, 2, low=-0.7)
    b, rise = rng.normal(size=(5, 60)), np.array([0.1, 1.0, 3.0, 30.0, 300.0])
    values, vectors = np.linalg.eigh(Q)
    ends = [*range(count), *range(60 - max(count, 1), 60)]  # the largest eigenvalue is always needed
    known = Spectrum(torch.from_numpy(values[ends]), torch.from_numpy(vectors[:, ends]))
    expected = solve(Q, b, rise).delta
    found = solve(Q, b, rise, known)
    assert float(found.residual.max()) <= 1e-12
    assert float(((found.delta - expected).norm(dim=1) / expected.norm(dim=1)).max()) < 1e-10


def test_arpack_finds_both_ends_and_a_large_problem_is_solved_with_them(monkeypatch):
    monkeypatch.setattr(quadratic, "DENSE", 20)
    Q, rng = symmetric(70, 3, low=-0.4)
    Q[:10] = Q[:, :10] = 0  # an eigenvalue 0 of high multiplicity, which must not come twice
    product = lambda rows: rows @ torch.from_numpy(Q)  # noqa: E731
    known = spectrum(product, 70, 4)
    values = np.linalg.eigvalsh(Q)
    np.testing.assert_allclose(np.sort(known.values)[-4:], values[-4:], atol=1e-12)
    np.testing.assert_allclose(np.sort(known.values)[:4], values[:4], atol=1e-12)
    gram = known.vectors.T @ known.vectors
    assert float((gram - torch.eye(len(gram))).abs().max()) < 1e-12
    b, rise = rng.normal(size=(3, 70)), np.array([0.5, 5.0, 50.0])
    found = solve(Q, b, rise, known)
    for k in range(3):
        expected = by_dense_solves(Q, b[k], rise[k])
        assert np.linalg.norm(found.delta[k].numpy() - expected) < 1e-9 * np.linalg.norm(expected)


def test_eigenpairs_that_both_ends_find_come_once(monkeypatch):
    monkeypatch.setattr(quadratic, "DENSE", 20)
    Q, _ = symmetric(40, 8)
    known = spectrum(lambda rows: rows @ torch.from_numpy(Q), 40, 25)
    assert known.whole
    assert float((known.vectors.T @ known.vectors - torch.eye(40)).abs().max()) < 1e-12
    np.testing.assert_allclose(Q @ known.vectors.numpy(), known.vectors.numpy() * known.values.numpy(), atol=1e-10)


def test_rounding_in_a_null_space_is_no_way_to_rise():
    """With a projector around Q, slope and eigenvalue of what it forbids are rounding errors; their quotient may be anything."""
    Q, rng = symmetric(12, 9, low=-2.0, high=-0.5)
    basis, _ = np.linalg.qr(rng.normal(size=(12, 5)))
    P = basis @ basis.T
    b = rng.normal(size=12) @ P
    found = solve(P @ Q @ P, b[None] + 1e-17, [1e3])
    furthest = -basis @ np.linalg.solve(basis.T @ Q @ basis, basis.T @ b)
    assert not bool(found.reachable.any())
    np.testing.assert_allclose(found.delta[0], furthest, atol=1e-10)
    assert float(found.reach[0]) == pytest.approx(b @ furthest / 2, rel=1e-10)


def test_a_quadratic_without_curvature_is_linear(monkeypatch):
    monkeypatch.setattr(quadratic, "DENSE", 3)
    b = np.random.default_rng(4).normal(size=(2, 8))
    found = solve(np.zeros((8, 8)), b, [1.0, 2.0])
    expected = b * (np.array([1.0, 2.0]) / (b**2).sum(1))[:, None]
    np.testing.assert_allclose(found.delta, expected, rtol=1e-13)


@pytest.mark.parametrize("known", ["whole", "ends"])
def test_hard_case_adds_the_eigenvector_of_the_largest_eigenvalue(known):
    """Q = diag(2, 1, -1), b = (0, 0.1, 0): at mu = 2 the regular part rises by 0.1^2 (2 - 1/2) / 1; the rest is 2 tau^2 / 2."""
    Q, b, rise = np.diag([2.0, 1.0, -1.0]), np.array([[0.0, 0.1, 0.0]]), 0.5
    ends = Spectrum(torch.tensor([2.0], dtype=torch.float64), torch.eye(3, dtype=torch.float64)[:, :1])
    found = solve(Q, b, [rise], None if known == "whole" else ends)
    tau = np.sqrt(rise - 0.015)
    np.testing.assert_allclose(found.delta[0].abs(), [tau, 0.1, 0.0], atol=1e-14)
    assert bool(found.reachable.all())


def test_nearly_hard_cases_approach_the_hard_one():
    Q = np.diag([2.0, 1.0, -1.0])
    for tiny in (1e-3, 1e-6, 1e-9, 1e-12, 1e-15):
        b = np.array([[tiny, 0.1, 0.0]])
        delta = solve(Q, b, [0.5]).delta.numpy()
        assert effect(Q, b, delta)[0] == pytest.approx(0.5, rel=1e-12)
        np.testing.assert_allclose(delta[0], [np.sqrt(0.485), 0.1, 0.0], atol=2 * tiny)


def test_without_any_slope_the_eigenvector_alone_is_taken():
    found = solve(np.diag([-1.0, 3.0]), np.zeros((1, 2)), [6.0])
    np.testing.assert_allclose(found.delta[0].abs(), [0.0, 2.0], atol=1e-14)


def test_negative_definite_quadratics_reach_only_so_far():
    Q, rng = symmetric(7, 5, low=-2.0, high=-0.1)
    b = rng.normal(size=(1, 7))
    furthest = -np.linalg.solve(Q, b[0])
    reach = b[0] @ furthest / 2
    out = solve(Q, b, [reach * 1.01])
    assert not bool(out.reachable.any())
    assert float(out.reach[0]) == pytest.approx(reach, rel=1e-12)
    np.testing.assert_allclose(out.delta[0], furthest, rtol=1e-10)
    near = solve(Q, b, [reach * 0.99])
    assert bool(near.reachable.all())
    assert effect(Q, b, near.delta.numpy())[0] == pytest.approx(0.99 * reach, rel=1e-12)


def test_a_flat_direction_with_slope_has_no_end():
    found = solve(np.diag([-1.0, 0.0]), np.array([[1.0, 1e-3]]), [50.0])
    assert bool(found.reachable.all())
    assert effect(np.diag([-1.0, 0.0]), np.array([[1.0, 1e-3]]), found.delta.numpy())[0] == pytest.approx(50.0)
    flat = solve(np.diag([-1.0, 0.0]), np.array([[1.0, 0.0]]), [50.0])
    assert not bool(flat.reachable.any())
    assert float(flat.reach[0]) == pytest.approx(0.5)


def test_no_direction_reaches_the_rise_by_a_smaller_change():
    Q, rng = symmetric(5, 6, low=-2.0, high=0.5)
    b, rise = rng.normal(size=(1, 5)), 2.0
    smallest = float(solve(Q, b, [rise]).delta.norm())
    directions = rng.normal(size=(200_000, 5))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    slope, bend = directions @ b[0], np.einsum("ki,ij,kj->k", directions, Q, directions)
    under = slope**2 + 2 * bend * rise
    with np.errstate(invalid="ignore", divide="ignore"):
        length = 2 * rise / (slope + np.sqrt(under))  # smaller root of slope t + bend t^2 / 2 = rise
    length = length[(under >= 0) & (length > 0)]
    assert smallest <= length.min() * (1 + 1e-12)
    assert smallest > 0.97 * length.min()


def test_rows_that_want_no_rise_stay_where_they_are():
    Q, rng = symmetric(5, 7)
    found = solve(Q, rng.normal(size=(3, 5)), [0.0, -1.0, 1.0])
    assert found.delta.norm(dim=1).numpy()[:2].tolist() == [0.0, 0.0]
    assert float(found.delta[2].norm()) > 0
    assert bool(found.reachable.all())


def test_shapes_that_do_not_fit_are_refused():
    Q = torch.eye(3, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"b is \(3,\)"):
        smallest_change(lambda rows: rows @ Q, spectrum(lambda rows: rows @ Q, 3), Q[0], Q[0])
