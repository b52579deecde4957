"""Cost in length, and error against exact attention as numbers."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attention_oracles import weights_of
from oplens.errors import ArgumentError
from oplens.operators.attention import (
    BigBird,
    Linformer,
    Performer,
    Reformer,
    Softmax,
    attend,
    attention_cost,
    attention_error,
    random_heads,
    sweep_errors,
)


class Recorder(TorchDispatchMode):
    """Largest number of elements that any operation returns, and how many exponentials were taken."""

    def __init__(self):
        super().__init__()
        self.elements, self.exponentials = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
            if func.overloadpacket in (torch.ops.aten.exp, torch.ops.aten._softmax):
                self.exponentials += result.numel()
        return result


def largest(family, length, causal=False):
    q, k, v = (torch.randn(1, 1, length, 8, generator=torch.Generator().manual_seed(i)) for i in range(3))
    with Recorder() as found:
        attend(q, q if family.shares_queries else k, v, family, causal=causal)
    return found.elements


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("family", [Performer(16), BigBird(), BigBird(block_size=1, n_random=4)], ids=str)
def test_no_tensor_of_a_linear_family_grows_with_the_square_of_the_length(family, causal):
    short, long = largest(family, 2048, causal), largest(family, 8192, causal)
    # 2^18 is what the causal Performer's tensor of pairs may take at any length.
    assert long <= max(4 * short, 2**18)
    assert long < 8192**2 / 50
    assert largest(Softmax(), 2048, causal) == 2048**2


def test_the_linformer_keeps_one_row_of_groups_per_position():
    assert largest(Linformer(rank=8), 4096) == 8 * 4096


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 7, 30, 64])
@pytest.mark.parametrize(
    "family",
    [
        Softmax(),
        Performer(6),
        Linformer(5),
        Reformer(n_hashes=3, bucket_size=8),
        BigBird(block_size=4),
        BigBird(5, 2, 3, block_size=1),
        BigBird(1, 0, 0, block_size=9),
    ],
    ids=str,
)
def test_costs_are_those_that_are_counted(family, length, causal):
    if causal and family.refuses_causal:
        with pytest.raises(ArgumentError, match="mixes all positions"):
            attention_cost(family, length, 4, causal=True)
        return
    q, k, v = (torch.randn(2, 3, length, d, generator=torch.Generator().manual_seed(d)) for d in (4, 4, 5))
    k = q if family.shares_queries else k
    with FlopCounterMode(display=False) as flops, Recorder() as counted:
        attend(q, k, v, family, causal=causal)
    found = attention_cost(family, length, 4, 5, causal=causal)
    drawing = 0
    if isinstance(family, Performer):
        with FlopCounterMode(display=False) as alone:
            from oplens.operators.attention.draws import directions

            directions(family.seed, family.n_features, 4, family.orthogonal)
        drawing = alone.get_total_flops()
    assert 6 * found.flops == flops.get_total_flops() - drawing
    assert 6 * found.exponentials == counted.exponentials


def test_linear_families_cost_in_proportion_to_length():
    for family in (Performer(32), BigBird(block_size=16), Linformer(16)):
        costs = [attention_cost(family, n, 16) for n in (1024, 2048, 4096)]
        for a, b in pairwise(costs):
            assert b.flops == 2 * a.flops
            assert b.exponentials == 2 * a.exponentials
    for family in (Softmax(), Reformer()):
        costs = [attention_cost(family, n, 16).exponentials for n in (1024, 2048)]
        assert costs[1] == 4 * costs[0]


@pytest.mark.parametrize(
    "family", [Performer(9, 2), Linformer(4), Reformer(2, 4), BigBird(3, 1, 1, block_size=2)], ids=lambda f: f.name
)
def test_errors_are_those_of_the_formulas(family):
    q, k, v = random_heads(13, 4, 2.0, n_heads=2, batch=2, seed=3)
    k = q if family.shares_queries else k
    lengths = torch.tensor([13, 8])
    found = attention_error(family, q, k, v, lengths=lengths)
    exact_family = Reformer(1, 13) if family.shares_queries else Softmax()
    shares, largest_gap, above, below = [], 0.0, 0.0, 0.0
    for b, h in np.ndindex(2, 2):
        keys, n = np.arange(13) < int(lengths[b]), int(lengths[b])
        a, e = (
            weights_of(f, q[b, h].numpy() * keys[:, None], k[b, h].numpy() * keys[:, None], 0.5, False, keys)[:n]
            for f in (family, exact_family)
        )
        shares += list(np.abs(a - e).sum(1) / 2)
        largest_gap = max(largest_gap, float(np.abs(a - e).max()))
        above += float((((a - e) @ v[b, h].numpy()) ** 2).sum())
        below += float(((e @ v[b, h].numpy()) ** 2).sum())
    assert found.output == pytest.approx(math.sqrt(above / below), rel=1e-10)
    assert found.weights == pytest.approx(np.mean(shares), rel=1e-10)
    assert found.largest == pytest.approx(largest_gap, rel=1e-10)
    masked = attention_error(family, q, k, v, mask=torch.arange(13) < lengths[:, None])
    assert masked == found


def test_exact_families_have_no_error():
    q, k, v = random_heads(20, 4, 3.0)
    for family in (Softmax(), Linformer(20), BigBird(1, 0, 20, block_size=2)):
        assert attention_error(family, q, k, v).output < 1e-14
    assert attention_error(Reformer(1, 20), q, q, v, causal=True).output == 0


def test_norms_decide_what_features_cannot_repair():
    """At norm 1 a thousand features serve; at norm 6 (exp(norm(q + k)^2) of e^18 after scaling) four times as many do not."""
    rows = sweep_errors([Performer(64), Performer(1024), Performer(4096)], lengths=(24,), norms=(1.0, 6.0), n_heads=2)
    found = {(r.norm, r.family.n_features): r.error.output for r in rows}
    assert found[1.0, 64] > 2 * found[1.0, 1024] > 3 * found[1.0, 4096]
    assert found[1.0, 1024] < 0.05
    assert found[6.0, 4096] > 0.5


def test_gaussian_queries_in_sixteen_dimensions_are_too_much_for_two_thousand_features():
    """Relative error .62 at m = 2048 for 32 positions, a mean over draws of queries and features."""
    errors = []
    for seed in range(12):
        q, k, v = (
            torch.randn(1, 1, 32, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3 * seed + i))
            for i in range(3)
        )
        errors.append(attention_error(Performer(2048, seed), q, k, v).output)
    mean, error = np.mean(errors), np.std(errors, ddof=1) / math.sqrt(12)
    assert abs(mean - 0.62) < 4 * error < 0.2


def test_a_sweep_is_its_single_errors_and_costs():
    families = [Performer(8), Reformer(bucket_size=8), BigBird(block_size=4)]
    rows = sweep_errors(families, lengths=(9, 16), norms=(0.5, 2.0), d_head=4, n_heads=2, seed=5, causal=True)
    assert [(r.length, r.norm, r.family) for r in rows] == [
        (n, size, f) for n in (9, 16) for size in (0.5, 2.0) for f in families
    ]
    q, k, v = random_heads(16, 4, 2.0, n_heads=2, seed=5)
    assert rows[-1].error == attention_error(families[2], q, k, v, causal=True)
    assert rows[-1].cost == attention_cost(families[2], 16, 4, causal=True)


def test_random_heads_have_the_norm_and_no_direction():
    q, k, v = random_heads(4000, 3, 2.5, seed=1)
    for x in (q, k):
        np.testing.assert_allclose(x.norm(dim=-1).numpy(), 2.5, rtol=1e-12)
        assert x[0, 0].mean(0).abs().max() < 4 * 2.5 / math.sqrt(3 * 4000)
    assert abs(float(v.var()) - 1) < 4 * math.sqrt(2 / 12000)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: attention_cost(Softmax(), 0, 4), "length=0"),
        (lambda: attention_cost(Softmax(), 3, 4, 0), "d_value=0"),
        (lambda: random_heads(3, 4, 0.0), "norm is positive"),
        (lambda: random_heads(0, 4, 1.0), "sizes are at least 1"),
        (lambda: sweep_errors([Performer(), "softmax"]), "give families such as"),
        (
            lambda: attention_error(Softmax(), *random_heads(3, 4, 1.0), lengths=torch.tensor([0])),
            "no query sees a key",
        ),
        (
            lambda: attention_error(Performer(4), *random_heads(3, 4, 1.0)[:2], torch.zeros(1, 1, 3, 2)),
            "returns zeros only",
        ),
    ],
)
def test_what_cannot_work_is_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
