r"""How far a model moves when its parameters do: the Jacobian's norm decides, not the Lipschitz constant of the target.

T(theta + e) = T(theta) + J e + R,    norm(R) <= M norm(e)^2 / 2    (M bounds the second derivative in theta)
"""

import math

from oplens.errors import ArgumentError
from oplens.theory.statement import Bound, Quantity, Stated, count, flag, number, numbers

_GAUSSIAN = "every parameter gets independent noise N(0, sigma^2)"
_AT_A_POINT = "at one input x, expectation over the noise; the mean over inputs follows with means on both sides, a supremum does not"


def _theorem_2(value: float | None) -> Stated:
    return Stated(
        "Teorema 2",
        "E norm(f - T~) <= eps + O(sigma sqrt(P) L_f)",
        () if value is None else (("error", value),),
        "false: L_f is the target's Lipschitz constant in x and says nothing about T's parameters. f = T = 0 as 0 * ReLU(100 x) has "
        "error 0.80 at sigma = 0.01, x = 1, where it states 0",
    )


def perturbation(
    error: float, noise: float, jacobian_norm: float, curvature: float, parameters: int, lipschitz: float | None = None
) -> Bound:
    """Expected error of a model whose parameters all carry Gaussian noise.

    E norm(f - T~) <= eps + sigma norm(J)_F + M sigma^2 P / 2, and sqrt(2/pi) sigma norm(J)_F <= E norm(J e) <= sigma norm(J)_F. Proof:
    Taylor, Jensen with E norm(J e)^2 = sigma^2 norm(J)_F^2 and E norm(e)^2 = sigma^2 P; below, norm(J e)^2 = sum s_i^2 g_i^2, the mean
    of its root is concave in the s_i^2, so least where all of the sum is in one, where it is E abs(g) = sqrt(2/pi).

    Parameters
    ----------
    error : float
        eps = norm(f(x) - T(x)), units of f.
    noise : float
        sigma, standard deviation of each parameter.
    jacobian_norm : float
        norm(dT/dtheta)_F at x; units of f per unit of parameter.
    curvature : float
        M: norm(D^2 T[e, e]) <= M norm(e)^2 for all parameters and e; 0 if T is linear in its parameters.
    parameters : int
        P.
    lipschitz : float, optional
        L_f, only for the paper's formula.

    Returns
    -------
    Bound
        `error`; `first_order`, `first_order_lower` (of E norm(J e)), `remainder`.

    Notes
    -----
    Accuracy: *bound*; the first order is sharp to 20 %, or exact by :func:`first_order`. Cost: O(1).

    Examples
    --------
    T(x) = w2 w1 x at w2 = 0, w1 = 100, x = 1: J = (100, 0) and M = 1.

    >>> bound = perturbation(error=0.0, noise=0.01, jacobian_norm=100.0, curvature=1.0, parameters=2, lipschitz=0.0)
    >>> bound.value, round(bound["first_order_lower"], 2), bound.stated.value
    (1.0001, 0.8, 0.0)
    """
    call = "perturbation"
    eps, sigma = number(call, "error", error), number(call, "noise", noise)
    J, M = number(call, "jacobian_norm", jacobian_norm), number(call, "curvature", curvature)
    P = count(call, "parameters", parameters)
    stated = None if lipschitz is None else eps + sigma * math.sqrt(P) * number(call, "lipschitz", lipschitz)
    first, remainder = sigma * J, M * sigma**2 * P / 2
    return Bound(
        call,
        (
            Quantity("error", eps + first + remainder, "same as f", "bound", "expected error of the perturbed model"),
            Quantity("first_order", first, "same as f", "bound", "upper bound of E norm(J e)"),
            Quantity(
                "first_order_lower", math.sqrt(2 / math.pi) * first, "same as f", "bound", "lower bound of E norm(J e)"
            ),
            Quantity("remainder", remainder, "same as f", "bound", "beyond first order"),
        ),
        "E norm(f - T~) <= eps + sigma norm(J_theta T)_F + M sigma^2 P / 2",
        (_GAUSSIAN, _AT_A_POINT, "T twice differentiable in its parameters with curvature at most M everywhere"),
        "derived for this library; the proof is in the docstring",
        _theorem_2(stated),
    )


