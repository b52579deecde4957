"""Sums of products of waves against a plain recurrence, for ordinary, aliased, real and nearly undamped poles."""

import numpy as np
import pytest
import torch

from oplens.operators import diagonal
from oplens.operators import pairs as module
from oplens.operators.pairs import pair_sums
from oracles import discrete, random_system, recurrence


def gather(system, u, lengths, **kwargs):
    P, shape = system.n_modes, u.shape[:2]
    modes, skip, both = np.full((*shape, P, P), np.nan), np.full((*shape, P), np.nan), np.full(shape, np.nan)
    for sums in pair_sums(system, torch.from_numpy(u), torch.tensor(lengths), **kwargs):
        modes[:, sums.rows], skip[:, sums.rows], both[:, sums.rows] = (
            x.numpy() for x in (sums.modes, sums.skip, sums.both)
        )
    return modes, skip, both


def brute(arrays, u, lengths):
    *_, C, D = arrays
    _, states = recurrence(arrays, u)
    waves = 2 * (C[..., None] * states).real
    valid = (np.arange(u.shape[-1]) < np.array(lengths)[:, None])[:, None, None]
    waves = waves * valid
    direct = D[:, None] * u
    size = np.abs(np.einsum("bhnl,bhnl->bhn", waves, waves))
    return (
        np.einsum("bhnl,bhml->bhnm", waves, waves),
        np.einsum("bhnl,bhl->bhn", waves, direct),
        np.einsum("bhl,bhl->bh", direct, direct),
        np.sqrt(size[..., :, None] * size[..., None, :]),
    )


def example(seed, method="zoh", n_modes=4, length=60, lengths=(60, 1, 2, 37)):
    A, C, D, dt = random_system(seed, n_modes=n_modes)
    a, b = discrete(A, dt, method)
    system = diagonal.discretise(*(torch.from_numpy(x) for x in (A, C, D, dt)), method)
    u = np.random.default_rng(seed + 100).normal(0.4, 1, size=(len(lengths), 3, length))
    u = u * (np.arange(length) < np.array(lengths)[:, None])[:, None]
    return system, (a, b, C, D), u, list(lengths)


@pytest.mark.parametrize("method", ["zoh", "bilinear"])
@pytest.mark.parametrize("seed", range(8))
def test_equal_to_the_recurrence(seed, method):
    system, arrays, u, lengths = example(seed, method)
    modes, skip, both = gather(system, u, lengths)
    expected, expected_skip, expected_both, scale = brute(arrays, u, lengths)
    # 1e-16 / 1e-6: what the identity may lose just above the point where it is given up, of the waves' energies
    assert (np.abs(modes - expected) <= 1e-9 * scale + 1e-13).all()
    assert np.abs(skip - expected_skip).max() <= 1e-12 * np.abs(expected_skip).max()
    assert np.abs(both - expected_both).max() <= 1e-13 * np.abs(expected_both).max()
    assert (
        np.array_equal(modes, modes.transpose(0, 1, 3, 2))
        or np.abs(modes - modes.transpose(0, 1, 3, 2)).max() < 1e-12 * scale.max()
    )


def damped(seed, real, length=400):
    rng = np.random.default_rng(seed)
    A = -real * np.exp(rng.normal(size=(3, 5))) + 1j * rng.normal(0, 60, (3, 5))
    C = rng.normal(size=A.shape) + 1j * rng.normal(size=A.shape)
    D, dt = rng.normal(size=3), rng.uniform(0.005, 0.05, 3)
    u = rng.normal(size=(2, 3, length))
    u[1, :, 200:] = 0
    a, b = discrete(A, dt)
    return diagonal.discretise(*(torch.from_numpy(x) for x in (A, C, D, dt))), (a, b, C, D), u, [length, 200]


@pytest.mark.parametrize("real", [0.5, 5.0])
def test_ten_digits_for_damped_waves(real):
    system, arrays, u, lengths = damped(3, real)
    modes, *_ = gather(system, u, lengths)
    expected, *_, scale = brute(arrays, u, lengths)
    assert (np.abs(modes - expected) / scale).max() < 1e-12


def test_the_identity_and_the_explicit_version_agree(monkeypatch):
    system, arrays, u, lengths = damped(4, 0.5)
    identity, *_ = gather(system, u, lengths)
    calls = []
    explicit = module._explicit
    monkeypatch.setattr(module, "_explicit", lambda *args: calls.append(1) or explicit(*args))
    gather(system, u, lengths)
    assert not calls  # nothing here is nearly undamped
    monkeypatch.setattr(module, "NEARLY_UNDAMPED", 1e9)
    forced, *_ = gather(system, u, lengths)
    assert calls
    expected, *_, scale = brute(arrays, u, lengths)
    assert (np.abs(forced - expected) / scale).max() < 1e-12
    assert (np.abs(forced - identity) / scale).max() < 1e-12


def test_a_nearly_undamped_feature_falls_back_alone():
    """Mode 0 of feature 1 neither decays nor turns: 1 - a a = 0 and the identity would divide by it."""
    system, (a, b, C, D), u, lengths = damped(5, 0.5)
    log_a, b = system.log_a.clone(), b.copy()
    log_a[1, 0], b[1, 0] = 0, 0.02
    slow = diagonal.DiagonalSystem(log_a, torch.from_numpy(b), system.C, system.D)
    a = a.copy()
    a[1, 0] = 1
    modes, skip, _ = gather(slow, u, lengths)
    expected, expected_skip, _, scale = brute((a, b, C, D), u, lengths)
    assert np.isfinite(modes).all()
    assert (np.abs(modes - expected) / scale).max() < 1e-12
    assert np.abs(skip - expected_skip).max() < 1e-12 * np.abs(expected_skip).max()


@pytest.mark.parametrize("block", [1, 10**4, 2**30])
def test_blocks_of_features_do_not_matter(block):
    system, _, u, lengths = damped(6, 0.5)
    whole = gather(system, u, lengths)
    parts = list(pair_sums(system, torch.from_numpy(u), torch.tensor(lengths), block_bytes=block))
    assert parts[0].rows.start == 0
    assert parts[-1].rows.stop == 3
    assert block > 1 or len(parts) == 3
    for a, b in zip(whole, gather(system, u, lengths, block_bytes=block), strict=True):
        assert np.abs(a - b).max() < 1e-12 * np.abs(a).max()


def test_aliased_and_negative_frequencies():
    dt = 0.5
    A = np.array([[-0.3 + 20j, -0.3 - 9j, -0.3 + 2j]])
    C, D, step = np.array([[1 - 0.5j, 0.3 + 1j, -1 + 0.2j]]), np.array([0.7]), np.array([dt])
    a, b = discrete(A, step)
    u = np.random.default_rng(0).normal(size=(1, 1, 300))
    modes, *_ = gather(diagonal.discretise(*(torch.from_numpy(x) for x in (A, C, D, step))), u, [300])
    expected, *_, scale = brute((a, b, C, D), u, [300])
    assert (np.abs(modes - expected) / scale).max() < 1e-12
