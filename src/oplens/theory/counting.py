"""How many parameters of b bits it takes to hold Boolean functions: counting, the first ground every model stands on.

A model of P parameters of b bits each is one of 2^(bP) functions. Every bound here compares that number with how many functions
(or labellings) there are, and with how many of them one model can be near to.
"""

import math

from oplens.errors import ArgumentError
from oplens.theory.statement import Bound, Quantity, Stated, count, entropy, least_count, number, spare

EXACT_BALL = 4096  # points up to which a Hamming ball is counted; beyond, its entropy bound is used
_ONE_ARCHITECTURE = "one fixed architecture (several: add log2 of their number to bP)"
_DETERMINISTIC = "P parameters, each one of 2^b values, and a deterministic forward pass"
_DERIVED = "derived for this library by counting; the proof is in the docstring"


def log2_ball(points: int, radius: int) -> float:
    """log2 of the number of labellings of `points` points that differ from one in at most `radius`; rounded up.

    Counted up to 4096 points; beyond, points * H2(radius/points), which is at least as large for radius <= points/2.
    """
    if radius <= 0:
        return 0.0
    if points > EXACT_BALL:
        return points * entropy(min(radius / points, 0.5))
    term = total = 1
    for k in range(min(radius, points)):
        term = term * (points - k) // (k + 1)
        total += term
    return min(float(points), math.log2(total) * (1 + 1e-15))


def _mean_bits(points: int, error: float) -> float:
    """Bits that name a model with mean error <= `error` on any Boolean function of `points` points: the better of two bounds."""
    needed = spare(error) * points
    return max(needed, points - log2_ball(points, math.floor(2 * error * points))) if points <= EXACT_BALL else needed


def _stated_theorem_1(n: int) -> Stated:
    value = 2.0**n / (n * math.log(n)) if n > 1 else math.nan
    return Stated(
        "Teorema 1",
        "Omega(2^n / (n log n)) parameters for an arbitrary Boolean function with error < 1/4",
        (("parameters", value),) if n > 1 else (),
        "its proof gives bP >= 2^n and no more: weaker than that while b < n log n, and false for real parameters (see real_parameters)",
    )


def _length(call: str, value: int) -> int:
    return count(call, "length", value, 1, 1000, "input bits n; a table of 2^n values is counted")


