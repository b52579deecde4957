"""Layers against the best of them: resamples and pairs in loops, and how often intervals hold what they are to hold."""

import numpy as np
import pytest

from oplens.measurement import best_layer, predictivity
from oplens.measurement.best_layer import against_best, resampled_predictivity


def folds_of(sizes, neurons=3, seed=0):
    """Predictions and responses of folds whose units have the given numbers of stimuli, units numbered through and shuffled."""
    rng = np.random.default_rng(seed)
    predictions, responses, units, first = [], [], [], 0
    for fold in sizes:
        unit = rng.permutation(np.repeat(np.arange(first, first + len(fold)), fold))
        first += len(fold)
        Y = 3 + rng.standard_normal((len(unit), neurons))
        predictions.append(1e3 + 0.7 * Y + rng.standard_normal(Y.shape))
        responses.append(Y)
        units.append(unit)
    return predictions, responses, units


@pytest.mark.parametrize("entries", [2**20, 100])
def test_resamples_are_correlations_of_the_rows_drawn(monkeypatch, entries):
    monkeypatch.setattr(best_layer, "ENTRIES", entries)
    predictions, responses, units = folds_of([(1, 1, 1, 1, 1, 1), (4, 2, 3, 3)])
    found = resampled_predictivity(predictions, responses, units, 25, 7)
    rng, expected = np.random.default_rng(7), np.zeros((2, 25))
    for f, (P, Y, unit) in enumerate(zip(predictions, responses, units, strict=True)):
        names = sorted(set(unit.tolist()))
        for k in range(25):
            times = rng.multinomial(len(names) - 1, [1 / len(names)] * len(names))
            rows = [
                i for name, n in zip(names, times, strict=True) for _ in range(n) for i in np.flatnonzero(unit == name)
            ]
            for j in range(3):
                if len(set(rows)) > 1:
                    expected[f, k] += np.corrcoef(P[rows, j], Y[rows, j])[0, 1] / 3
    np.testing.assert_allclose(found, expected.mean(0), rtol=1e-9)


def test_constant_predictions_and_resamples_count_as_no_correlation():
    predictions, responses, units = folds_of([(1,) * 6], neurons=2)
    predictions[0][:, 0] = 0.1
    both = resampled_predictivity(predictions, responses, units, 30, 0)
    second = resampled_predictivity([predictions[0][:, 1:]], [responses[0][:, 1:]], units, 30, 0)
    np.testing.assert_allclose(both, second / 2, rtol=1e-12)
    pairs = resampled_predictivity(
        *folds_of([(1, 1, 1)], neurons=1), 200, 0
    )  # two draws: a line, or one stimulus twice
    assert set(np.abs(pairs).round(9)) == {0.0, 1.0}
    assert np.mean(pairs == 0) == pytest.approx(1 / 3, abs=4 * np.sqrt(2 / 9 / 200))


def test_intervals_are_those_of_all_pairs():
    rng = np.random.default_rng(3)
    common = rng.standard_normal(400)
    drawn = 0.4 + 0.02 * np.array([common + s * rng.standard_normal(400) for s in (0.2, 0.5, 1.0, 0.3)])
    means = np.array([0.41, 0.44, 0.40, 0.36])
    found = against_best(means, drawn, 0.9, 12)
    wider = 1.7822875556 / 1.6448536270  # Student's t with 12 degrees of freedom and the normal distribution at .95
    low, high = [], []
    for i in range(4):
        spread = {j: np.std(drawn[i] - drawn[j]) for j in range(4) if j != i}
        largest = [max(abs(d[i] - d[j] - np.mean(drawn[i] - drawn[j])) / spread[j] for j in spread) for d in drawn.T]
        reach = wider * np.quantile(largest, 0.9)
        low.append(min([0.0, *(means[i] - means[j] - reach * spread[j] for j in spread)]))
        high.append(min([0.0, *(means[i] - means[j] + reach * spread[j] for j in spread)]))
    np.testing.assert_allclose(found["difference_to_best_low"][1], low, rtol=1e-8)
    np.testing.assert_allclose(found["difference_to_best_high"][1], high, rtol=1e-8)
    assert [value == 0 for value in high] == [False, True, True, False]
    np.testing.assert_allclose(found["difference_to_best"][1], [-0.03, 0, -0.04, -0.08], atol=1e-15)
    for layer in range(4):
        reach = wider * np.quantile(np.abs(drawn[layer] - drawn[layer].mean()), 0.9)
        assert found["mean_predictivity_low"][1][layer] == pytest.approx(means[layer] - reach, rel=1e-8)
        assert found["mean_predictivity_high"][1][layer] == pytest.approx(means[layer] + reach, rel=1e-8)


