"""Real parameters: what counting cannot bound, the Vapnik-Chervonenkis dimension does."""

import math

from oplens.theory.statement import Bound, Quantity, Stated, count

_GOLDBERG_JERRUM = (
    "Goldberg & Jerrum 1995 (Machine Learning 18:131), with the constant of Anthony & Bartlett 1999, "
    "Neural Network Learning, chapter 8"
)
_OPERATIONS = (
    "computed by at most t operations on reals: + - * /, comparisons, output; no exponentials, so attention is uniform, hard or linear "
    "(for softmax no bound of this order is known here)"
)


def vc_dimension(parameters: int, operations: int) -> Bound:
    """Largest number of inputs that P real parameters and t operations can label in every way.

    VCdim <= 4 P (t + 2).

    Parameters
    ----------
    parameters : int
        P, real numbers of unlimited precision.
    operations : int
        t: arithmetic operations and comparisons of one forward pass, all positions counted.

    Returns
    -------
    Bound
        `vc_dimension`, an upper bound.

    Notes
    -----
    Accuracy: *bound*. Cost: O(1).

    Examples
    --------
    >>> vc_dimension(parameters=5, operations=9).value
    220
    """
    call = "vc_dimension"
    P, t = count(call, "parameters", parameters), count(call, "operations", operations)
    return Bound(
        call,
        (Quantity("vc_dimension", 4 * P * (t + 2), "1", "bound", "most inputs that can be labelled in every way"),),
        "a family of P real parameters evaluated in t operations has VC dimension at most 4P(t + 2)",
        (_OPERATIONS, "two labels"),
        _GOLDBERG_JERRUM,
    )


def real_parameters(length: int, operations_per_parameter: int) -> Bound:
    """Real parameters that hold every Boolean function of n bits: about 2^(n/2), not 2^n.

    Below: 4 P (k P + 2) >= 2^n for t = k P operations, since all 2^n inputs must be labelled in every way. Above: a ReLU network with
    n + 3 2^h + 25 2^(n-h) + 1 non-zeros, for the best h: the first h bits select a weight by 2^h hinges, and 2^(n-h) steps of doubling
    read out of that weight's binary digits the one that the other bits name. Its weights need 2^(n-h) bits each, so it agrees with
    :func:`sup_parameters`: it hides the table in the precision.

    Parameters
    ----------
    length : int
        n, input bits.
    operations_per_parameter : int
        k: operations of a forward pass divided by parameters; about 2 without weight sharing, about 2n when n positions share weights.

    Returns
    -------
    Bound
        `parameters` (lower bound), `parameters_upper` (enough, by that construction), `bits_upper` (of its longest weight).

    Notes
    -----
    Accuracy: *bound*, both. Cost: O(n).

    Examples
    --------
    >>> bound = real_parameters(length=40, operations_per_parameter=2)
    >>> bound.value, bound["parameters_upper"], round(bound.stated.value)
    (370728, 19136553, 7451528584)
    """
    call = "real_parameters"
    n = count(call, "length", length, 1, 1000, "input bits n; a table of 2^n values is counted")
    k = count(call, "operations_per_parameter", operations_per_parameter)
    # 4 k P^2 + 8 P >= 2^n: the positive root, rounded up in whole numbers.
    least = max(1, (math.isqrt(4 + k * 2**n) - 2) // (2 * k))
    while 4 * least * (k * least + 2) < 2**n:
        least += 1
    h = min(range(n + 1), key=lambda h: 3 * 2**h + 25 * 2 ** (n - h))
    return Bound(
        call,
        (
            Quantity("parameters", least, "1", "bound", "fewest real parameters"),
            Quantity("parameters_upper", n + 3 * 2**h + 25 * 2 ** (n - h) + 1, "1", "bound", "parameters that suffice"),
            Quantity("bits_upper", 2 ** (n - h), "bit", "bound", "binary digits of the construction's longest weight"),
        ),
        "every Boolean function of n bits needs 4P(kP + 2) >= 2^n real parameters, and O(2^(n/2)) suffice",
        (_OPERATIONS, "below: t <= kP", "above: a ReLU network that reads the n bits, exact arithmetic"),
        f"below: {_GOLDBERG_JERRUM}; above: derived for this library, built and checked in its tests. Up to logarithms both are known: "
        "Vardi, Yehudai & Shamir (arXiv 2110.03187); for transformers Kajitsuka & Sato (arXiv 2409.17677)",
        Stated(
            "Teorema 1",
            "Omega(2^n / (n log n)) parameters for an arbitrary Boolean function with error < 1/4",
            (("parameters", 2.0**n / (n * math.log(n))),) if n > 1 else (),
            "false for real parameters: O(2^(n/2)) suffice, which any constant times 2^n / (n log n) exceeds from some n on",
        ),
    )
