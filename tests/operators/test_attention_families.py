"""Each family by what defines it: features and their variance, groups, hashes, blocks."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from attention_oracles import bigbird_sets, random_blocks
from oplens.operators.attention import BigBird, Linformer, Performer, Reformer, attend, log_features
from oplens.operators.attention.bigbird import visible_blocks
from oplens.operators.attention.draws import directions, normals, uniforms
from oplens.operators.attention.linformer import groups
from oplens.operators.attention.reformer import buckets, n_buckets


def heads(seed, length, d_head, size=1.0, batch=1, n_heads=1):
    rng = np.random.default_rng(seed)
    return (torch.from_numpy(size * rng.normal(size=(batch, n_heads, length, d_head))) for _ in range(3))


# Draws


def test_normal_numbers_are_normal_and_fewer_are_the_first_of_more():
    drawn = normals(3, 40000)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        z = (float((drawn**power).mean()) - moment) / math.sqrt(variance / 40000)
        assert abs(z) < 4, power
    assert torch.equal(normals(3, 5, 2), normals(3, 50, 2)[:5])
    assert torch.isfinite(torch.special.ndtri(torch.zeros(1, dtype=torch.float64).clamp(min=2.0**-54))).all()
    assert not torch.equal(uniforms(0, 4), uniforms(1, 4))


@pytest.mark.parametrize("orthogonal", [True, False])
def test_directions_are_standard_normal_one_by_one(orthogonal):
    d, m = 3, 30000
    w = directions(7, m, d, orthogonal).numpy()
    assert np.abs(w.mean(0)).max() < 4 / math.sqrt(m)
    covariance = w.T @ w / m
    np.testing.assert_allclose(covariance, np.eye(d), atol=4 * math.sqrt(2 / m))
    fourth = (w**4).mean(0)  # of unit spheres times sqrt(d) this would be 9/5
    np.testing.assert_allclose(fourth, 3, atol=4 * math.sqrt(96 / m))


def test_directions_are_orthogonal_within_blocks_and_their_lengths_vary():
    w = directions(0, 11, 4, True).numpy()
    gram = w @ w.T
    for block in (gram[:4, :4], gram[4:8, 4:8], gram[8:, 8:]):
        off = block - np.diag(np.diag(block))
        assert np.abs(off).max() < 1e-14
    assert np.abs(gram[:4, 4:8]).max() > 0.1
    assert np.std(np.diag(gram)) > 0.5
    # a rotation and its reflections are equally likely: QR without its signs would give determinants of one sign
    first = np.array([np.linalg.det(directions(s, 3, 3, True).numpy()) > 0 for s in range(200)])
    assert abs(first.mean() - 0.5) < 4 * 0.5 / math.sqrt(200)


# Performer


def estimates(m, orthogonal, s, repeats):
    """Estimates of exp(q k) / exp(q k) for q = k = s / 2 from m features each, by the library's features."""
    n = m * repeats
    log_phi = log_features(s[None] / 2, Performer(n, 1, orthogonal))[0] + math.log(n) / 2
    return torch.exp(2 * log_phi - float(s @ s) / 4).reshape(repeats, m).mean(-1).numpy()


@pytest.mark.parametrize("square", [0.25, 0.6, 1.0])
def test_independent_features_have_the_predicted_mean_and_variance(square):
    """Relative variance (exp(norm(q + k)^2) - 1)/m."""
    m, repeats = 20, 5000
    s = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    s = s * math.sqrt(square) / s.norm()
    found = estimates(m, False, s, repeats)
    predicted = math.expm1(square) / m
    assert abs(found.mean() - 1) < 4 * math.sqrt(predicted / repeats)
    # fourth central moment of exp(w s - square/2), and of a mean of m of them
    moment = [math.exp(square * p * (p - 1) / 2) for p in range(5)]
    fourth = moment[4] - 4 * moment[3] + 6 * moment[2] - 3
    fourth = (fourth + 3 * (m - 1) * math.expm1(square) ** 2) / m**3
    z = (((found - 1) ** 2).mean() - predicted) / math.sqrt((fourth - predicted**2) / repeats)
    assert abs(z) < 4


def product_of_two(square, d):
    """E phi_1 phi_2 / (E phi)^2 of two features of a block: w_i s = norm(s) r_i x_i, x uniform on a sphere, r_i chi of d degrees."""
    gamma, total = math.lgamma, 0.0
    for p in range(40):
        for q in range(40):
            lengths = sum(a * math.log(2) + gamma(d / 2 + a) - gamma(d / 2) for a in (p, q))
            places = gamma(d / 2) + gamma(p + 0.5) + gamma(q + 0.5) - math.log(math.pi) - gamma(d / 2 + p + q)
            total += math.exp((p + q) * math.log(square) - gamma(2 * p + 1) - gamma(2 * q + 1) + lengths + places)
    return total * math.exp(-square)


