r"""Closed forms of expansion coefficients: erf-GELU in every family, ReLU where its kink allows one.

On w = z - m the basis of Taylor and Hermite is  H_0 = 1, H_1 = w, H_{k+1} = w H_k - k v H_{k-1},  which is s^k He_k(w / s) for
variance v = s^2 (Hermite: orthogonal under N(m, v)) and w^k for v = 0 (Taylor at m). The coefficients have one closed form as
well, of which Taylor is the limit v -> 0: d_k = E[g^(k)(m + s X)] / k! with X standard normal.
"""

import math

import torch
from torch import Tensor

from oplens.errors import ArgumentError


def check_order(order: int) -> None:
    """Refuse orders below 1 with a sentence."""
    if isinstance(order, bool) or not isinstance(order, int):
        raise ArgumentError(f"expand(order={order!r}): order must be a whole number, got {type(order).__name__}.")
    if order < 1:
        raise ArgumentError(f"expand(order={order}): order must be at least 1; order 1 is the waves themselves.")


def normal_cdf(x: Tensor) -> Tensor:
    """Standard normal distribution function, relatively accurate in both tails (torch's own loses the left one to 1 + erf)."""
    return torch.special.erfc(x * -math.sqrt(0.5)) / 2


def gelu(z: Tensor) -> Tensor:
    """Erf-form GELU, z Phi(z)."""
    return z * normal_cdf(z)


def normal_density(x: Tensor) -> Tensor:
    """Standard normal density."""
    return torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def hermite_values(q: Tensor, order: int) -> list[Tensor]:
    """He_n(q) / sqrt(n!) for n = 0..order, which high orders do not overflow."""
    scaled = [torch.ones_like(q), q]
    for n in range(1, order):
        scaled.append((q * scaled[n] - math.sqrt(n) * scaled[n - 1]) / math.sqrt(n + 1))
    return scaled[: order + 1]


def gelu_coefficients(centre: Tensor, variance: Tensor, order: int) -> Tensor:
    r"""Coefficients d_0..d_order of erf-GELU in the basis above.

    With u = sqrt(1 + variance), q = centre / u:

        d_0 = centre Phi(q) + (variance / u) phi(q)        d_1 = Phi(q) + q phi(q) / u^2
        d_k = (-1)^k u^(1-k) phi(q) (He_{k-2}(q) - He_k(q) / u^2) / k!        k >= 2

    Parameters
    ----------
    centre, variance : Tensor, (d_model,)
        Of the Gaussian the expansion is adapted to; variance 0 gives the Taylor coefficients at `centre`.
    order : int
        At least 1.

    Returns
    -------
    Tensor, (d_model, order + 1)

    Notes
    -----
    Accuracy: *exact*, a few eps times the largest of the two subtracted terms. He_n / sqrt(n!) is what is recurred, so that high
    orders do not overflow. Cost: O(d_model order).

    Examples
    --------
    >>> import torch
    >>> zero = torch.zeros(1, dtype=torch.float64)
    >>> [round(v, 6) + 0.0 for v in gelu_coefficients(zero, zero, 4)[0].tolist()]  # z/2 + z^2/sqrt(2 pi) - z^4/(6 sqrt(2 pi))
    [0.0, 0.5, 0.398942, 0.0, -0.06649]
    """
    check_order(order)
    u = torch.sqrt(1 + variance)
    q = centre / u
    density = normal_density(q)
    below = normal_cdf(q)
    columns = [centre * below + variance / u * density, below + q * density / u**2]
    scaled = hermite_values(q, order)
    for k in range(2, order + 1):
        # 1/k! = (k!)^(-1/2) (k!)^(-1/2): one half belongs to the scaled He, the other is formed in logarithms.
        half = math.exp(-0.5 * math.lgamma(k + 1))
        bracket = scaled[k - 2] / math.sqrt(k * (k - 1)) - scaled[k] / u**2
        columns.append((-1) ** k * u ** (1 - k) * density * bracket * half)
    return torch.stack(columns, dim=-1)


