"""Perplexity against torch's cross-entropy over everything at once, and against the mean of windows it must not be."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oplens.errors import ArgumentError, DataError
from oplens.measurement import PredictionTotals, token_log_probabilities


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(2, 6), min_size=1, max_size=5), st.booleans(), st.integers(0, 10**6))
def test_unequal_windows_and_padding_against_torch(lengths, left, seed):
    rng = np.random.default_rng(seed)
    total, losses, windows = None, [], []
    for n in lengths:
        logits, tokens = 4 * rng.standard_normal((1, n, 7)), rng.integers(0, 7, (1, n))
        nll = torch.nn.functional.cross_entropy(
            torch.tensor(logits[0, :-1]), torch.tensor(tokens[0, 1:]), reduction="none"
        )
        losses += nll.tolist()
        windows.append(math.exp(nll.mean()))
        pad = ((0, 0), (2, 0) if left else (0, 2))
        mask = np.pad(np.ones((1, n)), pad)
        scores = np.pad(logits, (*pad, (0, 0)), constant_values=np.nan)
        part = PredictionTotals.of(
            *token_log_probabilities(scores, np.pad(tokens, pad, constant_values=-100), mask), n_bytes=[3 * n]
        )
        total = part if total is None else part + total
    ds = total.statistics()
    assert float(ds.perplexity) == pytest.approx(math.exp(np.mean(losses)), rel=1e-12)
    assert float(ds.bits_per_byte) == pytest.approx(sum(losses) / math.log(2) / (3 * sum(lengths)), rel=1e-12)
    assert (int(ds.n_predictions), int(ds.n_bytes)) == (sum(lengths) - len(lengths), 3 * sum(lengths))
    if len(set(lengths)) > 1:
        assert abs(float(ds.perplexity) - np.mean(windows)) > 1e-6
    if len(lengths) == 1:
        assert np.isnan(ds.perplexity_low)
    else:
        assert float(ds.perplexity_low) <= float(ds.perplexity) <= float(ds.perplexity_high)


def test_large_scores_do_not_overflow_and_impossible_tokens_are_infinite():
    logs, _ = token_log_probabilities([[[1000.0, -1000.0], [0, 0]]], [[0, 1]])
    assert logs[0, 0] == -2000
    ds = (PredictionTotals.of([[-np.inf, -1.0]]) + PredictionTotals.of([[-1.0, -1.0]])).statistics()
    assert float(ds.perplexity) == np.inf
    assert int(ds.n_predictions) == 4
    blocked, _ = token_log_probabilities([[[-np.inf, 0.0], [0, 0]]], [[0, 0]])
    assert blocked[0, 0] == -np.inf


def test_a_uniform_model_has_the_vocabulary_as_perplexity():
    logs, mask = token_log_probabilities(np.zeros((3, 5, 11), dtype=np.float32), np.zeros((3, 5), dtype=int))
    ds = PredictionTotals.of(logs, mask, n_bytes=[4, 4, 4]).statistics()
    assert float(ds.perplexity) == pytest.approx(11, rel=1e-12)
    assert float(ds.bits_per_byte) == pytest.approx(math.log2(11), rel=1e-12)
    assert float(ds.loss_error) == pytest.approx(0, abs=1e-12)


def test_tokens_that_are_no_text_cost_perplexity_and_no_bits():
    """Beginnings and ends between two stories; a case of nothing else has no bytes and no part in bits per byte or its error."""
    logs = -np.array([[1.0, 2.0, 30.0], [4.0, 0.5, 7.0], [9.0, 9.0, 9.0], [3.0, 1.0, 2.0]])
    mask = [[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]]
    text = [[1, 1, 0], [1, 1, 1], [0, 0, 0], [0, 1, 1]]
    parts = [
        PredictionTotals.of(logs[k], np.array(mask)[k], np.array([5, 3, 0, 4])[k], np.array(text)[k])
        for k in (slice(0, 1), slice(1, 4))
    ]
    ds = (parts[0] + parts[1]).statistics()
    assert float(ds.loss) == pytest.approx((33 + 4.5 + 27 + 6) / 11, rel=1e-12)
    bits, sizes = np.array([3, 4.5, 3]) / math.log(2), np.array([5, 3, 4])
    rate, K = bits.sum() / 12, 12**2 / (25 + 9 + 16)
    assert float(ds.bits_per_byte) == pytest.approx(rate, rel=1e-12)
    assert float(ds.bits_per_byte_error) == pytest.approx(
        math.sqrt(K / (K - 1) * ((bits - rate * sizes) ** 2).sum()) / 12, rel=1e-12
    )
    assert (int(ds.n_predictions), int(ds.n_bytes)) == (11, 12)
    nothing = PredictionTotals.of(logs[2:3], n_bytes=[0], text=[[0, 0, 0]]).statistics()
    assert "bits_per_byte" not in nothing


LOGS = [[-1.0, -2.0]]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: PredictionTotals.of([[0.5, 0.1]]), DataError, "not probabilities"),
        (lambda: PredictionTotals.of([[np.nan, -1]]), DataError, "NaN"),
        (lambda: PredictionTotals.of([-1.0]), ArgumentError, "n_cases, n_predictions"),
        (lambda: PredictionTotals.of(LOGS, [[0, 0]]).statistics(), DataError, "no predictions"),
        (lambda: PredictionTotals.of(LOGS, n_bytes=[1.5]), ArgumentError, "whole numbers"),
        (lambda: PredictionTotals.of(LOGS, n_bytes=[0]), DataError, "predictions of text without bytes"),
        (lambda: PredictionTotals.of(LOGS, n_bytes=[3], text=[[0, 0]]), DataError, "bytes without predictions of text"),
        (lambda: PredictionTotals.of(LOGS, n_bytes=[3], text=[1, 0]), ArgumentError, "n_cases, n_predictions"),
        (lambda: PredictionTotals.of(LOGS) + PredictionTotals.of(LOGS, n_bytes=[2]), ArgumentError, "all or for none"),
        (lambda: token_log_probabilities(np.zeros((1, 2, 3)), [[0, 3]]), DataError, "vocabulary"),
        (lambda: token_log_probabilities(np.zeros((1, 2, 3)), [[0, -100]]), DataError, "mask padding"),
        (lambda: token_log_probabilities(np.zeros((1, 2, 3)), [[0.0, 1.0]]), ArgumentError, "whole numbers"),
        (lambda: token_log_probabilities(np.full((1, 2, 3), np.nan), [[0, 1]]), DataError, "NaN"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()
