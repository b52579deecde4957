"""What depth buys: linear pieces, lookup in logarithmic depth, and how to split a budget between depth and width."""

import math

from oplens.errors import ArgumentError
from oplens.theory.statement import Bound, Quantity, Stated, count, number, power

# Sinusoids take twice as many coordinates; the gap is found by going through all positions and all of them.
MOST_FREQUENCIES = 1000
_TRADE_OFF = Stated(
    "contribution 3",
    "fundamental trade-offs between depth and width",
    (),
    "stated without a formula; for linear pieces the trade-off is exponential, for lookup there is none (a depth of 2 suffices)",
)


def linear_pieces(widths: list[int]) -> Bound:
    """Most linear pieces of a ReLU network of one input: prod_l (w_l + 1).

    Proof: on p pieces shared by all units so far, each new unit is one ReLU of an affine function and adds at most one break to each
    piece, so w units make p + w p pieces at most. Skips from earlier layers add no breaks.

    Parameters
    ----------
    widths : sequence of int
        Units in each hidden layer.

    Returns
    -------
    Bound
        `pieces`, on the whole line.

    Notes
    -----
    Accuracy: *bound*; attained by one layer. Cost: O(layers).

    Examples
    --------
    >>> linear_pieces(widths=[2, 2, 2]).value
    27
    """
    call = "linear_pieces"
    try:
        units = [count(call, f"widths[{i}]", w) for i, w in enumerate(widths)]
    except TypeError:
        raise ArgumentError(
            f"{call}(widths={widths!r}): widths must be a sequence of whole numbers, one for each hidden layer."
        ) from None
    if not units:
        raise ArgumentError(
            f"{call}(widths=[]): widths is empty; without hidden layers a network is affine, one piece."
        )
    if sum(math.log2(w + 1) for w in units) > 1000:
        raise ArgumentError(
            f"{call}: more than 2^1000 pieces, more than this counts; the formula stands, prod (w_l + 1)."
        )
    return Bound(
        call,
        (Quantity("pieces", math.prod(w + 1 for w in units), "1", "bound", "most linear pieces along any line"),),
        "a ReLU network has at most prod_l (w_l + 1) linear pieces along any line through its input",
        ("feed-forward with ReLU, skip connections allowed; no attention",),
        "derived for this library; Telgarsky 2016 (arXiv 1602.04485) has the idea with another constant",
        _TRADE_OFF,
    )


