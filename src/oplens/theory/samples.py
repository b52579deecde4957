"""How many samples make the training error true: for a stated capacity, uniformly over the family."""

import math

from oplens.theory.statement import Bound, Quantity, Stated, count, flag, number

_SAMPLES = "samples independent, from the distribution that is tested; loss between 0 and 1"
_STATED = Stated(
    "Resumo",
    "recent results on the sample complexity that uniform convergence needs",
    (),
    "named in the abstract and given nowhere; a number needs a stated capacity, which approximation theory does not bound from above",
)


def sample_complexity(error: float, failure: float, bits: int, realisable: bool = False) -> Bound:
    """Samples after which training and true error agree within eps for every one of 2^C models.

    N >= (C ln 2 + ln(2/delta)) / (2 eps^2); if only models without training error count, N >= (C ln 2 + ln(1/delta)) / eps. Proof:
    Hoeffding and a union over models; a model of true error above eps survives N samples with probability at most exp(-eps N).

    Parameters
    ----------
    error : float
        eps, in (0, 1).
    failure : float
        delta: probability that the statement fails, in (0, 1).
    bits : int
        C = bP, the capacity: the family has at most 2^C models.
    realisable : bool
        The second case: every model that fits all N samples has true error at most eps.

    Returns
    -------
    Bound
        `samples`, sufficient.

    Notes
    -----
    Accuracy: *bound*. Cost: O(1).

    Examples
    --------
    >>> sample_complexity(error=0.05, failure=0.05, bits=1000).value
    139368
    """
    call = "sample_complexity"
    eps = number(call, "error", error, 0, 1, open_below=True)
    delta = number(call, "failure", failure, 0, 1, open_below=True, meaning="probability of failure")
    C = count(call, "bits", bits, 0)
    if flag(call, "realisable", realisable):
        samples = math.ceil((C * math.log(2) + math.log(1 / delta)) / eps * (1 + 1e-12))
        statement = "with probability 1 - delta every model that fits N samples has true error at most eps"
    else:
        samples = math.ceil((C * math.log(2) + math.log(2 / delta)) / (2 * eps**2) * (1 + 1e-12))
        statement = (
            "with probability 1 - delta training and true error differ by at most eps for every model of the family"
        )
    return Bound(
        call,
        (Quantity("samples", samples, "1", "bound", "samples that suffice"),),
        statement,
        (_SAMPLES, "at most 2^C models, fixed before the samples are seen", *(("loss 0 or 1",) if realisable else ())),
        "Hoeffding 1963 and the union bound; realisable case Blumer, Ehrenfeucht, Haussler & Warmuth 1987",
        _STATED,
    )


def vc_sample_complexity(error: float, failure: float, vc_dimension: int) -> Bound:
    """The same for real parameters, from a VC dimension.

    4 (2eN/D)^D exp(-eps^2 N / 8) <= delta; the smallest N from which on it holds.

    Parameters
    ----------
    error, failure : float
        eps and delta, in (0, 1).
    vc_dimension : int
        D; :func:`oplens.theory.vc_dimension` bounds it.

    Returns
    -------
    Bound
        `samples`, sufficient.

    Notes
    -----
    Accuracy: *bound*. Cost: O(log N).

    Examples
    --------
    >>> vc_sample_complexity(error=0.1, failure=0.05, vc_dimension=10).value
    89880
    """
    call = "vc_sample_complexity"
    eps = number(call, "error", error, 0, 1, open_below=True)
    delta = number(call, "failure", failure, 0, 1, open_below=True, meaning="probability of failure")
    D = count(call, "vc_dimension", vc_dimension)

    def excess(N: int) -> float:
        return math.log(4 / delta) + D * math.log(2 * math.e * N / D) - eps**2 * N / 8

    low = math.ceil(8 * D / eps**2)  # from here on the logarithm falls
    high = low
    while excess(high) > 0:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if excess(middle) <= 0 else (middle + 1, high)
    return Bound(
        call,
        (Quantity("samples", low, "1", "bound", "samples that suffice"),),
        "with probability 1 - delta training and true error differ by at most eps for every function of the family",
        (_SAMPLES, "loss 0 or 1, family of VC dimension at most D, fixed before the samples are seen"),
        "Vapnik & Chervonenkis 1971 with Sauer's lemma: P(gap > eps) <= 4 m(2N) exp(-eps^2 N/8), m(2N) <= (2eN/D)^D",
        _STATED,
    )


def generalisation_gap(samples: int, failure: float, bits: int) -> Bound:
    """Largest gap between training and true error after N samples, for every one of 2^C models: :func:`sample_complexity` solved for eps.

    sqrt((C ln 2 + ln(2/delta)) / (2N)).

    Parameters
    ----------
    samples : int
        N.
    failure : float
        delta, in (0, 1).
    bits : int
        C = bP.

    Returns
    -------
    Bound
        `gap`; 1 or more says nothing.

    Notes
    -----
    Accuracy: *bound*. Cost: O(1).

    Examples
    --------
    >>> round(generalisation_gap(samples=139368, failure=0.05, bits=1000).value, 6)
    0.05
    """
    call = "generalisation_gap"
    N, C = count(call, "samples", samples), count(call, "bits", bits, 0)
    delta = number(call, "failure", failure, 0, 1, open_below=True, meaning="probability of failure")
    gap = math.sqrt((C * math.log(2) + math.log(2 / delta)) / (2 * N))
    return Bound(
        call,
        (Quantity("gap", gap, "1", "bound", "largest difference of training and true error"),),
        "with probability 1 - delta training and true error differ by at most the gap for every model of the family",
        (_SAMPLES, "at most 2^C models, fixed before the samples are seen"),
        "Hoeffding 1963 and the union bound",
        _STATED,
    )


def sampled_maximum(samples: int, failure: float) -> Bound:
    """Fraction of inputs that may still err more than the largest error seen: a sampled maximum is only a lower bound of the sup.

    With probability 1 - delta at most 1 - delta^(1/N) of the inputs err more. Proof: were it a fraction p, all N samples would have
    missed it with probability (1 - p)^N.

    Parameters
    ----------
    samples : int
        N independent inputs.
    failure : float
        delta, in (0, 1).

    Returns
    -------
    Bound
        `fraction`.

    Notes
    -----
    Accuracy: *bound*; exact for errors without ties. Cost: O(1).

    Examples
    --------
    >>> round(sampled_maximum(samples=299, failure=0.05).value, 4)
    0.01
    """
    call = "sampled_maximum"
    N = count(call, "samples", samples)
    delta = number(call, "failure", failure, 0, 1, open_below=True, meaning="probability of failure")
    return Bound(
        call,
        (Quantity("fraction", -math.expm1(math.log(delta) / N), "1", "bound", "fraction of inputs that may err more"),),
        "with probability 1 - delta at most 1 - delta^(1/N) of the inputs err more than the largest error in N samples",
        ("inputs drawn independently from the distribution meant",),
        "derived for this library: (1 - p)^N",
        Stated(
            "Definição 2",
            "(L, d, h, eps)-approximable: norm(f(x) - T(x)) <= eps for every x of length n <= N_max",
            (),
            "a supremum, which samples cannot show; the paper's EAM is a mean over samples and is at most the supremum",
        ),
    )
