"""Random numbers of a seed: the same on every machine and for every length, whatever else was drawn before.

Normal numbers come from uniform ones by the inverse distribution function: torch's own normal sampler gives other first numbers when
more are asked for, and a decision would then depend on how long the batch was padded.
"""

import torch
from torch import Tensor


def uniforms(seed: int, *shape: int) -> Tensor:
    """Independent numbers in [0, 1), float64 on the CPU; fewer rows are the first rows of more.

    Examples
    --------
    >>> torch.equal(uniforms(1, 3, 2), uniforms(1, 9, 2)[:3])
    True
    """
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normals(seed: int, *shape: int) -> Tensor:
    """Independent standard normal numbers, float64 on the CPU; fewer rows are the first rows of more."""
    # A uniform number of 53 bits may be 0, whose quantile is -inf.
    return torch.special.ndtri(uniforms(seed, *shape).clamp(min=2.0**-54))


def directions(seed: int, n_features: int, d_head: int, orthogonal: bool) -> Tensor:
    """Rows w of a Performer, (n_features, d_head) float64: each standard normal, orthogonal within blocks of d_head or independent.

    Notes
    -----
    Accuracy: *exact* in distribution (Haar rotations times independent chi lengths; Choromanski et al. 2021, arXiv 2009.14794).
    """
    if not orthogonal:
        return normals(seed, n_features, d_head)
    n_blocks = -(-n_features // d_head)
    drawn = normals(seed, n_blocks, 2, d_head, d_head)
    rotation, triangle = torch.linalg.qr(drawn[:, 0])
    # Without these signs the rotation would not be uniform: QR makes them a convention of the library that computes it.
    rotation = rotation * torch.diagonal(triangle, dim1=-2, dim2=-1).sign()[:, None]
    lengths = torch.linalg.vector_norm(drawn[:, 1], dim=-1, keepdim=True)
    return (lengths * rotation.mT).reshape(-1, d_head)[:n_features]
