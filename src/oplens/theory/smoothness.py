r"""Barron's class, its constant and its rate; and what a polynomial activation cannot do.

C_f = int norm(w) abs(F(w)) dw    with    f(x) = f(0) + int (exp(i w.x) - 1) F(w) dw
"""

import math

from oplens.errors import ArgumentError
from oplens.theory.statement import Bound, Quantity, Stated, count, number, numbers

_BARRON = "Barron 1993 (IEEE Trans. Inform. Theory 39:930): squared error at most (2 r C_f)^2 / m"
_STATED = "functions of bounded first derivative are approximated to O(1/sqrt(m)) by m hidden neurons"
_WRONG = (
    "the class is a finite first Fourier moment C_f, with the constant 2 r C_f, in L2(mu); for all functions of bounded first derivative "
    "no such rate holds with parameters of any fixed number of bits (packing_mean)"
)


def barron(constant: float, radius: float, units: int) -> Bound:
    """Error of the best m sigmoidal units for a function of Barron constant C on a ball of radius r.

    norm(f - f_m) <= 2 r C / sqrt(m) in L2(mu), for every probability measure mu on the ball.

    Parameters
    ----------
    constant : float
        C_f, units of f per unit of x; :func:`barron_gaussian` and :func:`barron_cosines` give some.
    radius : float
        r, units of x.
    units : int
        m sigmoidal units; each is the difference of two ReLUs.

    Returns
    -------
    Bound
        `error` (root mean square), `relu_units` = 2m, `coefficients` = 2 r C, a bound of the sum of absolute output weights.

    Notes
    -----
    Accuracy: *bound*; existence, not what training finds. Cost: O(1).

    Examples
    --------
    >>> barron(constant=3.0, radius=1.0, units=144).value
    0.5
    """
    call = "barron"
    C, r = number(call, "constant", constant), number(call, "radius", radius, open_below=True)
    m = count(call, "units", units)
    return Bound(
        call,
        (
            Quantity(
                "error", 2 * r * C / math.sqrt(m), "same as f", "bound", "root-mean-square error of the best m units"
            ),
            Quantity("relu_units", 2 * m, "1", "bound", "ReLUs that do the same"),
            Quantity("coefficients", 2 * r * C, "same as f", "bound", "sum of absolute output weights needed"),
        ),
        "some f(0) + sum of m sigmoidal units is within 2 r C_f / sqrt(m) of f in L2(mu)",
        (
            "f(x) = f(0) + int (exp(i w.x) - 1) F(w) dw on the ball, int norm(w) abs(F) <= C",
            "mu any probability measure on the ball of radius r",
            "units sigmoidal: bounded and measurable, tending to 0 and 1",
        ),
        _BARRON,
        Stated("2.1 (Barron)", _STATED, (("error", 1 / math.sqrt(m)),), _WRONG),
    )


def barron_units(constant: float, radius: float, error: float) -> Bound:
    """Sigmoidal units that suffice for root-mean-square error eps: m = ceil((2 r C / eps)^2).

    Parameters
    ----------
    constant, radius, error : float
        C_f, r and eps, as in :func:`barron`.

    Returns
    -------
    Bound
        `units`, `relu_units`.

    Notes
    -----
    Accuracy: *bound*. Cost: O(1).

    Examples
    --------
    >>> barron_units(constant=3.0, radius=1.0, error=0.5).value
    144
    """
    call = "barron_units"
    C, r = number(call, "constant", constant), number(call, "radius", radius, open_below=True)
    eps = number(call, "error", error, open_below=True)
    ratio = 2 * r * C / eps
    if ratio > 1e150:
        raise ArgumentError(
            f"{call}: 2 r C / error is {ratio:g}, and its square is no finite number of units; allow a larger error."
        )
    m = max(1, math.ceil(ratio**2))
    return Bound(
        call,
        (
            Quantity("units", m, "1", "bound", "sigmoidal units that suffice"),
            Quantity("relu_units", 2 * m, "1", "bound", "ReLUs that suffice"),
        ),
        "m = ceil((2 r C_f / eps)^2) sigmoidal units reach root-mean-square error eps",
        ("as for barron",),
        _BARRON,
        Stated("2.1 (Barron)", _STATED, (("units", 1 / eps**2),), _WRONG),
    )