def test_orthogonal_features_are_unbiased_and_vary_less():
    d, repeats = 3, 100_000
    s = torch.tensor([0.4, -0.35, 0.2], dtype=torch.float64)
    square = float(s @ s)
    predicted = (math.expm1(square) + (d - 1) * (product_of_two(square, d) - 1)) / d
    found = estimates(d, True, s, repeats)
    assert abs(found.mean() - 1) < 4 * math.sqrt(predicted / repeats)
    squares = (found - 1) ** 2
    error = squares.std() / math.sqrt(repeats)
    assert abs(squares.mean() - predicted) < 4 * error
    assert squares.mean() + 4 * error < math.expm1(square) / d


def test_the_output_converges_to_softmax_like_one_over_sqrt_features():
    q, k, v = heads(0, 12, 4, size=0.5)
    exact = attend(q, k, v).output
    spread = []
    for m in (16, 256, 4096):
        errors = [float((attend(q, k, v, Performer(m, s)).output - exact).norm()) for s in range(60)]
        spread.append(math.sqrt(np.mean(np.square(errors))))
    for fewer, more in pairwise(spread):
        assert 3.0 < fewer / more < 5.3  # 4 expected, sixty seeds of heavy tails


def test_the_printed_formula_without_the_normaliser_is_wrong():
    """Manuscript, 2.2: Attention = phi(Q) (phi(K)^T V). Attention to constant values must return the constant."""
    q, k, _ = heads(1, 30, 8)
    v = torch.full((1, 1, 30, 1), 3.0, dtype=torch.float64)
    family = Performer(n_features=20000)
    root = 8**-0.25
    phi_q, phi_k = (torch.exp(log_features(x * root, family)) for x in (q, k))
    printed = phi_q @ (phi_k.mT @ v)
    assert attend(q, k, v, family).output.sub(3).abs().max() < 1e-12
    assert attend(q, k, v).output.sub(3).abs().max() < 1e-12
    assert printed.min() > 45  # thirty keys of weight about 1 each
    # dividing by the sum of its own weights, D^-1, is all that is missing
    repaired = printed / (phi_q @ phi_k.sum(-2)[..., None])
    np.testing.assert_allclose(repaired.numpy(), 3, atol=1e-12)


@pytest.mark.parametrize("length", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("most", [1, 2**18])
def test_causal_sums_do_not_depend_on_how_they_are_cut(length, most, monkeypatch):
    from oplens.operators.attention import performer

    monkeypatch.setattr(performer, "MOST_PAIRS", most)
    q, k, v = heads(2, length, 4, batch=2)
    family = Performer(6, 1)
    whole = attend(q, k, v, family, causal=True).output
    for t in range(length):
        last = attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], family).output
        np.testing.assert_allclose(whole[:, :, t].numpy(), last[:, :, 0].numpy(), atol=1e-12)


# Linformer


def test_groups_are_even_and_equal_keys_are_attended_to_equally():
    for length in (1, 5, 12, 29):
        member = groups(Linformer(5, 3), length)
        sizes = torch.bincount(member, minlength=5)
        assert int(sizes.max() - sizes.min()) <= 1
        assert torch.equal(member, groups(Linformer(5, 3), 40)[:length])
    q, k, v = heads(0, 11, 3)
    k[:] = k[:, :, :1]
    found = attend(q, k, v, Linformer(4), weights=True).weights
    np.testing.assert_allclose(found.numpy(), 1 / 11, atol=1e-14)


def test_as_many_groups_as_positions_are_exact():
    q, k, v = heads(0, 16, 3, size=2.0)
    np.testing.assert_allclose(
        attend(q, k, v, Linformer(16)).output.numpy(), attend(q, k, v).output.numpy(), atol=1e-13
    )


# Reformer


def test_near_vectors_share_buckets_and_opposite_ones_never():
    family = Reformer(n_hashes=400, bucket_size=4)
    x = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.05, 0.0], [0.0, 1.0, 0.3], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    bucket = buckets(family, x[None, None], torch.tensor([32]))[0, 0]
    together = (bucket[:, :1] == bucket).double().mean(0)
    assert together[0] == 1
    assert together[1] > 0.9
    assert together[2] < 0.25
    assert together[3] == 0
    assert torch.equal(bucket, buckets(family, 7 * x[None, None], torch.tensor([32]))[0, 0])


def test_two_buckets_meet_as_often_as_the_angle_says():
    """One rotation each way is a random half-space: probability 1 - angle/pi."""
    angle = 0.9
    x = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    bucket = buckets(Reformer(n_hashes=20000, bucket_size=8), x[None, None], torch.tensor([16]))[0, 0]
    p = 1 - angle / math.pi
    found = float((bucket[:, 0] == bucket[:, 1]).double().mean())
    assert abs(found - p) < 4 * math.sqrt(p * (1 - p) / 20000)