def test_equal_layers_differ_by_nothing_and_correlations_end_at_one():
    drawn = np.tile(3 * np.random.default_rng(0).standard_normal(200), (2, 1))
    found = against_best(np.array([0.9, 0.9]), drawn, 0.95, 50)
    for end in ("", "_low", "_high"):
        np.testing.assert_array_equal(found[f"difference_to_best{end}"][1], [0, 0])
    assert found["mean_predictivity_high"][1].tolist() == [1, 1]
    assert found["mean_predictivity_low"][1].tolist() == [-1, -1]


@pytest.mark.parametrize("truth", [(0.3,) * 12, (0.3, 0.3, 0.29, 0.27, 0.2, 0.1)])
def test_the_luck_of_the_best_is_allowed_for(truth):
    """Normal errors of known spread: the truly best layer is kept, while intervals of pairs with the winner miss too often."""
    rng, truth = np.random.default_rng(1), np.array(truth)
    layers = len(truth)
    factor = 0.01 * np.linalg.cholesky(0.5 * np.eye(layers) + 0.5)
    held, kept, naive = np.zeros(layers), np.zeros(layers), 0.0
    rounds = 400
    for _ in range(rounds):
        means = truth + factor @ rng.standard_normal(layers)
        found = against_best(means, factor @ rng.standard_normal((layers, 400)), 0.95, 10**6)
        low, high = found["difference_to_best_low"][1], found["difference_to_best_high"][1]
        held += (low <= truth - truth.max()) & (truth - truth.max() <= high)
        kept += high >= 0
        naive += means.max() - means[0] <= 1.96 * 0.01  # spread of a difference: sqrt(2 (1 - .5)) .01
    error = 4 * np.sqrt(0.05 * 0.95 / rounds)
    assert (held / rounds > 0.95 - error).all()
    assert kept[0] / rounds > 0.95 - error
    assert naive / rounds < 0.95 - error or truth[-1] < 0.3
    assert kept[-1] == 0 or truth[-1] == 0.3


def recordings(n, rounds, noise, size, folds, seed=0):
    """Of each simulated recording what was found, and what its readouts give on 1,500 other stimuli, for layers of unlike noise."""
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((8, 10)) / np.sqrt(8)

    def part(n, width):
        own, shared = rng.standard_normal((n, width)), rng.standard_normal((-(-n // size), width))
        return own if size == 1 else np.sqrt(0.5) * (own + np.repeat(shared, size, 0)[:n])

    for k in range(rounds):
        signal = part(n + 1500, 8)
        Y = signal @ mix + part(n + 1500, 10)
        layers = [signal + s * part(n + 1500, 8) for s in noise]
        blocks = np.arange(n) // size
        pairs = predictivity.divide("test", blocks, folds, k)
        means, drawn, truth = [], [], []
        for X in layers:
            fits = [predictivity.RidgeFold.of(X, train, np.arange(len(X)), (1.0, 10.0, 100.0)) for train, _ in pairs]
            every = [fit.predict(Y)[0] for fit in fits]
            held = [[P[test], Y[test], blocks[test]] for P, (_, test) in zip(every, pairs, strict=True)]
            means.append(np.mean([predictivity.correlation(P, y) for P, y, _ in held]))
            drawn.append(resampled_predictivity(*zip(*held, strict=True), 500, k))
            truth.append(np.mean([predictivity.correlation(P[n:], Y[n:]) for P in every]))
        freedom = len(set(blocks.tolist())) - folds
        yield np.array(means), np.array(truth), against_best(np.array(means), np.array(drawn), 0.95, freedom)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "size", "folds", "noise"),
    [(100, 1, 5, (1, 1, 1, 1)), (100, 1, 5, (0.7, 0.7, 0.8, 1.5)), (20, 1, 5, (1, 1, 1, 1)), (120, 6, 5, (1, 1, 1, 1))],
)
def test_differences_of_readouts_on_other_stimuli_are_held(n, size, folds, noise):
    rounds, held, kept = 200, 0, 0
    for _, truth, found in recordings(n, rounds, noise, size, folds):
        low, high = found["difference_to_best_low"][1], found["difference_to_best_high"][1]
        held += (low <= truth - truth.max()) & (truth - truth.max() <= high)
        kept += high[truth.argmax()] >= 0
    error = 4 * np.sqrt(0.05 * 0.95 / rounds)
    assert (held / rounds > 0.95 - error).all()
    assert kept / rounds > 0.95 - error