def barron_gaussian(length: int, scale: float) -> Bound:
    """Barron constant of exp(-norm(x)^2 / (2 s^2)) in n dimensions: sqrt(2) Gamma((n+1)/2) / (s Gamma(n/2)), about sqrt(n)/s.

    Proof: F is the density of N(0, I/s^2), so C is the mean norm of such a vector.

    Parameters
    ----------
    length : int
        n.
    scale : float
        s, units of x.

    Returns
    -------
    Bound
        `constant`.

    Notes
    -----
    Accuracy: *exact*. Cost: O(1).

    Examples
    --------
    >>> round(barron_gaussian(length=1, scale=1.0).value, 6)
    0.797885
    """
    call = "barron_gaussian"
    n, s = count(call, "length", length), number(call, "scale", scale, open_below=True)
    value = math.sqrt(2) * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2)) / s
    return Bound(
        call,
        (Quantity("constant", value, "same as f per unit of x", "exact", "first Fourier moment of the Gaussian"),),
        "C = sqrt(2) Gamma((n+1)/2) / (s Gamma(n/2)) for exp(-norm(x)^2/(2 s^2))",
        ("f = exp(-norm(x)^2/(2 s^2)) on all of R^n; on a ball another extension of f may have a smaller constant",),
        "derived for this library, for the constant of Barron 1993",
        Stated("2.1 (Barron)", _STATED, (("largest derivative", math.exp(-0.5) / s),), _WRONG),
    )


def barron_cosines(amplitudes: list[float], frequencies: list[float]) -> Bound:
    """Barron constant of sum_j a_j cos(w_j.x + b_j): at most sum_j abs(a_j) norm(w_j).

    Parameters
    ----------
    amplitudes : sequence of float
        a_j.
    frequencies : sequence of float
        norm(w_j), radians per unit of x.

    Returns
    -------
    Bound
        `constant`.

    Notes
    -----
    Accuracy: *bound*; equal to the constant of this representation when no two w_j agree up to sign. Cost: O(terms).

    Examples
    --------
    >>> barron_cosines(amplitudes=[1.0, -0.5], frequencies=[2.0, 6.0]).value
    5.0
    """
    call = "barron_cosines"
    a = numbers(call, "amplitudes", amplitudes, least=-math.inf)
    w = numbers(call, "frequencies", frequencies, length=len(a))
    value = math.fsum(abs(x) * y for x, y in zip(a, w, strict=True))
    return Bound(
        call,
        (Quantity("constant", value, "same as f per unit of x", "bound", "first Fourier moment of a sum of cosines"),),
        "C <= sum_j abs(a_j) norm(w_j) for sum_j a_j cos(w_j.x + b_j)",
        ("any phases b_j",),
        "derived for this library: each cosine is two point masses of abs(a_j)/2 at +-w_j",
        Stated("2.1 (Barron)", _STATED, (), _WRONG),
    )


def polynomial_span(length: int, degree: int, depth: int = 1) -> Bound:
    """What networks with a polynomial activation can ever be, at any width: a space of finite dimension, with a target they miss.

    Degree K = degree^depth, dimension C(n + K, n). x_1^(K+1) stays 2^-K away on [-1, 1]^n in sup norm. Proof: layers compose to a
    polynomial of total degree K; at x_2 = ... = 0 Chebyshev's theorem gives the distance, which T_{K+1}'s lower terms attain.

    Parameters
    ----------
    length : int
        n inputs.
    degree : int
        Of the activation.
    depth : int
        Hidden layers.

    Returns
    -------
    Bound
        `dimension` (upper bound), `degree`, `distance` (sup distance of x_1^(K+1) from that space).

    Notes
    -----
    Accuracy: *bound* for the dimension, *exact* for degree and distance. Cost: O(min(n, K)).

    Examples
    --------
    >>> bound = polynomial_span(length=3, degree=2)
    >>> bound.value, bound["distance"]
    (10, 0.25)
    """
    call = "polynomial_span"
    n, k = count(call, "length", length, 1, 10**6), count(call, "degree", degree)
    layers = count(call, "depth", depth)
    if layers * math.log2(k) > 10:
        raise ArgumentError(
            f"{call}: {k}^{layers} exceeds degree 1024, more than this counts; the formula stands, C(n + K, n)."
        )
    K = k**layers
    dimension = math.comb(n + K, min(n, K))
    if dimension.bit_length() > 1000:
        raise ArgumentError(
            f"{call}: C({n + K}, {K}) exceeds 2^1000, more than this counts; the formula stands, C(n + K, n)."
        )
    return Bound(
        call,
        (
            Quantity("dimension", dimension, "1", "bound", "dimension of all such networks' span, at any width"),
            Quantity("degree", K, "1", "exact", "largest total degree"),
            Quantity(
                "distance", 2.0**-K, "same as f", "exact", "sup distance of x_1^(K+1) from that space on [-1, 1]^n"
            ),
        ),
        "networks with an activation of degree k span at most C(n + k^depth, n) dimensions and miss x_1^(K+1) by 2^-K",
        ("feed-forward, no products of units and no attention", "activation a polynomial of degree k"),
        "the counts derived for this library; the criterion, that a continuous activation is universal iff it is no polynomial, is of "
        "Leshno, Lin, Pinkus & Schocken 1993",
        Stated(
            "1 (Cybenko; Hornik et al.)",
            "one hidden layer with a non-polynomial activation approximates every continuous function on a compact set",
            (),
            "true for the activations it means, but the criterion is Leshno et al.'s; Cybenko and Hornik assume sigmoidal units",
        ),
    )
