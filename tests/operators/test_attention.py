"""What every attention family owes: rows that sum to 1, masks that hide, seeds that decide, refusals that say why."""

import numpy as np
import pytest
import torch

from attention_oracles import weights_of
from oplens.errors import ArgumentError
from oplens.operators.attention import (
    FAMILIES,
    BigBird,
    Linformer,
    Performer,
    Reformer,
    Softmax,
    attend,
    family_from_dict,
    family_to_dict,
)

KINDS = {
    "softmax": Softmax(),
    "performer": Performer(n_features=5, seed=3),
    "performer, independent": Performer(n_features=9, seed=1, orthogonal=False),
    "linformer": Linformer(rank=4, seed=2),
    "linformer, more groups than positions": Linformer(rank=40),
    "reformer": Reformer(n_hashes=2, bucket_size=4, seed=1),
    "reformer, one round": Reformer(n_hashes=1, bucket_size=3, seed=5),
    "reformer, one bucket": Reformer(bucket_size=64),
    "bigbird": BigBird(window=3, n_global=1, n_random=1, block_size=3, seed=4),
    "bigbird, positions": BigBird(window=3, n_global=2, n_random=2, block_size=1),
    "bigbird, no globals": BigBird(window=1, n_global=0, n_random=3, block_size=2, seed=9),
    "bigbird, window only": BigBird(window=5, n_global=0, n_random=0, block_size=2),
}
CAUSAL = [name for name, family in KINDS.items() if not family.refuses_causal]


def draw(family, seed=0, batch=2, heads=2, length=19, d_head=4, d_value=3, size=1.0):
    rng = np.random.default_rng(seed)
    q = torch.from_numpy(size * rng.normal(size=(batch, heads, length, d_head)))
    k = q if family.shares_queries else torch.from_numpy(size * rng.normal(size=(batch, heads, length, d_head)))
    return q, k, torch.from_numpy(rng.normal(size=(batch, heads, length, d_value)))


def blanked(x, keys):
    """Hidden keys are read as 0; a Reformer's queries are its keys."""
    return torch.where(keys[:, None, :, None], x, 0)