def test_buckets_grow_with_the_length_and_more_rounds_reach_everything():
    assert n_buckets(Reformer(bucket_size=16), torch.tensor([1, 16, 17, 32, 33, 64, 1000])).tolist() == [
        1, 1, 2, 2, 4, 4, 64,
    ]  # fmt: skip
    q, _, v = heads(4, 24, 3)
    whole = attend(q, q, v, Reformer(bucket_size=24), weights=True)
    assert not whole.weights.diagonal(dim1=-2, dim2=-1).any()
    seen = []
    for rounds in (1, 4, 400):
        found = attend(q, q, v, Reformer(n_hashes=rounds, bucket_size=6), weights=True)
        seen.append(float((found.weights > 0).double().mean()))
    assert seen[0] < seen[1] < seen[2]
    first = attend(q, q, v, Reformer(bucket_size=24), causal=True, weights=True).weights[0, 0]
    assert first[0, 0] == 1  # alone, it sees itself
    assert first[1, 0] == 1


# BigBird


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("window", "n_global", "n_random", "size"), [(3, 1, 1, 4), (1, 2, 3, 1), (5, 0, 2, 3), (3, 9, 2, 2)]
)
def test_random_blocks_are_new_ones_as_many_as_there_are(window, n_global, n_random, size, causal):
    family = BigBird(window, n_global, n_random, seed=2, block_size=size)
    plain = BigBird(window, n_global, 0, block_size=size)
    for length in (1, 2, 7, 24, 31):
        n_blocks = math.ceil(length / size)
        drawn = random_blocks(family, length, length, causal)
        found = bigbird_sets(family, length, length, causal, drawn)
        without = bigbird_sets(plain, length, length, causal, [[]] * n_blocks)
        for b, blocks in enumerate(drawn):
            forbidden = {j // size for j in bigbird_sets(plain, length, length, False, [[]] * n_blocks)[b * size]}
            if not causal:
                forbidden |= set(range(n_global))
            known = set(range(b - window // 2, b + window // 2 + 1)) | set(range(n_global))
            free = {c for c in range(n_blocks) if c not in known and (not causal or c < b)}
            assert len(blocks) == len(set(blocks)) == min(n_random, len(free))
            assert set(blocks) <= free
        assert all(set(a) <= set(b) for a, b in zip(without, found, strict=True))


def test_every_free_block_is_drawn_equally_often():
    counts = np.zeros(12)
    seeds = 1500
    for seed in range(seeds):
        found, there = visible_blocks(BigBird(3, 1, 3, seed=seed, block_size=1), 12, torch.tensor([12]), False)
        assert there[0, 6, -3:].all()
        counts[found[0, 6, -3:].numpy()] += 1
    free = [1, 2, 3, 4, 8, 9, 10, 11]
    assert counts[[0, 5, 6, 7]].sum() == 0
    z = (counts[free] - seeds * 3 / 8) / math.sqrt(seeds * 3 / 8 * 5 / 8)
    assert np.abs(z).max() < 4
    assert 1 < float((z**2).sum()) < 30  # chi square of 7 degrees: neither rigged nor fair by construction


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 5, 16, 23])
def test_blocks_that_cover_everything_are_exact(length, causal):
    q, k, v = heads(3, length, 4, batch=2, n_heads=2, size=2.0)
    exact = attend(q, k, v, causal=causal).output.numpy()
    for family in (BigBird(1, 0, 9, block_size=3), BigBird(1, 9, 0, block_size=3), BigBird(17, 0, 0, block_size=3)):
        np.testing.assert_allclose(attend(q, k, v, family, causal=causal).output.numpy(), exact, atol=1e-13)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_of_queries_may_be_taken_one_at_a_time(causal, monkeypatch):
    from oplens.operators.attention import bigbird

    q, k, v = heads(6, 47, 4, batch=2, n_heads=2)
    lengths = torch.tensor([30, 47])
    family = BigBird(3, 1, 2, block_size=4)
    found = []
    for most in (1, 2**10, 2**20):
        monkeypatch.setattr(bigbird, "MOST_GATHERED", most)
        found.append(attend(q, k, v, family, lengths=lengths, causal=causal).output.numpy())
    for other in found[:2]:
        np.testing.assert_allclose(other, found[2], atol=1e-13)


def test_global_positions_see_and_are_seen_by_all():
    q, k, v = heads(5, 40, 4)
    found = attend(q, k, v, BigBird(1, 2, 0, block_size=3), weights=True).weights[0, 0]
    assert (found[:6] > 0).all()
    assert (found[:, :6] > 0).all()
    assert int((found[20] > 0).sum()) == 6 + 3
