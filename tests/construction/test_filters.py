"""Filters as exact ratios of polynomials and as sums of exponentials, held to scipy.signal and to recurrences in many digits."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import signal

from oplens.construction.filter_files import read_matrix, read_rows, read_series
from oplens.construction.filters import ExponentialSum, FiniteKernel
from oplens.construction.kernel_balls import KernelBalls
from oplens.construction.second_order_kernel import SecondOrderKernel
from oplens.errors import ArgumentError, DataError

DESIGNS = [
    (1, 40.0, "low"),
    (4, 40.0, "low"),
    (5, 30.0, "high"),
    (4, (8.0, 13.0), "bandpass"),
    (3, (45.0, 55.0), "bandstop"),
    (12, 20.0, "low"),
]


def recurrence(sos, length, digits=60):
    """The impulse response of sections by their difference equations, in many digits."""
    with mpmath.workdps(digits):
        x = [mpmath.mpf(1)] + [mpmath.mpf(0)] * (length - 1)
        for section in sos:
            b, a = [mpmath.mpf(float(v)) for v in section[:3]], [mpmath.mpf(float(v)) for v in section[3:]]
            y = []
            for t in range(length):
                value = sum(b[i] * x[t - i] for i in range(min(3, t + 1)))
                value -= sum(a[i] * y[t - i] for i in range(1, min(3, t + 1)))
                y.append(value / a[0])
            x = y
        return x


@pytest.mark.parametrize("design", DESIGNS)
def test_sections_coefficients_and_roots_are_the_filter(design):
    order, cutoff, band = design
    sos = signal.butter(order, cutoff, band, output="sos", fs=256.0)
    expected = np.array([float(v) for v in recurrence(sos, 80)])
    kernel = ExponentialSum.butterworth(order, cutoff, 256.0, band)
    assert np.abs(kernel.response(80) - expected).max() < 1e-15
    # What poles and residues give, in float64, is the same up to the cancellation among them.
    t = np.arange(80)
    by_poles = sum(r * p**t for p, r in zip(kernel.poles, kernel.residues, strict=True)) + kernel.direct * (t == 0)
    assert np.abs(by_poles - expected).max() < 1e-14 * max(1, np.abs(kernel.residues).sum())
    if order < 12:
        b, a = signal.butter(order, cutoff, band, fs=256.0)
        assert np.abs(ExponentialSum.from_ba(b, a).response(80) - signal.lfilter(b, a, t == 0)).max() < 1e-10
        z, p, k = signal.butter(order, cutoff, band, output="zpk", fs=256.0)
        assert np.abs(ExponentialSum.from_zpk(z, p, k).response(80) - expected).max() < 1e-11


@pytest.mark.parametrize("band", ["low", "high"])
def test_bands_have_the_names_that_scipy_gives_them(band):
    assert ExponentialSum.butterworth(3, 0.2, band=band + "pass") == ExponentialSum.butterworth(3, 0.2, band=band)


def test_residues_are_those_of_scipy_in_its_convention():
    b, a = [1.0, 0.3], np.poly([0.9, 0.9, -0.5])
    r, p, k = signal.residuez(b, a)
    kernel = ExponentialSum([0.9, 0.9, -0.5], [0.0, 2.0, 1.0], 0.25)
    t = np.arange(30)
    expected = 2.0 * (t + 1) * 0.9**t + (-0.5) ** t + 0.25 * (t == 0)
    np.testing.assert_allclose(kernel.response(30), expected, rtol=1e-14)
    found = ExponentialSum.from_ba(b, a)
    np.testing.assert_allclose(found.response(30), signal.lfilter(b, a, t == 0), rtol=0, atol=1e-12)
    assert found.n_poles == len(p) == 3
    assert not len(k)
    simple = ExponentialSum(*signal.residuez([1.0, 0.5, 0.2], np.poly([0.9, -0.5]))[1::-1], direct=-0.2 / 0.45)
    np.testing.assert_allclose(
        simple.response(30), signal.lfilter([1.0, 0.5, 0.2], np.poly([0.9, -0.5]), t == 0), rtol=0, atol=1e-13
    )
    assert len(r) == 3


def test_missing_zeros_are_where_scipy_has_them():
    z, p, k = [0.3], [0.5, -0.4, 0.2], 2.0
    expected = signal.sosfilt(signal.zpk2sos(z, p, k), np.eye(1, 20)[0])
    assert np.abs(ExponentialSum.from_zpk(z, p, k).response(20) - expected).max() < 1e-15


def test_a_pole_that_a_zero_cancels_is_gone():
    kernel = ExponentialSum.from_ba([1.0, -1.0], np.polymul([1.0, -1.0], [1.0, -0.5]))
    assert kernel.poles == (0.5 + 0j,)
    np.testing.assert_allclose(kernel.response(5), 0.5 ** np.arange(5), rtol=1e-15)


@pytest.mark.parametrize("repeated", [False, True])
def test_norms_are_those_of_a_long_sum_and_hold_the_rest(repeated):
    poles = [0.97 * np.exp(0.3j), 0.97 * np.exp(-0.3j), -0.6]
    poles, residues = (poles * 2, [1.0, 1.0, 0.5, 0.1j, -0.1j, 2.0]) if repeated else (poles, [1 + 2j, 1 - 2j, 0.7])
    kernel = ExponentialSum(poles, residues, -0.4)
    long = np.abs(kernel.response(3000))
    for longest in (256, 2**14):
        norm1, norm2 = kernel.balls.norms(longest)
        assert long.sum() * (1 - 1e-12) <= norm1 < long.sum() * 1.05
        assert np.sqrt((long**2).sum()) * (1 - 1e-12) <= norm2 < 1.05 * np.sqrt((long**2).sum())
        assert norm1 - long.sum() < (0.02 if longest == 256 else 1e-3) * long.sum()


def test_a_slow_filter_differs_little_from_its_neighbour_beyond_any_lag():
    p, q, r = 1 - 1e-7, 1 - 1e-7 - 1e-14, 1e-7
    found = ExponentialSum([p], [r]).balls.minus(ExponentialSum([q], [r]).balls).norms()[0]
    # r (sum of p^t - sum of q^t) = r (p - q)/((1 - p)(1 - q)), about 1e-7; the norms of both alone would add up to 2.
    exact = r * (p - q) / ((1 - p) * (1 - q))
    assert exact * (1 - 1e-12) <= found < 1.1 * exact


def test_differences_are_differences():
    a = ExponentialSum([0.9, 0.5], [1.0, -2.0], 0.3)
    b = ExponentialSum([0.9 + 0.1j, 0.9 - 0.1j], [0.4j, -0.4j])
    c = FiniteKernel([1.0, -3.0, 0.25])
    t = np.arange(40)
    dense = {
        "a": 0.9**t - 2 * 0.5**t + 0.3 * (t == 0),
        "b": 2 * (0.4j * (0.9 + 0.1j) ** t).real,
        "c": np.pad([1.0, -3.0, 0.25], (0, 37)),
    }
    kernels = {"a": a, "b": b, "c": c}
    for one, two in ("ab", "ba", "ac", "cb", "cc"):
        found = kernels[one].balls.minus(kernels[two].balls)
        assert isinstance(found, KernelBalls)
        np.testing.assert_allclose(found.response(40), dense[one] - dense[two], rtol=0, atol=1e-14)
    assert a.balls.minus(a.balls).norms()[0] < 1e-80


def test_a_second_order_kernel_of_poles_is_the_double_sum():
    poles = [0.7, 0.5 + 0.4j, 0.5 - 0.4j, -0.3]
    rng = np.random.default_rng(3)
    M = rng.normal(size=(4, 4)) + 1j * rng.normal(size=(4, 4))
    swap = [0, 2, 1, 3]  # conjugation exchanges the pair's rows and columns
    M = M + M.T
    M = M + M.conj()[np.ix_(swap, swap)]
    h = SecondOrderKernel.from_exponentials(poles, M)
    t = np.arange(12)
    dense = np.zeros((12, 12), dtype=complex)
    for a in range(4):
        for b in range(4):
            dense += M[a, b] * np.outer(np.power(complex(poles[a]), t), np.power(complex(poles[b]), t))
    assert np.abs(dense.imag).max() < 1e-12
    assert np.abs(h.response(12) - dense.real).max() < 1e-13 * np.abs(dense).max()
    assert len(h.filters) == 4
    assert 0 < h.left_over < 1e-11


def test_a_matrix_over_lags_leaves_over_what_its_rank_cuts():
    rng = np.random.default_rng(5)
    H = rng.normal(size=(9, 9))
    H = H + H.T
    whole, cut = SecondOrderKernel.from_matrix(H), SecondOrderKernel.from_matrix(H, rank=3)
    assert np.abs(whole.response(9) - H).max() < 1e-13
    missed = np.abs(H - cut.response(9)).sum()
    assert missed <= cut.left_over < missed * (1 + 2e-9)
    assert whole.left_over < 1e-11
    assert len(cut.filters) == 3
    # The eigenvalues that are left are the largest.
    assert min(np.abs(cut.weights)) >= max(np.abs(np.linalg.eigvalsh(H - cut.response(9)))) - 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_what_rounding_leaves_over_is_bounded_in_exact_arithmetic(seed):
    rng = np.random.default_rng(seed)
    H = rng.normal(size=(5, 5))
    H = H + H.T
    kernel = SecondOrderKernel.from_matrix(H)
    rows = [[Fraction(v) for v in item.values] for item in kernel.filters]
    weights = [Fraction(w) for w in kernel.weights]
    exact = Fraction(0)
    for s in range(5):
        for t in range(5):
            stored = sum(w * row[s] * row[t] for w, row in zip(weights, rows, strict=True))
            exact += abs(Fraction(float(H[s, t])) - stored)
    assert 0 < exact <= Fraction(kernel.left_over) < 1e-12


def test_files_of_numbers(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(1, 6))
    (tmp_path / "ba.csv").write_text("# b, a\n0.5; 0.5\n1, -0.2, 0.1\n")
    assert read_series(tmp_path / "a.npy").tolist() == [0, 1, 2, 3, 4, 5]
    assert [row.tolist() for row in read_rows(tmp_path / "ba.csv")] == [[0.5, 0.5], [1.0, -0.2, 0.1]]
    (tmp_path / "column.txt").write_text("1\n2\n\n3\n")
    assert read_series(tmp_path / "column.txt").tolist() == [1.0, 2.0, 3.0]
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "nan.npy", np.array([1.0, np.nan]))
    (tmp_path / "bad.csv").write_text("1,2\n3,x\n")
    (tmp_path / "inf.csv").write_text("1,2\n3,inf\n")
    (tmp_path / "empty.csv").write_text("\n")
    (tmp_path / "page.html").write_text("<html>")
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:100])
    wrong = {
        "objects.npy": "holds Python objects",
        "nan.npy": "all must be finite",
        "bad.csv": "line 2: '3,x' is no row of numbers",
        "inf.csv": "line 2: all numbers must be finite",
        "empty.csv": "holds no numbers",
        "page.html": "this is html",
        "cut.npy": "damaged NumPy file",
        "none.csv": "cannot be read",
    }
    for name, sentence in wrong.items():
        with pytest.raises(DataError, match=sentence):
            read_rows(tmp_path / name)
    with pytest.raises(DataError, match="rows of 2 and of 3 numbers"):
        read_matrix(tmp_path / "ba.csv")
    np.save(tmp_path / "square.npy", np.ones((2, 2)))
    with pytest.raises(DataError, match="one row or one column"):
        read_series(tmp_path / "square.npy")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ExponentialSum.from_ba([1.0], [1.0, -1.0]), "size 1; inside the unit circle"),
        (lambda: ExponentialSum.from_ba([1.0], [1.0, -1.7]), "size 1.7"),
        (lambda: ExponentialSum.from_ba([1.0, 2.0, 3.0], [1.0, -0.5]), "finite part beyond lag 0.*FiniteKernel"),
        (lambda: ExponentialSum.from_ba([1.0], [0.0, 1.0]), "answers before its input"),
        (lambda: ExponentialSum.from_ba([0.0], [1.0, 0.5]), "numerator is 0"),
        (lambda: ExponentialSum.from_zpk([0.1, 0.2], [0.5], 1.0), "finite part beyond lag 0"),
        (lambda: ExponentialSum.from_sos(np.ones((2, 5))), r"\(n_sections, 6\), got \(2, 5\)"),
        (lambda: ExponentialSum.from_sos("sos"), "array of real numbers"),
        (lambda: ExponentialSum([0.5, 0.6], [1.0]), "2 poles but 1 residues"),
        (lambda: ExponentialSum([0.5j], [1.0]), "no conjugate partner"),
        (lambda: ExponentialSum([0.5], [1j]), "is not real"),
        (lambda: ExponentialSum([0.0], [1.0]), "add its residue to direct"),
        (lambda: ExponentialSum([float("nan")], [1.0]), "is not finite"),
        (lambda: ExponentialSum(0.5, 1.0), "sequence of complex numbers"),
        (lambda: ExponentialSum.butterworth(4, 200.0, 256.0), "cutoff"),
        (lambda: ExponentialSum.butterworth(4, 20.0, 256.0, "bandpass"), "two in ascending order"),
        (lambda: ExponentialSum.butterworth(4, 20.0, 256.0, "middle"), "choose one of low, high"),
        (lambda: ExponentialSum.butterworth(0, 20.0, 256.0), "order"),
        (lambda: FiniteKernel([0.0, 0.0]), "leave this kernel out"),
        (lambda: FiniteKernel([1.0]), "direct=value"),
        (lambda: FiniteKernel(np.ones((2, 2))), "in a row"),
        (lambda: SecondOrderKernel.from_matrix([[1.0, 2.0], [0.0, 1.0]]), r"\(H \+ H.T\)/2"),
        (lambda: SecondOrderKernel.from_matrix(np.ones((2, 3))), "square matrix"),
        (lambda: SecondOrderKernel.from_exponentials([0.5, 0.5], np.eye(2)), "given twice"),
        (lambda: SecondOrderKernel.from_exponentials([0.5j, -0.5j], [[1.0, 0.0], [0.0, 2.0]]), "not real"),
        (lambda: SecondOrderKernel.from_exponentials([0.5], np.eye(2)), r"poles \(n,\)"),
        (lambda: SecondOrderKernel.from_exponentials([1.5], np.eye(1)), "inside the unit circle"),
        (lambda: SecondOrderKernel((), ()), "at least one filter"),
        (lambda: SecondOrderKernel([FiniteKernel([1.0, 2.0])], [1.0, 2.0]), "1 filters but 2 weights"),
        (lambda: SecondOrderKernel([FiniteKernel([1.0, 2.0])], [1.0], [[1.0], [2.0]]), r"\(1, n_channels\)"),
    ],
)  # fmt: skip
def test_what_is_no_fading_real_kernel_is_refused(make, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        make()


def test_values_that_are_not_finite_are_named():
    with pytest.raises(DataError, match=r"nan at \(1,\)"):
        FiniteKernel([1.0, float("nan")])
