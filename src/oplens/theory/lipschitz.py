"""What it costs to approximate every Lipschitz function of n variables: exponential in n, whatever the depth.

The functions that do the counting live on the grid of k points per axis, spacing 1/(k-1): every choice of values +-h on it extends to a
Lipschitz function on the cube (McShane) as long as 2h <= L/(k-1), and two of them are 2h apart in sup norm.
"""

import math
from fractions import Fraction

from oplens.theory.statement import Bound, Quantity, Stated, count, least_count, number, power, spare

_CLASS = "f on [0,1]^n with abs(f(x) - f(y)) <= L max_i abs(x_i - y_i) and abs(f) <= L/2, every one of them"
_DETERMINISTIC = "P parameters, each one of 2^b values, in one fixed architecture of any depth"
_DERIVED = (
    "derived for this library; the proof is in the docstring (compare Kolmogorov & Tikhomirov 1959 on epsilon-entropy)"
)
_CLAIM_1 = "contribution 1"
_CANDIDATES = 1000  # grids tried by packing_mean; each gives a valid bound


def packing(length: int, lipschitz: float, error: float, bits: int) -> Bound:
    """Parameters that approximate every L-Lipschitz function of n numbers to sup error eps.

    b P >= ceil(L / (2 eps))^n. Proof: with k = ceil(L/(2 eps)) the spacing 1/(k-1) exceeds 2 eps/L, so some h > eps has
    2h <= L/(k-1); the 2^(k^n) sign choices are pairwise more than 2 eps apart, and no model is within eps of two of them. Such models
    have all sign choices right, so real parameters need a VC dimension of k^n (:func:`oplens.theory.vc_dimension`).

    Parameters
    ----------
    length : int
        n, numbers in [0, 1].
    lipschitz, error : float
        L in the max norm, and eps < L/2, both in units of f.
    bits : int
        b, bits per parameter.

    Returns
    -------
    Bound
        `parameters`, `bits`, `points_per_axis`; lower bounds. `bits_tents` is the weaker count by disjoint tents, (k-1)^n.

    Notes
    -----
    Accuracy: *bound*; L/(2 eps) is formed without rounding. Cost: O(n).

    Examples
    --------
    >>> bound = packing(length=10, lipschitz=1.0, error=0.05, bits=32)
    >>> bound["points_per_axis"], bound.value
    (10, 312500000)
    """
    call = "packing"
    n, b = count(call, "length", length), count(call, "bits", bits)
    L = number(call, "lipschitz", lipschitz, 0, open_below=True)
    eps = number(
        call, "error", error, 0, L / 2, open_below=True, meaning="at L/2 the constant 0 serves the whole class"
    )
    k = math.ceil(Fraction(L) / (2 * Fraction(eps)))
    needed = power(call, k, n)
    return Bound(
        call,
        (
            Quantity("parameters", -(-needed // b), "1", "bound", "fewest parameters"),
            Quantity("bits", needed, "bit", "bound", "fewest bits in all parameters together"),
            Quantity("points_per_axis", k, "1", "exact", "grid points per axis, ceil(L/(2 eps))"),
            Quantity("bits_tents", (k - 1) ** n, "bit", "bound", "fewest bits by disjoint tents"),
        ),
        "a model within eps of every L-Lipschitz function on [0,1]^n has bP >= ceil(L/(2 eps))^n",
        (_DETERMINISTIC, _CLASS, "sup error at most eps < L/2"),
        _DERIVED,
        Stated(
            _CLAIM_1,
            "depth O(log n) and polynomial width, poly(n, 1/eps), approximate every Lipschitz function of n tokens",
            (),
            "false: at fixed L/eps > 2 bP grows exponentially with n, whatever the depth (and P itself for real parameters without "
            "exponentials: 4P(t + 2) >= ceil(L/(2 eps))^n); it contradicts Teorema 1 as well",
        ),
    )


def packing_mean(length: int, lipschitz: float, error: float, bits: int) -> Bound:
    """The same in mean square: some measure on the cube makes even root-mean-square error eps cost exponentially many parameters.

    b P >= max_k (1 - H2((2 eps (k-1)/L)^2)) k^n. Proof: mu is uniform on the grid, h = L/(2(k-1)). Where a model has the wrong sign it
    errs by at least h, so within eps of f in L2(mu) it has at most (eps/h)^2 k^n wrong signs and serves a Hamming ball of sign choices.

    Parameters
    ----------
    length : int
        n, numbers in [0, 1].
    lipschitz, error : float
        L in the max norm, and the root-mean-square error eps < L / (2 sqrt 2), both in units of f.
    bits : int
        b, bits per parameter.

    Returns
    -------
    Bound
        `parameters`, `bits`, lower bounds; `points_per_axis` of the measure.

    Notes
    -----
    Accuracy: *bound*. Cost: O(1); at most 1000 grids are tried, each a valid bound.

    Examples
    --------
    >>> packing_mean(length=20, lipschitz=1.0, error=0.05, bits=64)["points_per_axis"]
    7
    """
    call = "packing_mean"
    n, b = count(call, "length", length), count(call, "bits", bits)
    L = number(call, "lipschitz", lipschitz, 0, open_below=True)
    limit = L / (2 * math.sqrt(2))
    eps = number(call, "error", error, 0, limit, open_below=True, meaning="above it half of all signs may be wrong")
    most = math.floor(limit / eps) + 1
    power(call, most, n)
    grids = range(2, most + 1, max(1, most // _CANDIDATES))
    wrong = {k: (2 * eps * (k - 1) / L) ** 2 for k in grids}
    needed, k = max((spare(min(wrong[k], 0.5)) * k**n, k) for k in grids)
    return Bound(
        call,
        (
            Quantity("parameters", least_count(needed / b), "1", "bound", "fewest parameters"),
            Quantity("bits", needed, "bit", "bound", "fewest bits in all parameters together"),
            Quantity("points_per_axis", k, "1", "exact", "grid points per axis of the measure"),
        ),
        "for the uniform measure on some grid, root-mean-square error eps for every L-Lipschitz function needs bP of order (L/eps)^n",
        (_DETERMINISTIC, _CLASS, "root-mean-square error under that measure at most eps < L/(2 sqrt 2)"),
        _DERIVED,
        Stated(
            "2.1 (Barron)",
            "functions of bounded first derivative are approximated to O(1/sqrt(m)) by m neurons",
            (),
            "false for that class: with parameters of b bits the error falls no faster than (bP)^(-1/n), up to constants; the class with "
            "that rate is Barron's (see barron)",
        ),
    )


def error_floor(length: int, lipschitz: float, parameters_per_layer: int, depth: int, bits: int) -> Bound:
    """Smallest sup error that a model of given size can have on the whole Lipschitz class: a power of its size, never an exponential.

    eps >= L / (2 floor((b P)^(1/n))), P = depth times parameters per layer: :func:`packing` solved for eps.

    Parameters
    ----------
    length : int
        n, numbers in [0, 1].
    lipschitz : float
        L in the max norm, units of f.
    parameters_per_layer, depth, bits : int

    Returns
    -------
    Bound
        `error`, a lower bound of the worst sup error over the class.

    Notes
    -----
    Accuracy: *bound*; the root is taken in whole numbers. Cost: O(n).

    Examples
    --------
    >>> error_floor(length=24, lipschitz=1.0, parameters_per_layer=10**6, depth=12, bits=32).value
    0.25
    """
    call = "error_floor"
    n, b = count(call, "length", length), count(call, "bits", bits)
    L = number(call, "lipschitz", lipschitz, 0, open_below=True)
    layers = count(call, "depth", depth)
    capacity = b * layers * count(call, "parameters_per_layer", parameters_per_layer)
    k = _root(capacity, n)
    return Bound(
        call,
        (Quantity("error", L / (2 * k), "same as f", "bound", "least sup error over the whole class"),),
        "on the class of all L-Lipschitz functions the sup error is at least L / (2 floor((bP)^(1/n)))",
        (_DETERMINISTIC, _CLASS, "the worst function of the class; one function alone may be easy"),
        _DERIVED,
        Stated(
            "Observação 1",
            "EAM(L) = a exp(-b L) + c with a = 0.82, b = 0.15, c = 0.018",
            (("EAM", 0.82 * math.exp(-0.15 * layers) + 0.018),),
            "five models of four depths that differ in width and data fit any such curve; for the Lipschitz class the error is at least "
            "c depth^(-1/n), so no exponential law holds",
        ),
    )


def _root(value: int, n: int) -> int:
    """floor(value^(1/n)), exactly."""
    if n >= value.bit_length():  # 2^n is more already
        return 1
    k = max(1, round(2 ** (math.log2(value) / n)))
    while k**n > value:
        k -= 1
    while (k + 1) ** n <= value:
        k += 1
    return k
