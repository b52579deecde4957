"""Stability of softmax attention on bounded inputs, and how the layers of a transformer compose."""

import math

from oplens.theory.statement import Bound, Quantity, Stated, count, number, numbers

_THEOREM_2 = Stated(
    "Teorema 2",
    "E norm(f - T~) <= eps + O(sigma sqrt(P) L_f)",
    (),
    "false (see perturbation); a bound must know the norms of T's own weights and of its inputs",
)


def attention_stability(
    radius: float, value_norm: float, score_norm: float, value_noise: float = 0.0, score_noise: float = 0.0
) -> Bound:
    r"""How far the output of one softmax attention head moves with its input and with its weights, whatever the length.

    out_i = V sum_j p_ij x_j, p_i = softmax_j(x_i^T A x_j), norms max_i norm(x_i)_2. On tokens of norm at most r

        Lipschitz constant  <= norm(V) (1 + 2 r^2 norm(A)),      deviation  <= r norm(dV) + r^3 norm(V) norm(dA)

    Proof: d out_i = V sum p dx_j + V Cov_i A^T dx_i + V sum_j p_ij (x_j - mean_i) x_i^T A dx_j; the covariance of vectors of norm at
    most r has norm at most r^2, and sum p norm(x_j - mean) <= r. A change of A enters as V Cov_i dA^T x_i.

    Parameters
    ----------
    radius : float
        r: every token's norm, at both inputs compared (a ball, hence convex).
    value_norm, score_norm : float
        Spectral norms of V = W_O W_V and of A = W_Q^T W_K / sqrt(d_head), row vectors or columns alike.
    value_noise, score_noise : float
        Spectral norms of the changes of V and A.

    Returns
    -------
    Bound
        `lipschitz`, `deviation`. Heads add up; a skip connection adds 1 to `lipschitz`.

    Notes
    -----
    Accuracy: *bound*. Cost: O(1). Without a radius there is none: dot-product attention is not Lipschitz on unbounded inputs.

    Examples
    --------
    >>> bound = attention_stability(radius=1.0, value_norm=2.0, score_norm=0.5, value_noise=0.01, score_noise=0.02)
    >>> bound.value, bound["deviation"]
    (4.0, 0.05)
    """
    call = "attention_stability"
    r = number(call, "radius", radius, open_below=True)
    v, a = number(call, "value_norm", value_norm), number(call, "score_norm", score_norm)
    dv, da = number(call, "value_noise", value_noise), number(call, "score_noise", score_noise)
    return Bound(
        call,
        (
            Quantity(
                "lipschitz", v * (1 + 2 * r**2 * a), "1", "bound", "Lipschitz constant in max over tokens of the 2-norm"
            ),
            Quantity(
                "deviation", r * dv + r**3 * v * da, "same as x", "bound", "largest change of the output by the weights"
            ),
        ),
        "on tokens of norm at most r a softmax head is norm(V)(1 + 2 r^2 norm(A))-Lipschitz, and its weights move it by at most "
        "r norm(dV) + r^3 norm(V) norm(dA)",
        (
            "every token of norm at most r",
            "softmax over any set of visible positions, any additive position bias that does not change",
            "no biases in queries, keys and values, or biases as columns that meet a constant coordinate of the tokens, counted in r",
        ),
        "derived for this library; compare Kim, Papamakarios & Mnih (arXiv 2006.04710), Castin, Ablin & Peyré (arXiv 2312.14820)",
        _THEOREM_2,
    )


def layer_composition(lipschitz: list[float], deviations: list[float]) -> Bound:
    """Largest change of the output of a stack, from what each layer's weights move by and how each layer passes changes on.

    norm(T~(x) - T(x)) <= sum_l delta_l prod_{j > l} lambda_j. Proof: D_l <= norm(B~_l(u~) - B_l(u~)) + norm(B_l(u~) - B_l(u)) <=
    delta_l + lambda_l D_{l-1}.

    Parameters
    ----------
    lipschitz, deviations : sequence of float
        lambda_l and delta_l, first layer first; on a set that holds both models' states.

    Returns
    -------
    Bound
        `error`.

    Notes
    -----
    Accuracy: *bound*. Cost: O(layers).

    Examples
    --------
    >>> layer_composition(lipschitz=[4.0, 3.0], deviations=[0.05, 0.25]).value
    0.4
    """
    call = "layer_composition"
    passed = numbers(call, "lipschitz", lipschitz)
    moved = numbers(call, "deviations", deviations, length=len(passed))
    total = 0.0
    for gain, own in zip(passed, moved, strict=True):
        total = own + gain * total
    return Bound(
        call,
        (Quantity("error", total, "same as f", "bound", "largest change of the output"),),
        "norm(T~ - T) <= sum_l delta_l prod_{j > l} lambda_j",
        ("lambda_l and delta_l hold on a set that contains the states of both models at layer l",),
        "derived for this library by induction",
        _THEOREM_2,
    )


def performer_features(query_key_norm: float, features: int, error: float = 0.1, confidence: float = 0.95) -> Bound:
    """Variance of the Performer's estimate of exp(q.k) from m positive random features, and the features a given error needs.

    Relative variance (exp(norm(q + k)^2) - 1)/m. Proof: phi(q) phi(k) = exp(w.(q+k) - (norm(q)^2 + norm(k)^2)/2), w standard normal,
    and E exp(2 w.(q+k)) = exp(2 norm(q+k)^2). By Chebyshev m >= (exp(norm(q+k)^2) - 1)/(error^2 (1 - confidence)).

    Parameters
    ----------
    query_key_norm : float
        norm(q + k), after the scaling by d_head^(-1/4); up to 18.
    features : int
        m, independent features.
    error, confidence : float
        Relative error wanted of exp(q.k), and how surely.

    Returns
    -------
    Bound
        `relative_variance` (exact), `features_needed` (sufficient).

    Notes
    -----
    Accuracy: *exact* for one unnormalised weight with independent features; orthogonal features vary less. Cost: O(1).

    Examples
    --------
    >>> round(performer_features(query_key_norm=2.0, features=64).value, 4)
    0.8375
    """
    call = "performer_features"
    size = number(
        call,
        "query_key_norm",
        query_key_norm,
        0,
        18.0,
        meaning="norm(q + k); exp of its square must stay finite in use",
    )
    m = count(call, "features", features)
    wanted = number(call, "error", error, 0, open_below=True)
    sure = number(call, "confidence", confidence, 0, 1, open_below=True)
    spread = math.expm1(size**2)
    return Bound(
        call,
        (
            Quantity("relative_variance", spread / m, "1", "exact", "variance of the estimate over its squared mean"),
            Quantity(
                "features_needed",
                max(1, math.ceil(spread / (wanted**2 * (1 - sure)))),
                "1",
                "bound",
                "features that suffice",
            ),
        ),
        "m positive random features estimate exp(q.k) with relative variance (exp(norm(q + k)^2) - 1)/m",
        ("independent standard normal features", "one unnormalised attention weight; the normaliser errs as well"),
        "derived for this library; the features are those of Choromanski et al. 2021 (arXiv 2009.14794)",
        Stated(
            "2.2 (Performer)",
            "Attention = phi(Q) (phi(K)^T V), which preserves the approximation properties at cost O(n)",
            (),
            "the normaliser D^-1, D = diag(phi(Q) phi(K)^T 1), is missing; and the features needed grow like exp(norm(q + k)^2)",
        ),
    )
