r"""Where the poles of a diagonal system start: S4D-Lin, S4D-Inv and S4D-Real, for n < P = d_state / 2.

    lin    A_n = -1/2 + i pi n
    inv    A_n = -1/2 + i (N / pi) (N / (2n + 1) - 1),   N = d_state
    real   A_n = -(n + 1)

Source: Gu et al. 2022 (arXiv 2206.11893), section 4. There N counts both members of every conjugate pair while n runs over the
stored half, as in its public code (whose S4D-Real also has P poles, each counted twice by 2 Re).
"""

import math

import torch
from torch import Tensor

from oplens.errors import ArgumentError
from oplens.operators import INITIALISATIONS


def initial_poles(initialisation: str, d_state: int) -> tuple[Tensor, Tensor]:
    """Decay sigma_n = -Re A_n > 0 and frequency omega_n = Im A_n per unit model time, two (P,) tensors.

    Parameters
    ----------
    initialisation : {"lin", "inv", "real"}
    d_state : int
        State size counting both members of every conjugate pair; even.

    Raises
    ------
    ArgumentError
        If the initialisation is unknown, or d_state is not even and positive.

    Notes
    -----
    Accuracy: *exact* to single precision, which is what parameters are kept in. No random numbers are drawn.

    Examples
    --------
    >>> sigma, omega = initial_poles("lin", 8)
    >>> sigma.tolist(), [round(w, 4) for w in omega.tolist()]
    ([0.5, 0.5, 0.5, 0.5], [0.0, 3.1416, 6.2832, 9.4248])
    """
    if d_state < 2 or d_state % 2:
        raise ArgumentError(
            f"initial_poles(d_state={d_state}): d_state counts conjugate pairs, so it is even and at least 2."
        )
    n = torch.arange(d_state // 2)
    half = 0.5 * torch.ones(d_state // 2)
    if initialisation == "lin":
        # Single precision throughout, as the reference does it: its initial poles are matched bit for bit.
        return half, (math.pi * n).float()
    if initialisation == "inv":
        return half, (d_state / math.pi * (d_state / (2 * n.double() + 1) - 1)).float()
    if initialisation == "real":
        return half + (n + 0.5), torch.zeros(d_state // 2)
    raise ArgumentError(
        f"initial_poles(initialisation={initialisation!r}): choose one of {', '.join(INITIALISATIONS)}."
    )
