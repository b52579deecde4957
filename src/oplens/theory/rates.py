"""Rates of the explicit constructions on Lipschitz functions: what a given size suffices for."""

import math

from oplens.errors import ArgumentError
from oplens.theory.statement import Bound, Quantity, Stated, count, number, power

_STATED = Stated(
    "3.3",
    "explicit construction, 'decomposition in Fourier bases for the continuous case'",
    (),
    "announced without a construction, an error or a size; these are its rates, exponential in n as packing demands",
)


def fourier_rate(length: int, lipschitz: float, degree: int, norm: str = "l1") -> Bound:
    """Sup error of the Fejér-Korovkin mean of degree D of a Lipschitz function on [0, 1]^n.

    x_j = abs(theta_j)/pi. Error at most n L sin(pi/(2(D+2))) for L in the l1 norm, sqrt(n) L sin(..) in l2 or max. Proof: the kernel
    is a probability density with E cos = cos(pi/(D+2)) and abs(theta) <= pi sin(abs(theta)/2), so E (theta/pi)^2 <= sin^2(pi/(2(D+2))).

    Parameters
    ----------
    length : int
        n.
    lipschitz : float
        L, units of f.
    degree : int
        D, per axis.
    norm : {"l1", "l2", "max"}
        In which L is measured.

    Returns
    -------
    Bound
        `error`, `waves` = ((2D+1)^n + 1)/2 ridge cosines.

    Notes
    -----
    Accuracy: *bound*; of the trigonometric polynomial itself, before its cosines are made of ReLUs. Cost: O(n).

    Examples
    --------
    >>> round(fourier_rate(length=2, lipschitz=1.0, degree=6).value, 4)
    0.3902
    """
    call = "fourier_rate"
    n, L = count(call, "length", length), number(call, "lipschitz", lipschitz)
    D = count(call, "degree", degree)
    if norm not in ("l1", "l2", "max"):
        raise ArgumentError(
            f"{call}(norm={norm!r}): norm must be 'l1', 'l2' or 'max', the norm of x in which L is measured."
        )
    axes = n if norm == "l1" else math.sqrt(n)
    return Bound(
        call,
        (
            Quantity(
                "error",
                axes * L * math.sin(math.pi / (2 * (D + 2))),
                "same as f",
                "bound",
                "sup error of the Fejér-Korovkin mean",
            ),
            Quantity("waves", (power(call, 2 * D + 1, n) + 1) // 2, "1", "bound", "ridge cosines that suffice"),
        ),
        "the Fejér-Korovkin mean of degree D of f(abs(theta)/pi) errs by at most n L sin(pi/(2(D+2))), sqrt(n) in l2",
        (
            f"f on [0, 1]^n with Lipschitz constant L in the {norm} norm",
            "coefficients exact (midpoint sums of at least (D+2)/2 nodes)",
        ),
        "Korovkin's kernel (1958); the constant derived for this library",
        _STATED,
    )


def piecewise_linear_rate(length: int, lipschitz: float, cells: int) -> Bound:
    """Sup error of linear interpolation on the Kuhn triangulation of a grid with M cells per axis.

    min(n/(n+1), 3/4) L/M, L in the max norm. Proof: at x with weights c_k on the vertices v_0 < ... < v_n the error is at most
    L sum c_k norm(x - v_k)_max = (L/M) sum c_k max(h_k, t_k), h_k and t_k the weights before and after k. As max(h_k, t_k) <= 1 - c_k
    the sum is at most 1 - sum c_k^2; and as it is at most the mean of max(u, 1-u) over u in [h_k, h_k + c_k], at most 3/4.

    Parameters
    ----------
    length : int
        n.
    lipschitz : float
        L in the max norm, units of f.
    cells : int
        M per axis.

    Returns
    -------
    Bound
        `error`, `nodes` = (M+1)^n, `extra_layers` = ceil(log2(n+1)) for the hats' minima and maxima.

    Notes
    -----
    Accuracy: *bound*; attained for n = 1. Cost: O(n).

    Examples
    --------
    >>> piecewise_linear_rate(length=1, lipschitz=2.0, cells=10).value
    0.1
    """
    call = "piecewise_linear_rate"
    n, L = count(call, "length", length), number(call, "lipschitz", lipschitz)
    M = count(call, "cells", cells)
    return Bound(
        call,
        (
            Quantity("error", min(n / (n + 1), 0.75) * L / M, "same as f", "bound", "sup error of the interpolant"),
            Quantity("nodes", power(call, M + 1, n), "1", "bound", "hat functions that suffice"),
            Quantity(
                "extra_layers", n.bit_length(), "1", "bound", "feed-forward layers for minima and maxima of n + 1 terms"
            ),
        ),
        "linear interpolation on M cells per axis errs by at most min(n/(n+1), 3/4) L/M",
        ("f on [0, 1]^n with Lipschitz constant L in the max norm", "Kuhn triangulation, exact arithmetic"),
        "derived for this library; the proof is in the docstring",
        _STATED,
    )