def expected(family, q, k, scale, causal, keys):
    keys = np.ones((len(q), k.shape[2]), bool) if keys is None else np.asarray(keys)
    heads = [
        [weights_of(family, q[b, h].numpy(), k[b, h].numpy(), scale, causal, keys[b]) for h in range(q.shape[1])]
        for b in range(len(q))
    ]
    return np.array(heads)


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize(
    ("name", "causal"), [(name, False) for name in KINDS] + [(name, True) for name in CAUSAL], ids=str
)
def test_weights_and_output_are_those_of_the_formula(name, causal, padded):
    family = KINDS[name]
    q, k, v = draw(family)
    lengths = torch.tensor([7, 19]) if padded else None
    keys = None if lengths is None else torch.arange(19) < lengths[:, None]
    found = attend(q, k, v, family, lengths=lengths, causal=causal, weights=True)
    if keys is not None and family.shares_queries:
        q = k = blanked(q, keys)
    weights = expected(family, q, k, 0.5, causal, keys)
    np.testing.assert_allclose(found.weights.numpy(), weights, atol=1e-12)
    np.testing.assert_allclose(found.output.numpy(), weights @ v.numpy(), atol=1e-12)
    np.testing.assert_allclose(found.weights.sum(-1).numpy(), (weights.sum(-1) > 0).astype(float), atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", CAUSAL)
def test_rows_sum_to_one_or_see_nothing_under_any_mask_of_keys(name, causal):
    """Left padding, holes, and a case with no key at all."""
    family = KINDS[name]
    q, k, v = draw(family, seed=1, batch=4)
    keys = torch.ones(4, 19, dtype=torch.bool)
    keys[0, :5], keys[1, 3:17:2], keys[3] = False, False, False
    found = attend(q, k, v, family, mask=keys, causal=causal, weights=True)
    k = blanked(k, keys)
    weights = expected(family, k if family.shares_queries else q, k, 0.5, causal, keys)
    np.testing.assert_allclose(found.weights.numpy(), weights, atol=1e-12)
    np.testing.assert_allclose(found.output.numpy(), weights @ v.numpy(), atol=1e-12)
    sums = found.weights.sum(-1)
    assert not found.output[3].any()
    assert not sums[3].any()
    kept = sums[keys[:, None].expand_as(sums)]
    np.testing.assert_allclose(kept.numpy(), 1, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_padding_changes_nothing_whatever_it_holds(name):
    family = KINDS[name]
    q, k, v = draw(family, length=11)
    causal = not family.refuses_causal
    alone = attend(q, k, v, family, causal=causal).output
    width = (0, 0, 0, 13)
    padded = [torch.nn.functional.pad(x, width, value=float("nan")) for x in (q, k, v)]
    if family.shares_queries:
        padded[1] = padded[0]
    found = attend(*padded, family, lengths=torch.tensor([11, 11]), causal=causal)
    np.testing.assert_allclose(found.output[:, :, :11].numpy(), alone.numpy(), atol=1e-13)
    if not family.refuses_causal:
        two_sided = attend(q, k, v, family).output
        found = attend(*padded, family, lengths=torch.tensor([11, 11]))
        np.testing.assert_allclose(found.output[:, :, :11].numpy(), two_sided.numpy(), atol=1e-13)


@pytest.mark.parametrize("size", [1.0, 60.0], ids=["", "large"])
@pytest.mark.parametrize("name", CAUSAL)
def test_a_later_token_changes_nothing_to_the_last_bit(name, size):
    """A scale taken from all keys would let a later one of large norm underflow the earlier."""
    family = KINDS[name]
    q, k, v = draw(family, seed=2, length=24)
    before = attend(q, k, v, family, causal=True).output
    for t in (1, 7, 8, 15, 23):
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x[:, :, t:] = size * torch.randn(
                x[:, :, t:].shape, dtype=x.dtype, generator=torch.Generator().manual_seed(t)
            )
        if family.shares_queries:
            changed[1] = changed[0]
        after = attend(*changed, family, causal=True).output
        assert torch.equal(after[:, :, :t], before[:, :, :t])
        assert not torch.allclose(after[:, :, t:], before[:, :, t:])


@pytest.mark.parametrize("name", ["softmax", "performer", "bigbird", "bigbird, positions"])
def test_a_longer_causal_sequence_continues_a_shorter_one(name):
    family = KINDS[name]
    q, k, v = draw(family, length=40)
    whole = attend(q, k, v, family, causal=True).output
    part = attend(*(x[:, :, :17] for x in (q, k, v)), family, causal=True).output
    np.testing.assert_allclose(whole[:, :, :17].numpy(), part.numpy(), atol=1e-13)


@pytest.mark.parametrize(
    ("name", "causal"), [(name, False) for name in KINDS] + [(name, True) for name in CAUSAL], ids=str
)
def test_norms_that_underflow_or_overflow_give_weights_still(name, causal):
    """Features of float32 are exp(+-1000) here; TransformerLens #385: large scores fall below a finite mask value."""
    family = KINDS[name]
    q, k, v = (x.float().requires_grad_() for x in draw(family, seed=3, length=21, size=60.0))
    k = q if family.shares_queries else k
    keys = torch.ones(2, 21, dtype=torch.bool)
    keys[:, ::3] = False
    found = attend(q, k, v, family, mask=keys, causal=causal, weights=True)
    visible = keys[:, None, None] & (torch.ones(21, 21, dtype=torch.bool).tril() if causal else True)
    assert not found.weights[~visible.expand_as(found.weights)].any()
    exact = attend(q.double(), q.double() if k is q else k.double(), v.double(), family, mask=keys, causal=causal)
    # Scores near 1e4 carry float32's rounding, 1e-3, into the exponent.
    assert (found.output - exact.output).abs().max() < 3e-2 * v.abs().max()
    found.output.sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_those_of_the_formula_and_finite_where_nothing_is_seen(name):
    family = KINDS[name]
    causal = not family.refuses_causal
    q, k, v = draw(family, batch=2, heads=1, length=9)
    keys = torch.ones(2, 9, dtype=torch.bool)
    keys[0, :3], keys[1] = False, False
    shared = family.shares_queries
    inputs = [x.clone().requires_grad_() for x in ((q, v) if shared else (q, k, v))]

    def output(*x):
        q, k, v = (x[0], x[0], x[1]) if shared else x
        return attend(q, k, v, family, mask=keys, causal=causal).output

    assert torch.autograd.gradcheck(output, inputs, atol=1e-7)
    output(*inputs).square().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in inputs)
    assert not inputs[-1].grad[1].any()


@pytest.mark.parametrize("name", [n for n, f in KINDS.items() if f != Softmax()])
def test_a_seed_decides_and_the_global_generator_is_left_alone(name):
    family = KINDS[name]
    q, k, v = draw(family, length=40)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = attend(q, k, v, family).output
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    assert torch.equal(attend(q, k, v, family).output, first)
    other = attend(q, k, v, family.for_layer(1)).output
    forced = name in ("linformer, more groups than positions", "reformer, one bucket", "bigbird, window only")
    assert torch.equal(other, first) == forced or (forced and torch.allclose(other, first, atol=1e-14))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_zero_vectors_and_padding_keep_outputs_and_gradients_finite_in_wide_heads(name, dtype):
    """sqrt(d_head) over the least float32 is infinite from d_head 16 on, and hidden keys are zero vectors."""
    family = KINDS[name]
    q, k, v = (x.to(dtype) for x in draw(family, length=9, d_head=64))
    for x in {q, k}:
        x[:, :, 2] = 0
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    k = q if family.shares_queries else k
    for causal in (False, True)[: 1 if family.refuses_causal else 2]:
        found = attend(q, k, v, family, lengths=torch.tensor([6, 9]), causal=causal, weights=True)
        exact = expected(
            family,
            *(blanked(x.detach().double(), torch.arange(9) < torch.tensor([[6], [9]])) for x in (q, k)),
            0.125,
            causal,
            torch.arange(9) < torch.tensor([[6], [9]]),
        )
        rows = np.arange(9) < np.array([[6], [9]])
        got = found.weights.detach().numpy().transpose(0, 2, 1, 3)[rows]
        np.testing.assert_allclose(
            got, exact.transpose(0, 2, 1, 3)[rows], atol=1e-5 if dtype == torch.float32 else 1e-12
        )
        found.output.square().sum().backward()
        assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", KINDS)
def test_every_family_takes_tensors_without_values(name, device):
    """Nothing is made on another device than the inputs', and lengths may stand on any."""
    family = KINDS[name]
    q, k, v = (torch.randn(2, 3, 17, d, device="meta") for d in (4, 4, 5))
    k = q if family.shares_queries else k
    for causal in (False, True)[: 1 if family.refuses_causal else 2]:
        for lengths in (None, torch.tensor([3, 17], device=device)):
            found = attend(q, k, v, family, lengths=lengths, causal=causal, weights=True)
            assert found.output.device.type == found.weights.device.type == "meta"
            assert found.output.shape == (2, 3, 17, 5)
            assert found.weights.shape == (2, 3, 17, 17)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_lower_precision_is_near_and_keeps_its_dtype(name, dtype):
    family = KINDS[name]
    q, k, v = (x.to(dtype) for x in draw(family, length=20))
    k = q if family.shares_queries else k
    found = attend(q, k, v, family, weights=True)
    assert found.output.dtype == found.weights.dtype == dtype
    exact = attend(q.double(), q.double() if k is q else k.double(), v.double(), family)
    # One rounding of the result where sums are float32's.
    assert (found.output - exact.output).abs().max() < (2 * torch.finfo(dtype).eps + 1e-5) * v.abs().max()


@pytest.mark.parametrize("name", KINDS)
def test_autocast_changes_nothing(name):
    """It would round in the middle: the Performer's error was eight times as large."""
    family = KINDS[name]
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (x.to(dtype) for x in draw(family, length=20))
        k = q if family.shares_queries else k
        with torch.autocast("cpu", torch.bfloat16):
            inside = attend(q, k, v, family, weights=True)
        outside = attend(q, k, v, family, weights=True)
        assert inside.output.dtype == dtype
        assert torch.equal(inside.output, outside.output)
        assert torch.equal(inside.weights, outside.weights)


def test_shares_of_a_padded_query_do_not_reach_others():
    """Queries are not masked, and need not be: no row depends on another query."""
    q, k, v = draw(Softmax(), length=6)
    changed = q.clone()
    changed[:, :, 4:] = 100.0
    for family in (Softmax(), KINDS["performer"], KINDS["bigbird"], KINDS["linformer"]):
        one, two = (attend(x, k, v, family, lengths=torch.tensor([4, 4])).output[:, :, :4] for x in (q, changed))
        assert torch.equal(one, two)


def test_pairs_may_be_masked_where_pairs_exist():
    q, k, v = draw(Softmax(), length=5)
    mask = torch.rand(2, 1, 5, 5, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[0, 0, 2] = False
    for family in (Softmax(), Reformer(bucket_size=8)):
        keys = q if family.shares_queries else k
        found = attend(q, keys, v, family, mask=mask, weights=True)
        assert not found.weights[~mask.expand_as(found.weights)].any()
        assert not found.output[0, :, 2].any()
    both = attend(q, k, v, mask=mask, lengths=torch.tensor([3, 5]), causal=True, weights=True).weights
    for b, h, i in np.ndindex(2, 2, 5):
        seen = {j for j in range(i + 1) if mask[b, 0, i, j] and j < (3, 5)[b]}
        assert {j for j in range(5) if both[b, h, i, j] > 0} == seen


@pytest.mark.parametrize("family", [Softmax(), Performer(7), Linformer(3)], ids=lambda f: f.name)
def test_queries_may_come_from_another_sequence(family):
    q, k, v = draw(family, length=13)
    q = q[:, :, :4]
    found = attend(q, k, v, family, scale=0.3, lengths=torch.tensor([13, 9]), weights=True)
    keys = np.arange(13) < np.array([[13], [9]])
    weights = expected(family, q, k, 0.3, False, keys)
    np.testing.assert_allclose(found.weights.numpy(), weights, atol=1e-12)
    np.testing.assert_allclose(found.output.numpy(), weights @ v.numpy(), atol=1e-12)


def test_families_survive_a_dictionary():
    for family in KINDS.values():
        assert family_from_dict(family_to_dict(family)) == family
    assert set(FAMILIES) == {"softmax", "performer", "linformer", "reformer", "bigbird"}
    assert family_from_dict({"family": "bigbird", "window": 5}) == BigBird(window=5)


Q, K, V = draw(Softmax(), length=5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Performer(n_features=0), r"n_features=0.*at least 1"),
        (lambda: Performer(n_features=2.5), "expected an integer"),
        (lambda: Performer(seed=-1), "seed=-1"),
        (lambda: Performer(orthogonal=1), "True or False"),
        (lambda: Linformer(rank=True), "expected an integer"),
        (lambda: Reformer(bucket_size=0), "bucket_size=0"),
        (lambda: Reformer(n_hashes=2**40), "below 2"),
        (lambda: BigBird(window=4), r"window=4.*give 3 or 5"),
        (lambda: BigBird(n_random=-1), "n_random=-1"),
        (lambda: family_from_dict({"family": "longformer"}), r"'longformer' is unknown.*softmax, performer"),
        (lambda: family_from_dict({}), "None is unknown"),
        (lambda: family_from_dict({"family": ["softmax"]}), "is unknown"),
        (lambda: family_from_dict({"family": "softmax", "seed": 1}), r"no seed; its parameters are none"),
        (lambda: attend(Q, K, V, Linformer(), causal=True), "mixes all positions"),
        (lambda: attend(Q, K, V, Reformer()), r"keys must be the queries"),
        (lambda: attend(Q, Q[:, :, :3], V[:, :, :3], Reformer()), "keys must be the queries"),
        (lambda: attend(Q[:, :, :2], K, V, BigBird()), "2 queries and 5 keys"),
        (lambda: attend(Q[:, :, :2], K, V, causal=True), "2 queries and 5 keys"),
        (lambda: attend(Q, K, V, "softmax"), r"give one of Softmax\(...\)"),
        (lambda: attend(Q[0], K, V), "batch, n_heads, length, d_head"),
        (lambda: attend(Q[:, :, :0], K, V), "no dimension empty"),
        (lambda: attend(Q[:1], K, V), "batch and n_heads must agree"),
        (lambda: attend(Q, K[..., :2], V), "q and k in d_head"),
        (lambda: attend(Q, K, V[:, :, :2]), "k and v in length"),
        (lambda: attend(Q, K, V.float()), "one real floating-point dtype"),
        (lambda: attend(Q.long(), K.long(), V.long()), "real floating-point"),
        (lambda: attend(Q, K, V, scale=0.0), "positive and finite"),
        (lambda: attend(Q, K, V, scale=float("nan")), "positive and finite"),
        (lambda: attend(Q, K, V, mask=torch.zeros(2, 5)), "additive mask of finite values loses"),
        (lambda: attend(Q, K, V, mask=torch.ones(2, 4, dtype=torch.bool)), r"mask of shape \(2, 4\)"),
        (lambda: attend(Q, K, V, mask=torch.ones(2, 3, 5, 5, dtype=torch.bool)), "that broadcast to"),
        (
            lambda: attend(Q, K, V, Performer(), mask=torch.ones(2, 1, 5, 5, dtype=torch.bool)),
            "needs all length_q x length_k scores",
        ),
        (lambda: attend(Q, K, V, lengths=torch.tensor([5])), "expected 2 integers"),
        (lambda: attend(Q, K, V, lengths=torch.tensor([5.0, 5.0])), "expected 2 integers"),
        (lambda: attend(Q, K, V, lengths=torch.tensor([5, 6])), "between 0 and 5"),
        (lambda: attend(Q, K, V, lengths=torch.tensor([-1, 5])), "between 0 and 5"),
    ],
)
def test_what_cannot_work_is_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