def sup_parameters(length: int, bits: int) -> Bound:
    """Parameters that hold every Boolean function of n bits with sup error below 1/2.

    b P >= 2^n. Proof: rounding at 1/2 turns a model within less than 1/2 of f everywhere into f itself, so different functions need
    different parameters, and 2^(bP) >= 2^(2^n).

    Parameters
    ----------
    length : int
        n, input bits, up to 1000.
    bits : int
        b, bits per parameter.

    Returns
    -------
    Bound
        `parameters` and `bits`, lower bounds.

    Notes
    -----
    Accuracy: *bound*; attained by a table of 2^n one-bit parameters. Cost: O(1).

    Examples
    --------
    >>> sup_parameters(length=12, bits=16).value
    256
    """
    call = "sup_parameters"
    n, b = _length(call, length), count(call, "bits", bits)
    needed = 2**n
    return Bound(
        call,
        (
            Quantity("parameters", -(-needed // b), "1", "bound", "fewest parameters"),
            Quantity("bits", needed, "bit", "bound", "fewest bits in all parameters together"),
        ),
        "a model that is within less than 1/2 of every Boolean function of n bits, everywhere, has bP >= 2^n",
        (_DETERMINISTIC, _ONE_ARCHITECTURE, "sup error < 1/2 for every function (the worst case over functions)"),
        _DERIVED,
        _stated_theorem_1(n),
    )


def mean_parameters(length: int, bits: int, error: float) -> Bound:
    """Parameters that hold every Boolean function of n bits with mean error below 1/2.

    b P >= (1 - H2(eps)) 2^n. Proof: by Chernoff's argument one model T serves at most

        min over r > 0 of exp(r eps N) prod_x (exp(-r T(x)) + exp(-r (1 - T(x))))   of the functions, N = 2^n,

    each factor is convex in T(x), so at most 1 + exp(-r), and the minimum of exp(r eps N)(1 + exp(-r))^N is 2^(N H2(eps)). Rounding at
    1/2 gives (1 - H2(2 eps)) 2^n for eps < 1/4 (by Markov 2 eps N values are wrong at most); the ball of that radius, counted, is
    sometimes better at small n, and the better of the two is given.

    Parameters
    ----------
    length, bits : int
        n input bits, b bits per parameter.
    error : float
        eps, mean over all 2^n inputs of abs(f - T); below 1/2.

    Returns
    -------
    Bound
        `parameters`, `bits`, lower bounds; `bits_rounding`, the weaker one by rounding, 0 from 1/4 on.

    Notes
    -----
    Accuracy: *bound*. Cost: O(2^n) up to n = 12, O(1) beyond.

    Examples
    --------
    >>> mean_parameters(length=12, bits=16, error=0.05).value
    183
    """
    call = "mean_parameters"
    n, b = _length(call, length), count(call, "bits", bits)
    eps = number(call, "error", error, 0, 0.5, meaning="mean error; the constant 1/2 has 1/2 on every function")
    needed = _mean_bits(2**n, eps)
    rounding = spare(min(2 * eps, 0.5)) * 2**n
    return Bound(
        call,
        (
            Quantity("parameters", least_count(needed / b), "1", "bound", "fewest parameters"),
            Quantity("bits", needed, "bit", "bound", "fewest bits in all parameters together"),
            Quantity("bits_rounding", rounding, "bit", "bound", "fewest bits by rounding alone, (1 - H2(2 eps)) 2^n"),
        ),
        "a model whose mean error is at most eps < 1/2 for every Boolean function of n bits has bP >= (1 - H2(eps)) 2^n",
        (_DETERMINISTIC, _ONE_ARCHITECTURE, "mean absolute error over all 2^n inputs at most eps, for every function"),
        _DERIVED,
        _stated_theorem_1(n),
    )


def sparse_parameters(length: int, bits: int, parameters: int) -> Bound:
    """Non-zero parameters, among P slots, that hold every Boolean function of n bits with sup error below 1/2.

    s (b + log2(e P/s)) >= 2^n. Proof: a model with at most s non-zeros is named by s slots and their values, so there are at most
    C(P, s) 2^(bs) <= 2^(s (b + log2(eP/s))) of them; the exponent grows with s up to s = P.

    Parameters
    ----------
    length, bits : int
        n input bits, b bits per parameter.
    parameters : int
        P slots, zero or not.

    Returns
    -------
    Bound
        `nonzeros`, a lower bound.

    Raises
    ------
    ArgumentError
        If b P < 2^n: then no choice of non-zeros suffices.

    Notes
    -----
    Accuracy: *bound*. Cost: O(log P).

    Examples
    --------
    >>> sparse_parameters(length=12, bits=16, parameters=1_000_000).value
    136
    """
    call = "sparse_parameters"
    n, b, slots = _length(call, length), count(call, "bits", bits), count(call, "parameters", parameters)
    needed = 2**n
    if b * slots < needed:
        raise ArgumentError(
            f"{call}(length={n}, bits={b}, parameters={slots}): {slots} parameters of {b} bits hold {b * slots} bits, fewer than 2^{n}; "
            f"no non-zeros among them suffice. At least {-(-needed // b)} parameters are needed (sup_parameters)."
        )
    low, high = 1, slots
    while low < high:
        middle = (low + high) // 2
        room = middle * (b + math.log2(math.e * slots / middle))
        low, high = (low, middle) if room * (1 + 1e-12) >= needed else (middle + 1, high)
    return Bound(
        call,
        (Quantity("nonzeros", low, "1", "bound", "fewest non-zero parameters"),),
        "a model with s non-zeros in P slots that serves every Boolean function of n bits has s (b + log2(eP/s)) >= 2^n",
        (_DETERMINISTIC, _ONE_ARCHITECTURE, "which slots are non-zero may depend on the function", "sup error < 1/2"),
        _DERIVED,
        _stated_theorem_1(n),
    )


def representable_fraction(length: int, bits: int, parameters: int, error: float = 0.0) -> Bound:
    """Largest fraction of all Boolean functions of n bits that P parameters of b bits can serve.

    log2(fraction) <= bP - (1 - H2(eps)) 2^n for mean error eps, bP - 2^n for sup error < 1/2 (`error` = 0).

    Parameters
    ----------
    length, bits, parameters : int
        n input bits, b bits per parameter, P parameters.
    error : float
        eps: mean absolute error allowed, below 1/2; 0 is sup error < 1/2.

    Returns
    -------
    Bound
        `log2_fraction`, at most 0, an upper bound (a logarithm, because the fraction itself underflows).

    Notes
    -----
    Accuracy: *bound*. Cost: O(2^n) up to n = 12 with an error, else O(1).

    Examples
    --------
    >>> representable_fraction(length=10, bits=8, parameters=100).value
    -224.0
    """
    call = "representable_fraction"
    n, b, P = _length(call, length), count(call, "bits", bits), count(call, "parameters", parameters)
    eps = number(call, "error", error, 0, 0.5, meaning="mean error; 0 for sup error below 1/2")
    return Bound(
        call,
        (
            _fraction(
                b * P, 2**n if eps == 0 else _mean_bits(2**n, eps), "log2 of the fraction of Boolean functions served"
            ),
        ),
        "P parameters of b bits serve at most 2^(bP - 2^n) of all Boolean functions, 2^(bP - (1 - H2(eps)) 2^n) to mean error eps",
        (_DETERMINISTIC, _ONE_ARCHITECTURE, "sup error < 1/2, or mean absolute error at most eps < 1/2"),
        _DERIVED,
        _stated_theorem_1(n),
    )


def random_labels(samples: int, bits: int, parameters: int, error: float = 0.0) -> Bound:
    """Largest fraction of all labellings of N distinct inputs that P parameters of b bits can fit.

    log2(fraction) <= bP + log2 V(N, e N) - N for a training error of at most e. So random labels are fitted by chance only once bP
    is near N, and fitting them proves nothing about unseen inputs: approximation does not imply generalisation.

    Parameters
    ----------
    samples, bits, parameters : int
        N training inputs, b bits per parameter, P parameters.
    error : float
        e: fraction of training labels that may be wrong, below 1/2.

    Returns
    -------
    Bound
        `log2_fraction`, at most 0, an upper bound.

    Notes
    -----
    Accuracy: *bound*. Cost: O(N) up to N = 4096, O(1) beyond.

    Examples
    --------
    >>> random_labels(samples=1000, bits=4, parameters=200).value
    -200.0
    """
    call = "random_labels"
    N, b, P = count(call, "samples", samples), count(call, "bits", bits), count(call, "parameters", parameters)
    e = number(call, "error", error, 0, 0.5, meaning="training error; at 1/2 one of two constants fits every labelling")
    ball = log2_ball(N, math.floor(e * N * (1 + 1e-12)))  # 0.29 of 100 labels are 29, though 0.29 * 100 is below
    stated = Stated(
        "5.3, item 2",
        "perfect fit on training data with worse performance on unseen data is 'overfitting implícito' (Zhang et al.)",
        (),
        "Zhang et al. show that large models fit random labels; no such term is theirs. Whether labels can be fitted is counted here",
    )
    return Bound(
        call,
        (_fraction(b * P, N if ball == 0 else N - ball, "log2 of the fraction of labellings that can be fitted"),),
        "P parameters of b bits fit at most 2^(bP - N) of all labellings of N inputs (times a Hamming ball for a training error)",
        (_DETERMINISTIC, _ONE_ARCHITECTURE, "N distinct inputs, two labels, the model's output rounded to a label"),
        _DERIVED,
        stated,
    )


def _fraction(capacity: int, needed: int | float, long_name: str) -> Quantity:
    """min(0, capacity - needed), rounded up: it is the logarithm of an upper bound."""
    log2 = float(capacity - needed)
    exact = isinstance(needed, int) and int(log2) == capacity - needed
    return Quantity("log2_fraction", min(0.0, log2 if exact else log2 + 1e-15 * abs(needed)), "1", "bound", long_name)
