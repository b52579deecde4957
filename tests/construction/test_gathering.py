"""Reals in slots at every position, against the sequence itself."""

import math

import numpy as np
import pytest
import torch

from oplens.construction.gathering import MARGIN, ROUNDOFF, gamma, gathering, read, write
from oplens.errors import ArgumentError
from oplens.models.transformer_layers import SparseLinear


def made(n, K=4, bounds=(0.0, 1.0), dtype=torch.float64):
    plan = gathering("test", n, K, bounds, dtype)
    return plan, plan.model(1, [1]).to(dtype)


def points(n, bounds, seed=0):
    """Random, and both ends."""
    rng = np.random.default_rng(seed)
    x = rng.random((60, n))
    x[:20] = rng.integers(0, 2, (20, n))
    return bounds[0] + (bounds[1] - bounds[0]) * x


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-3.0, 2.0)])
@pytest.mark.parametrize(("n", "K"), [(1, 4), (2, 1), (2, 4), (3, 4), (8, 4), (37, 6)])
def test_every_position_holds_all_values_in_order(n, K, bounds):
    plan, model = made(n, K, bounds)
    x = points(n, bounds)
    state = model.trace(torch.from_numpy(x)[..., None]).layers[1].hidden.detach().numpy()
    expected = (x - bounds[0]) / (bounds[1] - bounds[0])
    found = state[:, :, plan.gathered : plan.gathered + n]
    for position in range(n):
        np.testing.assert_allclose(found[:, position], expected, atol=1e-12)
    assert not state[:, :, plan.first :].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [2, 3, 12])
def test_no_value_leaks_into_another_slot_and_rounding_stays_below_its_bound(n, dtype):
    bounds = (-1.0, 2.0)
    plan, model = made(n, 4, bounds, dtype)
    x = points(n, bounds, seed=1)
    trace = model.trace(torch.from_numpy(x).to(dtype)[..., None])
    slots = trace.layers[0].activations
    off = ~torch.eye(n, dtype=torch.bool)
    assert not slots[:, off].any()
    assert slots.any()
    found = trace.layers[1].hidden[:, -1, plan.gathered : plan.gathered + n].double().detach().numpy()
    worst = np.abs(found - (x + 1) / 3).max()
    assert worst <= plan.error(ROUNDOFF[dtype])
    if dtype == torch.float32:
        assert worst > 1e-8  # float32 rounds, and the bound is not of another order of size
        assert plan.error(ROUNDOFF[dtype]) < 1e-3


@pytest.mark.parametrize("n", [2, 5, 16])
def test_other_slots_stay_below_zero_by_the_margin_at_the_least(n):
    """The pre-activation of position j in slot i by a plain loop over frequencies; the largest is 1 - (1 + margin)."""
    plan, _ = made(n)
    worst = -math.inf
    for i in range(n):
        for j in range(n):
            gap = sum(1 - math.cos(10000 ** (-k / 4) * (i - j)) for k in range(4))
            worst = max(worst, 1 - plan.slope * gap) if i != j else worst
    assert worst == pytest.approx(-MARGIN, abs=1e-9)


def test_attention_is_uniform():
    _, model = made(5)
    weights = model.trace(torch.rand(2, 5, 1, dtype=torch.float64)).layers[1].weights
    np.testing.assert_allclose(weights.detach().numpy(), 0.2, atol=1e-15)


def test_gamma_bounds_the_rounding_of_sums_in_float32():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 1000)).astype(np.float32)
    total = np.zeros(200, np.float32)
    for column in x.T:
        total = (total + column).astype(np.float32)
    error = np.abs(total - x.astype(np.float64).sum(1))
    bound = gamma(999, 2.0**-24) * np.abs(x.astype(np.float64)).sum(1)
    assert (error <= bound).all()
    assert error.max() > 0
    assert gamma(3, 0.1) == pytest.approx(3 / 7)
    with pytest.raises(ArgumentError, match="no certified digit"):
        gamma(10, 0.1)


def test_entries_of_one_place_add_up_and_zeros_are_left_out():
    linear = SparseLinear(3, 2).double()
    write(linear, [1, 0, 1, 0], [2, 0, 2, 1], [1.5, 1.0, 2.0, 0.0], [0.0, 7.0])
    rows, columns, values, bias = read(linear)
    assert (rows.tolist(), columns.tolist(), values.tolist(), bias.tolist()) == ([0, 1], [0, 2], [1.0, 3.5], [0.0, 7.0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2, 4, (0.0, 1.0), torch.float16), "choose torch.float64 or torch.float32"),
        ((2, 4, (0.0, 1.0), torch.bfloat16), "choose torch.float64 or torch.float32"),
        ((2, 4, (1e6, 1e6 + 1), torch.float32), "could let values leak between positions"),
    ],
)
def test_what_rounding_would_spoil_is_refused(arguments, words):
    with pytest.raises(ArgumentError, match=words):
        gathering("test", *arguments)
