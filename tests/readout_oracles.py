"""Readouts, their polynomials and coefficients at many digits, by mpmath and plain recurrences only."""

import mpmath

CUBIC = "0.044715"


def _tanh_gelu(z):
    return z / (1 + mpmath.exp(-2 * mpmath.sqrt(2 / mpmath.pi) * (z + mpmath.mpf(CUBIC) * z**3)))


READOUTS = {
    "gelu": lambda z: z * mpmath.erfc(-z / mpmath.sqrt(2)) / 2,
    "gelu_tanh": _tanh_gelu,
    "silu": lambda z: z / (1 + mpmath.exp(-z)),
    "relu": lambda z: z if z > 0 else mpmath.mpf(0),
    "sigmoid": lambda z: 1 / (1 + mpmath.exp(-z)),
    "tanh": mpmath.tanh,
}
SMOOTH = [name for name in READOUTS if name != "relu"]


def hermite(name, m, s, order):
    """E[g(m + s X) He_k(X)] / (k! s^k) by a fine trapezoidal rule."""
    g = READOUTS[name]
    step = min(mpmath.mpf(1) / 12, mpmath.mpf("0.12") / s)
    totals = [mpmath.mpf(0)] * (order + 1)
    for j in range(-int(18 / step), int(18 / step) + 1):
        x = step * j
        value = step * mpmath.npdf(x) * g(m + s * x)
        before, he = mpmath.mpf(0), mpmath.mpf(1)
        for k in range(order + 1):
            totals[k] += value * he
            before, he = he, x * he - k * before
    return [total / mpmath.factorial(k) / s**k for k, total in enumerate(totals)]


def polynomial(expansion, feature=0):
    """The expansion's polynomial of one feature as a function of an mpmath number.

    Chebyshev by cosines' own recurrence on the interval, Hermite and powers by theirs; an empirical one by its recurrence.
    """
    c = [mpmath.mpf(v) for v in expansion.coefficients[feature].tolist()]
    m, v = (mpmath.mpf(x[feature].item()) for x in (expansion.centre, expansion.variance))
    if expansion.series is None:
        shift, back, slope, scale = [0] * len(c), [k * v for k in range(len(c))], [1] * len(c), 1
    else:
        series = expansion.series
        c = [mpmath.mpf(x) for x in series.coefficients[feature].tolist()]
        scale = mpmath.mpf(series.scale[feature].item())
        if expansion.family == "chebyshev":
            shift, back, slope = [0] * len(c), [1] * len(c), [1] + [2] * len(c)
        else:
            shift, back = ([mpmath.mpf(x) for x in y[feature].tolist()] for y in (series.shift, series.back))
            slope = [1] * len(c)

    def evaluate(z):
        u = (z - m) / scale
        before, value, total = mpmath.mpf(0), mpmath.mpf(1), mpmath.mpf(0)
        for k, coefficient in enumerate(c):
            total += coefficient * value
            if k + 1 < len(c):
                before, value = value, slope[k] * (u - shift[k]) * value - back[k] * before
        return total

    return evaluate
