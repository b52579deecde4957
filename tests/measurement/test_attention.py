"""Attention statistics against loops over unpadded cases; batches, padding, masks, and everything that is no attention."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.errors import ArgumentError, DataError
from oplens.measurement import AttentionRanks, AttentionTotals

MEASURES = ("entropy_sum", "entropy", "normalised_entropy", "distance", "first_mass", "previous_mass")


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def unpadded(rng, n, heads, causal):
    scores = 3 * rng.standard_normal((heads, n, n))
    if causal:
        scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    return softmax(scores)


def batch_of(cases, rng, left, junk):
    """Padded weights with `junk` in padded rows, and 0 at padded keys."""
    heads, longest = len(cases[0]), max(len(c[0]) for c in cases) + 1
    weights, mask = np.zeros((len(cases), heads, longest, longest)), np.zeros((len(cases), longest), dtype=int)
    for b, case in enumerate(cases):
        n = len(case[0])
        here = slice(longest - n, longest) if left else slice(0, n)
        mask[b, here] = 1
        weights[b, :, mask[b] == 0] = junk
        weights[b, :, here, here] = case
    return weights, mask


def loops(cases, head, causal):
    """Written out from the definitions, case by case, without padding."""
    sums, entropies, shares, distances, firsts, before = [], [], [], [], [], []
    for case in cases:
        A, total = case[head], 0.0
        for i, row in enumerate(A):
            h = -sum(a * math.log(a) for a in row if a > 0)
            total += h
            entropies.append(h)
            visible = i + 1 if causal else len(row)
            if visible > 1:
                shares.append(h / math.log(visible))
            distances.append(sum(a * abs(i - j) for j, a in enumerate(row)))
            firsts.append(row[0])
            if i:
                before.append(row[i - 1])
        sums.append(total)
    found = (sums, entropies, shares, distances, firsts, before)
    return dict(zip(MEASURES, (np.mean(v) if v else np.nan for v in found), strict=True))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_any_batches_with_padding_on_either_side_give_what_loops_give(lengths, causal, left, seed):
    rng = np.random.default_rng(seed)
    cases = [unpadded(rng, n, 2, causal) for n in lengths]
    pieces, start = [], 0
    while start < len(cases):
        size = int(rng.integers(1, 4))
        pieces.append(batch_of(cases[start : start + size], rng, left, np.nan))
        start += size
    parts = [AttentionTotals.of(w, m, causal=causal) for w, m in pieces]
    total = parts[-1]
    for part in parts[:-1]:
        total = total + part
    ds = total.statistics()
    whole = AttentionTotals.of(*batch_of(cases, rng, not left, 1.0), causal=causal).statistics()
    for head in range(2):
        expected = loops(cases, head, causal)
        for name in MEASURES:
            assert float(ds[name][head]) == pytest.approx(expected[name], rel=1e-10, abs=1e-12, nan_ok=True), name
    for name in ds:
        np.testing.assert_allclose(ds[name], whole[name], rtol=1e-8, atol=1e-12, err_msg=str(name))
    assert ds.n_rows.values.tolist() == [sum(lengths)] * 2
    assert ds.n_left_out.values.tolist() == [0, 0]
    assert (ds.n_rows.claim, ds.n_left_out.claim, ds.entropy.claim) == ("exact", "exact", "measured")


def test_bounds_are_attained_by_uniform_and_by_copying_heads():
    n = 6
    uniform, copying = np.full((n, n), 1 / n), np.eye(n)
    ds = AttentionTotals.of(np.stack([uniform, copying])[None], causal=False).statistics()
    np.testing.assert_allclose(ds.entropy_sum, [n * math.log(n), 0], rtol=1e-12)  # a sum: 0 to n log n
    np.testing.assert_allclose(ds.normalised_entropy, [1, 0], rtol=1e-12)
    np.testing.assert_allclose(ds.distance, [(n * n - 1) / (3 * n), 0], rtol=1e-12)
    first = np.zeros((1, 1, n, n))
    first[..., 0] = 1
    sink = AttentionTotals.of(first, causal=True).statistics()
    assert (float(sink.entropy[0]), float(sink.first_mass[0]), float(sink.distance[0])) == (
        0,
        1,
        2.5,
    )  # low entropy, far


@pytest.mark.parametrize("left", [True, False])
def test_weight_on_the_previous_position_is_of_rows_that_have_one(left):
    """Of cases of n positions: 1 for a head that looks there and (H_n - 1)/(n - 1) for a uniform causal one, the first row left out."""
    lengths = (1, 2, 7, 4)
    cases = []
    for n in lengths:
        previous = np.eye(n, k=-1)
        previous[0, 0] = 1
        cases.append(np.stack([previous, np.tri(n) / np.arange(1, n + 1)[:, None], np.eye(n)]))
    ds = AttentionTotals.of(*batch_of(cases, None, left, np.nan), causal=True).statistics()
    harmonic = sum(1 / k for n in lengths for k in range(2, n + 1))
    np.testing.assert_allclose(ds.previous_mass, [1, harmonic / (sum(lengths) - len(lengths)), 0], rtol=1e-12)
    assert float(ds.previous_mass_error[0]) == 0
    alone = AttentionTotals.of(*batch_of(cases[:1], None, left, np.nan), causal=True).statistics()
    assert np.isnan(alone.previous_mass).all()


def test_rows_whose_pattern_or_mask_hides_the_previous_position_do_not_count_towards_it():
    """Blocks of two: of each, the second position sees the one before it. A hole in the mask has no weight, and hides nothing further."""
    block = np.kron(np.eye(2, dtype=bool), np.ones((2, 2), dtype=bool))
    A = np.array([[1, 0, 0, 0], [0.75, 0.25, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 0.5]])
    ds = AttentionTotals.of(A[None, None], causal=True, visible=block).statistics()
    assert float(ds.previous_mass[0]) == 0.625
    holed = np.array([[1, 0, 0, 0], [np.nan] * 4, [0.5, 0, 0.5, 0], [0, 0, 0.8, 0.2]])
    ds = AttentionTotals.of(holed[None, None], [[1, 0, 1, 1]], causal=True).statistics()
    assert float(ds.previous_mass[0]) == pytest.approx(0.8, rel=1e-12)


def test_rows_that_see_nothing_are_left_out_and_counted():
    """Padding on the left with a window of one: real rows see themselves only; a pattern that hides even that leaves them out."""
    A = np.full((1, 1, 3, 3), np.nan)
    A[0, 0, 1] = [0.5, 0.5, 0]
    visible = np.array([[0, 0, 0], [1, 1, 0], [0, 0, 0]], dtype=bool)
    ds = AttentionTotals.of(A, causal=True, visible=visible).statistics()
    assert float(ds.normalised_entropy[0]) == pytest.approx(1)
    assert (int(ds.n_rows[0]), int(ds.n_left_out[0])) == (1, 2)


def test_a_window_normalises_by_what_it_shows():
    n = 5
    window = np.tri(n, dtype=bool) & ~np.tri(n, k=-2, dtype=bool)  # itself and the previous one
    A = (window / window.sum(-1, keepdims=True))[None, None]
    ds = AttentionTotals.of(A, causal=True, visible=window).statistics()
    assert float(ds.normalised_entropy[0]) == pytest.approx(1, rel=1e-12)
    assert float(AttentionTotals.of(A, causal=True).statistics().normalised_entropy[0]) < 0.8


def test_errors_are_over_cases_not_rows():
    """Every case repeats one row many times: what counts is the number of cases."""
    rng = np.random.default_rng(0)
    rows = softmax(2 * rng.standard_normal((12, 1, 1, 7)))
    ds = AttentionTotals.of(np.repeat(rows, 7, axis=2), causal=False).statistics()
    h = -(rows * np.log(rows)).sum(-1)[:, 0, 0]
    assert float(ds.entropy_error[0]) == pytest.approx(h.std(ddof=1) / math.sqrt(12), rel=1e-10)
    assert float(ds.entropy_low[0]) == pytest.approx(
        h.mean() - 2.2009851600916384 * h.std(ddof=1) / math.sqrt(12), rel=1e-8
    )


def test_ranks_ignore_padding():
    rng = np.random.default_rng(1)
    cases = [unpadded(rng, n, 2, False) for n in (3, 5, 4)]
    parts = [AttentionRanks.of(*batch_of(cases[k : k + 1], rng, k == 1, np.nan), causal=False) for k in range(3)]
    ds, whole = (
        (parts[1] + parts[2] + parts[0]).statistics(),
        AttentionRanks.of(*batch_of(cases, rng, False, 0.0), causal=False).statistics(),
    )
    for head in range(2):
        effective, printed, undefined = [], [], []
        for case in cases:
            p = np.linalg.svd(case[head], compute_uv=False)
            lam = np.linalg.eigvals(case[head])
            q = abs(lam) / abs(lam).sum()
            p = p / p.sum()
            effective.append(np.exp(-(p * np.log(p)).sum()))
            printed.append(np.exp(-(q * np.log(q)).sum()))
            undefined.append(bool((lam.real < 0).any() or (abs(lam.imag) > 1e-8).any()))
        assert float(ds.effective_rank[head]) == pytest.approx(np.mean(effective), rel=1e-9)
        assert float(ds.relative_rank[head]) == pytest.approx(np.mean(np.array(effective) / [3, 5, 4]), rel=1e-9)
        assert float(ds.eigenvalue_effective_rank[head]) == pytest.approx(np.mean(printed), rel=1e-6)
        assert float(ds.undefined[head]) == pytest.approx(np.mean(undefined))
    assert float(ds.undefined.max()) > 0
    for name in ds:
        np.testing.assert_allclose(ds[name], whole[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("left", [True, False])
def test_padding_changes_no_numerical_rank(left):
    """A second singular value of 7.7e-16: above the rounding of 3 positions, below that of 12, were padding counted as positions."""
    A = np.full((3, 3), 1 / 3) + 4e-16 * np.array([[1, -1, 0], [-1, 1, 0], [0, 0, 0]])
    padded, mask = batch_of([A[None], np.eye(11)[None]], np.random.default_rng(0), left, np.nan)
    ds = AttentionRanks.of(padded[:1], mask[:1], causal=False).statistics()
    assert (
        float(ds.numerical_rank[0])
        == float(AttentionRanks.of(A[None, None], causal=False).statistics().numerical_rank[0])
        == 2
    )


def test_eigenvalues_negative_by_rounding_alone_leave_the_printed_rank_defined():
    """Rows equal but for the last digits of float32 have an eigenvalue -3e-8; a swap of two positions has -1 in any dtype."""
    a = np.array([[0.3, 0.7], [0.3 + 2.0**-25, 0.7 - 2.0**-25]], dtype=np.float32)
    assert np.linalg.eigvals(a.astype(float)).min() < -2e-8
    for matrix, share in ((a, 0), (np.float32([[0.3, 0.7], [0.7, 0.3]]), 1), (a.astype(float), 1)):
        weights = matrix / matrix.sum(-1, keepdims=True)
        assert float(AttentionRanks.of(weights[None, None], causal=False).statistics().undefined[0]) == share


def test_a_causal_head_has_its_diagonal_as_eigenvalues():
    A = unpadded(np.random.default_rng(2), 6, 1, True)
    diagonal = np.diag(A[0]) / np.trace(A[0])
    ds = AttentionRanks.of(A[None], causal=True).statistics()
    assert float(ds.eigenvalue_effective_rank[0]) == pytest.approx(
        np.exp(-(diagonal * np.log(diagonal)).sum()), rel=1e-12
    )
    assert float(ds.undefined[0]) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype_of_a_softmax_is_taken(dtype):
    scores = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = AttentionTotals.of(torch.softmax(scores, -1), causal=False).statistics()
    found = AttentionTotals.of(torch.softmax(scores, -1).to(dtype), causal=False).statistics()
    spacing = torch.finfo(dtype).eps
    np.testing.assert_allclose(found.entropy, exact.entropy, rtol=4 * spacing)
    assert found.entropy.attrs == {"units": "nat", "long_name": "entropy of a row of attention", "claim": "measured"}


def masked_scores():
    scores = np.where(np.tri(4, dtype=bool), 0.3, -1e9)
    return scores[None, None]


def on_padding():
    return np.full((1, 1, 4, 4), 0.25), [[1, 1, 1, 0]]


UNIFORM = np.full((1, 2, 4, 4), 0.25)


@pytest.mark.parametrize("kind", [AttentionTotals, AttentionRanks])
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda of: of(masked_scores(), causal=True), DataError, "after the softmax"),
        (lambda of: of(np.where(masked_scores() < 0, -np.inf, 0.1), causal=True), DataError, "after the softmax"),
        (lambda of: of(np.full((1, 1, 4, 4), np.nan), causal=True), DataError, "holds nan"),
        (lambda of: of(UNIFORM / 0.9, causal=False), DataError, "evaluation mode"),
        (lambda of: of(UNIFORM * 0, causal=False), DataError, "sums to 1 only within 1"),
        (lambda of: of(*on_padding(), causal=False), DataError, "0.25 of its weight on padding"),
        (lambda of: of(UNIFORM, causal=True), DataError, "`causal`"),
        (lambda of: of(UNIFORM[0], causal=False), ArgumentError, "one layer"),
        (lambda of: of(np.ones((0, 2, 4, 4)), causal=False), ArgumentError, "eager"),
        (lambda of: of(UNIFORM[..., :3, :], causal=False), ArgumentError, "eager"),
        (lambda of: of(UNIFORM, causal="yes"), ArgumentError, "True or False"),
        (lambda of: of(UNIFORM, np.ones((2, 4)), causal=False), ArgumentError, r"\(batch, length\) = \(1, 4\)"),
        (lambda of: of(UNIFORM, [[0, -1e9, 0, 0]], causal=False), ArgumentError, "additive"),
        (lambda of: of(UNIFORM, causal=False, visible=np.ones((4, 4))), ArgumentError, "booleans"),
        (lambda of: of(UNIFORM, causal=False, visible=np.ones(3, bool)), ArgumentError, "broadcast"),
        (lambda of: of(UNIFORM, causal=False) + of(UNIFORM[:, :1], causal=False), ArgumentError, "one layer"),
        (lambda of: of(UNIFORM, causal=False).statistics(level=95), ArgumentError, "between 0 and 1"),
        (lambda of: of((), causal=False), ArgumentError, "expected"),
    ],
)
def test_refusals(kind, call, error, words):
    with pytest.raises(error, match=words):
        call(kind.of)