def first_order(noise: float, singular_values: list[float]) -> Bound:
    """E norm(J e) for Gaussian e, from the singular values of J.

    E sqrt(Q) = 1/sqrt(pi) int_0^inf (1 - prod_i (1 + 2 u^2 s_i^2)^(-1/2)) / u^2 du, times sigma; Q = sum s_i^2 g_i^2.

    Parameters
    ----------
    noise : float
        sigma.
    singular_values : sequence of float
        s_i of J, zeros allowed.

    Returns
    -------
    Bound
        `error`; `frobenius` = sigma norm(J)_F, the bound that :func:`perturbation` uses.

    Notes
    -----
    Accuracy: *exact*, to the 1e-8 of its quadrature. Cost: O(len(singular_values)) for each of some hundred nodes.

    Examples
    --------
    >>> round(first_order(noise=0.01, singular_values=[100.0]).value, 6)
    0.797885
    """
    from scipy.integrate import quad

    call = "first_order"
    sigma = number(call, "noise", noise)
    s = numbers(call, "singular_values", singular_values)
    norm = math.hypot(*s)
    squares = [(x / norm) ** 2 for x in s if x > 0] if norm > 0 else []

    def integrand(u: float) -> float:
        return -math.expm1(-0.5 * sum(math.log1p(2 * u * u * x) for x in squares)) / (u * u)

    # 1 - prod ~ u^2 at 0 and ~ 1 at infinity: the two halves are smooth, the second in 1/u.
    halves = (lambda u: integrand(u) if u > 1e-8 else 1.0, lambda v: integrand(1 / v) / v**2 if v > 1e-8 else 1.0)
    mean = sum(quad(half, 0, 1, epsabs=1e-10, epsrel=1e-10, limit=200)[0] for half in halves) / math.sqrt(math.pi)
    return Bound(
        call,
        (
            Quantity("error", sigma * norm * mean if squares else 0.0, "same as f", "exact", "E norm(J e)"),
            Quantity("frobenius", sigma * norm, "same as f", "bound", "sigma norm(J)_F"),
        ),
        "E norm(J e) for e ~ N(0, sigma^2 I) is a single integral over the singular values of J",
        (_GAUSSIAN, "first order: the model linearised in its parameters at one input"),
        "derived for this library: E sqrt(Q) from the Laplace transform of Q",
        _theorem_2(None),
    )


def layerwise_spectral(norms: list[float], noises: list[float], input_norm: float, residual: bool = False) -> Bound:
    """Largest change of a feed-forward stack under any perturbation of its weights of given spectral norms.

    norm(T~(x) - T(x)) <= norm(x) (prod (s_l + e_l) - prod s_l), s_l = norm(W_l), e_l = norm(W~_l - W_l); s_l + 1 in place of s_l with
    residual connections. Proof: norm(x~_l) <= prod (s + e) norm(x), and D_l <= e_l norm(x~_{l-1}) + s_l D_{l-1}, by induction.

    Parameters
    ----------
    norms, noises : sequence of float
        s_l and e_l, layer by layer.
    input_norm : float
        norm(x).
    residual : bool
        x_l = x_{l-1} + phi(W_l x_{l-1}) instead of x_l = phi(W_l x_{l-1}).

    Returns
    -------
    Bound
        `error`; `output_norm`, a bound of norm(T(x)).

    Notes
    -----
    Accuracy: *bound*, attained when all W_l and their perturbations are aligned and phi is the identity. Cost: O(layers).

    Examples
    --------
    >>> layerwise_spectral(norms=[2.0, 3.0], noises=[0.1, 0.1], input_norm=1.0).value
    0.51
    """
    call = "layerwise_spectral"
    s = numbers(call, "norms", norms, meaning="spectral norm of a layer")
    e = numbers(call, "noises", noises, length=len(s), meaning="spectral norm of a perturbation")
    return _layerwise(
        call, s, e, number(call, "input_norm", input_norm), residual, "error of any perturbation of these norms"
    )