def sawtooth_width(folds: int, depth: int) -> Bound:
    """Width that depth L needs for the sawtooth of 2^k pieces, which depth k and width 2 give exactly.

    (w + 1)^L >= 2^k. Proof: the sawtooth is 0, 1, 0, ... at 2^k + 1 points; within less than 1/2 of it a function crosses 1/2 between
    any two neighbours, and a linear piece crosses 1/2 once at most. The constant 1/2 has error 1/2.

    Parameters
    ----------
    folds : int
        k: the tent map folded k times on [0, 1].
    depth : int
        L, hidden layers.

    Returns
    -------
    Bound
        `width` (lower bound), `pieces` = 2^k, `width_at_depth_folds` = 2 (suffices, exactly).

    Notes
    -----
    Accuracy: *bound*. Cost: O(log width).

    Examples
    --------
    >>> sawtooth_width(folds=20, depth=2).value, sawtooth_width(folds=20, depth=20).value
    (1023, 1)
    """
    call = "sawtooth_width"
    k, layers = count(call, "folds", folds, 1, 1000), count(call, "depth", depth)
    low, high = 1, 2 ** -(-k // layers) - 1  # the upper end suffices: its power is at least 2^k
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if (middle + 1) ** layers >= 2**k else (middle + 1, high)
    return Bound(
        call,
        (
            Quantity("width", low, "1", "bound", "fewest units per layer for sup error < 1/2"),
            Quantity("pieces", 2**k, "1", "exact", "linear pieces of the sawtooth"),
            Quantity("width_at_depth_folds", 2, "1", "bound", "units per layer that give it exactly at depth k"),
        ),
        "sup error < 1/2 on the sawtooth of 2^k pieces needs (w + 1)^L >= 2^k",
        (
            "feed-forward ReLU, L hidden layers of width w, skips allowed; no attention",
            "the sawtooth runs between 0 and 1 on [0, 1]",
        ),
        "derived for this library from linear_pieces; after Telgarsky 2016 (arXiv 1602.04485)",
        _TRADE_OFF,
    )


def score_gap(frequencies: int, length: int) -> float:
    """min over 1 <= m < n of sum_k (1 - cos(w_k m)), w_k = 10000^(-k/K): how far the right position's score stands above all others.

    Parameters
    ----------
    frequencies : int
        K sinusoids.
    length : int
        n positions.

    Returns
    -------
    float

    Examples
    --------
    >>> round(score_gap(frequencies=4, length=2048), 3)
    0.208
    """
    K = count("score_gap", "frequencies", frequencies, 1, MOST_FREQUENCIES)
    n = count("score_gap", "length", length, 2, 10**6)
    w = [10000.0 ** (-k / K) for k in range(K)]
    # 1 - cos = 2 sin^2(./2) keeps the digits of small angles.
    return min(math.fsum(2 * math.sin(x * m / 2) ** 2 for x in w) for m in range(1, n))


def lookup_size(length: int, vocabulary: int, frequencies: int, outputs: int = 1) -> Bound:
    """Size of a transformer that looks up any function of n symbols exactly: logarithmic depth, exponential width.

    Depth ceil(log2 n), w_l = ceil(n/2^(L-l)); residual 2K + 2 sum_{l<L} V^(w_l) + m; FFN V^n; non-zeros
    V + 6KL + 2 sum_{l<L} V^(w_l) + 8 sum_{1<=l<L} V^(w_l) + 2(3+m) V^n; temperature ln(4(n-1))/gap in real arithmetic.

    Parameters
    ----------
    length, vocabulary : int
        n >= 2 symbols from V.
    frequencies : int
        K positional sinusoids, in 2K coordinates of their own.
    outputs : int
        m.

    Returns
    -------
    Bound
        `nonzeros`, `depth`, `residual_width`, `ffn_width`, `score_gap`, `temperature`.

    Notes
    -----
    Accuracy: *bound* (it suffices), in real arithmetic; floats need a larger temperature. Cost: O(K n).

    Examples
    --------
    >>> lookup_size(length=4, vocabulary=4, frequencies=4).value
    2268
    """
    call = "lookup_size"
    n, V = count(call, "length", length, 2, 10**6), count(call, "vocabulary", vocabulary, 2)
    K, m = count(call, "frequencies", frequencies, 1, MOST_FREQUENCIES), count(call, "outputs", outputs)
    table = power(call, V, n)
    L = (n - 1).bit_length()
    codes = [V ** -(-n // 2 ** (L - layer)) for layer in range(L)]
    gap = score_gap(K, n)
    nonzeros = V + 6 * K * L + 2 * sum(codes) + 8 * sum(codes[1:]) + 2 * (3 + m) * table
    return Bound(
        call,
        (
            Quantity("nonzeros", nonzeros, "1", "bound", "non-zero parameters that suffice"),
            Quantity("depth", L, "1", "bound", "layers that suffice"),
            Quantity("residual_width", 2 * K + 2 * sum(codes) + m, "1", "bound", "residual coordinates that suffice"),
            Quantity("ffn_width", table, "1", "bound", "units of the last feed-forward layer"),
            Quantity("score_gap", gap, "1", "exact", "least gap between the right position's score and another's"),
            Quantity(
                "temperature",
                math.log(4 * (n - 1)) / gap,
                "1",
                "bound",
                "inverse temperature that suffices in real arithmetic",
            ),
        ),
        "any function of n symbols from V is computed exactly at depth ceil(log2 n) with O(V^n) non-zeros and one head",
        ("a skip connection", "positions in 2K coordinates of their own", "softmax in real arithmetic, clipped gates"),
        "derived for this library (the paper's Lema 1 with the skip connection that it lacks)",
        Stated(
            "Lema 1",
            "depth ceil(log2 n), width O(V^n), one head, exact",
            (("depth", float(math.ceil(math.log2(n)))), ("width", float(table))),
            "true with a skip connection and positions in coordinates of their own; the residual needs only O(V^ceil(n/2)), and depth 2 suffices",
        ),
    )


def depth_width(
    budget: float, depth_coefficient: float, depth_power: float, width_coefficient: float, width_power: float
) -> Bound:
    """Best depth and width under B = L d^2 when the error is alpha L^-p + gamma d^-q.

    d* = (q gamma B^p / (2 p alpha))^(1/(2p+q)), L* = B/d*^2; so L* ~ B^(q/(2p+q)), d* ~ B^(p/(2p+q)), both B^(1/3) iff p = q.

    Parameters
    ----------
    budget : float
        B.
    depth_coefficient, depth_power : float
        alpha, p.
    width_coefficient, width_power : float
        gamma, q.

    Returns
    -------
    Bound
        `error` at the optimum, `depth`, `width`, `depth_exponent`, `width_exponent`.

    Notes
    -----
    Accuracy: *exact* for the assumed law, over real L and d. Cost: O(1).

    Examples
    --------
    >>> best = depth_width(budget=1e6, depth_coefficient=1.0, depth_power=1.0, width_coefficient=2.0, width_power=1.0)
    >>> round(best["depth"], 6), round(best["width"], 6)
    (100.0, 100.0)
    """
    call = "depth_width"
    names = ("budget", "depth_coefficient", "depth_power", "width_coefficient", "width_power")
    given = (budget, depth_coefficient, depth_power, width_coefficient, width_power)
    B, alpha, p, gamma, q = (number(call, name, x, open_below=True) for name, x in zip(names, given, strict=True))
    log_d = (math.log(q) + math.log(gamma) - math.log(2 * p) - math.log(alpha) + p * math.log(B)) / (2 * p + q)
    log_L = math.log(B) - 2 * log_d
    if max(abs(log_d), abs(log_L), abs(p * log_L), abs(q * log_d)) > 300:
        raise ArgumentError(
            f"{call}: at these constants the optimum is beyond float64; give powers and coefficients nearer to 1."
        )
    error = alpha * math.exp(-p * log_L) + gamma * math.exp(-q * log_d)
    exponents = (q / (2 * p + q), p / (2 * p + q))
    return _split(call, B, math.exp(log_L), math.exp(log_d), error, "alpha L^-p + gamma d^-q", exponents)


def depth_width_exponential(
    budget: float, depth_coefficient: float, depth_rate: float, width_coefficient: float, width_power: float
) -> Bound:
    """Best depth and width under B = L d^2 with the paper's own law of depth: error a exp(-b L) + gamma d^-beta.

    L* solves b L + (beta/2 - 1) ln L = ln(2 a b / (beta gamma)) + (beta/2) ln B (the larger root), so L* ~ (beta/(2b)) ln B: the
    paper's exponential law and its cube root cannot both hold.

    Parameters
    ----------
    budget : float
        B.
    depth_coefficient, depth_rate : float
        a, b.
    width_coefficient, width_power : float
        gamma, beta.

    Returns
    -------
    Bound
        `error`, `depth`, `width`.

    Raises
    ------
    ArgumentError
        If the error has no interior minimum at depth of at least 1: then one layer is best, or the budget is too small.

    Notes
    -----
    Accuracy: *exact* for the assumed law, over real L >= 1, to 1e-12. Cost: O(1).

    Examples
    --------
    >>> best = depth_width_exponential(1e9, depth_coefficient=0.82, depth_rate=0.15, width_coefficient=1.0, width_power=1.0)
    >>> round(best["depth"], 3), round(best.stated.values[0][1])
    (74.078, 1000)
    """
    from scipy.optimize import brentq

    call = "depth_width_exponential"
    names = ("budget", "depth_coefficient", "depth_rate", "width_coefficient", "width_power")
    given = (budget, depth_coefficient, depth_rate, width_coefficient, width_power)
    B, a, b, gamma, beta = (number(call, name, x, open_below=True) for name, x in zip(names, given, strict=True))
    target = math.log(2 * a) + math.log(b) - math.log(beta) - math.log(gamma) + beta / 2 * math.log(B)
    if abs(target) > 1e6 * b or abs(target) > 1e6:
        raise ArgumentError(
            f"{call}: at these constants the optimum is beyond a million layers; give constants nearer to 1."
        )

    def slope(L: float) -> float:
        return b * L + (beta / 2 - 1) * math.log(L) - target

    start = max(1.0, (1 - beta / 2) / b)  # beyond it slope() rises, so a root there is the one minimum
    if slope(start) >= 0:
        raise ArgumentError(
            f"{call}(budget={B:g}): with these constants the error has no minimum at a depth above {start:g}; "
            "more depth never pays at this budget. Give a larger budget or one layer."
        )
    stop = start
    while slope(stop) < 0:
        stop *= 2
    L = float(brentq(slope, start, stop, xtol=1e-13, rtol=1e-13))
    d = math.sqrt(B / L)
    error = a * math.exp(-b * L) + gamma * d**-beta
    if error > a * math.exp(-b) + gamma * B ** (-beta / 2):
        raise ArgumentError(f"{call}(budget={B:g}): one layer is better than every deeper split at these constants.")
    return _split(call, B, L, d, error, "a exp(-b L) + gamma d^-beta", None)


def _split(
    call: str, B: float, L: float, d: float, error: float, law: str, exponents: tuple[float, float] | None
) -> Bound:
    quantities = [
        Quantity("error", error, "same as f", "exact", "error at the optimum"),
        Quantity("depth", L, "1", "exact", "optimal depth"),
        Quantity("width", d, "1", "exact", "optimal width"),
    ]
    if exponents is not None:
        quantities.append(Quantity("depth_exponent", exponents[0], "1", "exact", "L* grows as B to this power"))
        quantities.append(Quantity("width_exponent", exponents[1], "1", "exact", "d* grows as B to this power"))
    stated = (("depth", B ** (1 / 3)), ("width", B ** (2 / 3)), ("L d^2 / B", B ** (2 / 3)))
    return Bound(
        call,
        tuple(quantities),
        f"the minimum of {law} under L d^2 = B",
        (f"error = {law} exactly (an assumed law; constants from a fit carry its intervals)", "real L and d"),
        "derived for this library",
        Stated(
            "Observação 2",
            "L* = B^(1/3), d* = B^(2/3) under B = L d^2",
            stated,
            "inconsistent: L d^2 would be B^(5/3). The optimum depends on both laws; both exponents are 1/3 iff p = q",
        ),
    )