def gelu_chebyshev(radius: Tensor, order: int) -> Tensor:
    r"""Chebyshev coefficients of erf-GELU on [-radius, radius].

    With q = radius^2 / 4 and the scaled Bessel functions J_k = exp(-q) I_k(q):

        a_0 = sqrt(2/pi) q (J_0 + J_1)        a_1 = radius / 2        a_{2k+1} = 0
        a_{2k} = (-1)^(k+1) sqrt(2/pi) (2 q (J_k + J_{k+1}) + 2 k (2k+1) J_k) / (4 k^2 - 1)        k >= 1

    from the series of exp(-radius^2 x^2 / 2), integrated and multiplied by x; the recurrence of I_k turned every difference into
    a sum, so nothing cancels. The signs alternate: at the ends of the interval the error of the truncation is the whole tail.

    Parameters
    ----------
    radius : Tensor, (d_model,)
        Positive.
    order : int
        At least 1.

    Returns
    -------
    Tensor, (d_model, order + 1)

    Notes
    -----
    Accuracy: *exact*, relative 1e-13 in every coefficient. Cost: O(d_model order) Bessel functions.

    Examples
    --------
    >>> import torch
    >>> a = gelu_chebyshev(torch.tensor([2.0], dtype=torch.float64), 30)[0]
    >>> bool(abs(a.sum() - gelu(torch.tensor(2.0, dtype=torch.float64))) < 1e-14)  # every T_k is 1 at the right end
    True
    """
    from scipy.special import ive

    check_order(order)
    half = order // 2
    q = radius[:, None] ** 2 / 4
    # scipy, not torch: torch has I_0 and I_1 only
    bessel = torch.from_numpy(ive(torch.arange(half + 2, dtype=torch.float64).numpy(), q.numpy()))
    coefficients = torch.zeros(len(radius), order + 1, dtype=torch.float64)
    root = math.sqrt(2 / math.pi)
    coefficients[:, 0] = root * q[:, 0] * (bessel[:, 0] + bessel[:, 1])
    coefficients[:, 1] = radius / 2
    k = torch.arange(1, half + 1, dtype=torch.float64)
    sum_of_two = 2 * q * (bessel[:, 1:-1] + bessel[:, 2:]) + 2 * k * (2 * k + 1) * bessel[:, 1:-1]
    coefficients[:, 2::2] = (1 - 2 * ((k + 1) % 2)) * root * sum_of_two / (4 * k * k - 1)
    return coefficients


def relu_coefficients(centre: Tensor, variance: Tensor, order: int) -> Tensor:
    r"""Coefficients of ReLU in the basis above.

    With s = sqrt(variance), q = centre / s:

        d_0 = centre Phi(q) + s phi(q)        d_1 = Phi(q)        d_k = (-1)^k s^(1-k) phi(q) He_{k-2}(q) / k!        k >= 2

    Where variance is 0 it is ReLU's own Taylor series, a straight line, which has no meaning at 0.

    Raises
    ------
    ArgumentError
        Variance 0 at centre 0.

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, dtype=torch.float64)
    >>> [round(v, 4) for v in relu_coefficients(0 * one, one, 2)[0].tolist()]  # 1/sqrt(2 pi), 1/2, 1/(2 sqrt(2 pi))
    [0.3989, 0.5, 0.1995]
    """
    check_order(order)
    if bool(((variance == 0) & (centre == 0)).any()):
        raise ArgumentError(
            "expand: ReLU has no Taylor series at 0, where it bends, and no Hermite expansion about a feature that is always 0; "
            "choose hermite, chebyshev or empirical, and leave out features that never move."
        )
    s = torch.sqrt(variance)
    point = s == 0
    # so far out that the density is 0 whatever s is, and only the straight line is left
    far = 1e6
    q = torch.where(point, far * torch.sign(centre), (centre / torch.where(point, 1.0, s)).clamp(-far, far))
    below = normal_cdf(q)
    columns = [centre * below + s * normal_density(q), below]
    scaled = hermite_values(q, max(order - 2, 1))
    logarithm = torch.log(torch.where(point, 1.0, s))
    for k in range(2, order + 1):
        size = math.lgamma(k - 1) / 2 - math.lgamma(k + 1) - math.log(2 * math.pi) / 2
        density = torch.exp(size - q * q / 2 + (1 - k) * logarithm)
        columns.append((-1) ** k * density * torch.where(density == 0, 0.0, scaled[k - 2]))
    return torch.stack(columns, dim=-1)


def relu_chebyshev(centre: Tensor, radius: Tensor, order: int) -> Tensor:
    r"""Chebyshev coefficients of ReLU on [centre - radius, centre + radius].

    With x_0 = -centre / radius clipped to [-1, 1] and theta = arccos x_0, radius times

        a_0 = (sin theta - x_0 theta) / pi        a_1 = (theta - sin theta cos theta) / pi
        a_k = (sin((k+1) theta) / (k+1) + sin((k-1) theta) / (k-1) - 2 x_0 sin(k theta) / k) / pi.

    Examples
    --------
    >>> import torch
    >>> one = torch.ones(1, dtype=torch.float64)
    >>> [round(v, 4) for v in relu_chebyshev(0 * one, one, 2)[0].tolist()]  # 1/pi, 1/2, 2/(3 pi)
    [0.3183, 0.5, 0.2122]
    """
    check_order(order)
    x = -centre / radius
    inside = x.clamp(-1, 1)
    theta = torch.acos(inside)
    # right of the kink the interval sees the line centre + radius x itself, left of it nothing
    columns = [torch.where(x < -1, -x, (torch.sin(theta) - inside * theta) / math.pi)]
    columns.append((theta - torch.sin(theta) * torch.cos(theta)) / math.pi)
    for k in range(2, order + 1):
        outer = torch.sin((k + 1) * theta) / (k + 1) + torch.sin((k - 1) * theta) / (k - 1)
        columns.append(torch.where(x.abs() < 1, (outer - 2 * inside * torch.sin(k * theta) / k) / math.pi, 0.0))
    return radius[:, None] * torch.stack(columns, dim=-1)