def layerwise_gaussian(
    norms: list[float], shapes: list[tuple[int, int]], noise: float, input_norm: float, residual: bool = False
) -> Bound:
    """Expected change of a feed-forward stack whose weights all carry Gaussian noise.

    :func:`layerwise_spectral` with e_l = sigma (sqrt(m_l) + sqrt(n_l)) in expectation, for W_l of m_l by n_l: the layers' noises are
    independent, so the expected product is the product of expectations, and E norm(G) <= sqrt(m) + sqrt(n) for standard Gaussian G.

    Parameters
    ----------
    norms : sequence of float
        s_l = norm(W_l).
    shapes : sequence of (int, int)
        (m_l, n_l); n_{l+1} = m_l.
    noise, input_norm : float
        sigma, norm(x).
    residual : bool
        As in :func:`layerwise_spectral`.

    Returns
    -------
    Bound
        `error` (expected), `output_norm`.

    Notes
    -----
    Accuracy: *bound*. Cost: O(layers).

    Examples
    --------
    >>> round(layerwise_gaussian([1.0, 1.0], [(16, 9), (4, 16)], noise=0.01, input_norm=1.0).value, 6)
    0.1342
    """
    call = "layerwise_gaussian"
    s = numbers(call, "norms", norms, meaning="spectral norm of a layer")
    sigma = number(call, "noise", noise)
    try:
        sides = [numbers(call, f"shapes[{i}]", shape, least=1, length=2) for i, shape in enumerate(shapes)]
    except TypeError:
        raise ArgumentError(
            f"{call}(shapes={shapes!r}): shapes must be a sequence of (rows, columns), one for each layer."
        ) from None
    e = numbers(call, "shapes", [sigma * (math.sqrt(m) + math.sqrt(n)) for m, n in sides], length=len(s))
    return _layerwise(
        call, s, e, number(call, "input_norm", input_norm), residual, "expected error under Gaussian noise"
    )


def _layerwise(
    call: str, s: tuple[float, ...], e: tuple[float, ...], size: float, residual: bool, long_name: str
) -> Bound:
    residual = flag(call, "residual", residual)
    gains = [x + 1 if residual else x for x in s]
    # The difference of products as a sum of its positive terms: the products themselves would cancel.
    moved, reach = 0.0, 1.0
    for gain, noise in zip(gains, e, strict=True):
        moved, reach = moved * gain + noise * reach, reach * (gain + noise)
    gaussian = call == "layerwise_gaussian"
    return Bound(
        call,
        (
            Quantity("error", size * moved, "same as f", "bound", long_name),
            Quantity("output_norm", size * math.prod(gains), "same as f", "bound", "norm of the unperturbed output"),
        ),
        f"{'E ' if gaussian else ''}norm(T~ - T) <= norm(x) "
        + ("(prod_l (1 + s_l + e_l) - prod_l (1 + s_l))" if residual else "(prod_l (s_l + e_l) - prod_l s_l)")
        + (", e_l = sigma (sqrt(m_l) + sqrt(n_l))" if gaussian else ""),
        (
            f"x_l = {'x_{l-1} + ' if residual else ''}phi(W_l x_{{l-1}}), phi 1-Lipschitz with phi(0) = 0, as ReLU (GELU's constant is "
            "1.129); biases as a column that meets a constant coordinate of x",
            *((_GAUSSIAN,) if gaussian else ()),
        ),
        "derived for this library by induction"
        + ("; E norm(G) <= sqrt(m) + sqrt(n): Gordon's inequality, Davidson & Szarek 2001" if gaussian else ""),
        _theorem_2(None),
    )
