"""Neural predictivity against scikit-learn, the true ceiling of simulated neurons, and chance."""

import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler

from oplens.errors import ArgumentError, DataError
from oplens.measurement import neural_predictivity, predictivity, reliability
from oplens.measurement.predictivity import RidgeFold


def recorded(rng, stimuli=120, features=6, neurons=4, repeats=8, noise=2.0):
    X = rng.standard_normal((stimuli, features))
    signal = X @ rng.standard_normal((features, neurons))
    signal /= signal.std(0)
    return X, signal[..., None] + noise * rng.standard_normal((stimuli, neurons, repeats))


@pytest.mark.parametrize(("stimuli", "features"), [(40, 7), (30, 60)])
def test_a_fold_is_scikit_learns_ridge(stimuli, features):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((stimuli, features)) * 10.0 ** rng.uniform(-2, 2, features) + 3
    Y = X[:, :1] / X[:, 0].std() + rng.standard_normal((stimuli, 3)) * [0.1, 1, 10] + 20
    train, test = np.arange(stimuli - 10), np.arange(stimuli - 10, stimuli)
    alphas = (0.1, 10.0, 1000.0)
    found, chosen = RidgeFold.of(X, train, test, alphas).predict(Y)
    scaler = StandardScaler().fit(X[train])
    theirs = RidgeCV(alphas=alphas, alpha_per_target=True).fit(scaler.transform(X[train]), Y[train])
    np.testing.assert_array_equal(chosen, theirs.alpha_)
    np.testing.assert_allclose(found, theirs.predict(scaler.transform(X[test])), rtol=1e-8)
    assert len(set(chosen.tolist())) > 1


def test_the_score_is_the_correlation_with_held_out_responses():
    rng = np.random.default_rng(1)
    X, Y = recorded(rng, stimuli=60)
    ds = neural_predictivity(X, Y, permutations=0, groups=np.repeat(np.arange(2), 30), folds=2, alphas=[5.0])
    mean, parts = Y.mean(-1), []
    for test in (slice(0, 30), slice(30, 60)):
        train = np.setdiff1d(np.arange(60), np.arange(60)[test])
        mu, sd = X[train].mean(0), X[train].std(0)
        Z = (X - mu) / sd
        w = np.linalg.solve(Z[train].T @ Z[train] + 5 * np.eye(6), Z[train].T @ (mean[train] - mean[train].mean(0)))
        parts.append([pearsonr((Z @ w)[test, k], mean[test, k])[0] for k in range(4)])
    np.testing.assert_allclose(ds.predictivity, np.mean(parts, axis=0), rtol=1e-9)
    assert (ds.alpha == 5).all()
    assert "p_value" not in ds


def test_ceiling_and_normalised_score_of_neurons_whose_noise_is_known():
    """Unit signal, noise of variance 4 over 8 repeats: reliability 1/(1 + 4/8) = 2/3, ceiling 0.816; the features explain all."""
    rng = np.random.default_rng(2)
    X, Y = recorded(rng, stimuli=600, neurons=12)
    ds = neural_predictivity(X, Y, permutations=0)
    assert float(ds.noise_ceiling.mean()) == pytest.approx(np.sqrt(2 / 3), abs=0.02)
    assert float(ds.median_normalised_predictivity) == pytest.approx(1, abs=0.03)
    assert float(ds.mean_predictivity) < 0.85


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_odd_numbers_of_repeats_are_stepped_up_to_all_of_them(repeats):
    rng = np.random.default_rng(3)
    Y = rng.standard_normal((4000, 3, 1)) + rng.standard_normal((4000, 3, repeats))
    np.testing.assert_allclose(reliability(Y), repeats / (repeats + 1), atol=0.03)


def test_neurons_without_signal_have_no_ceiling():
    rng = np.random.default_rng(4)
    X, Y = recorded(rng, neurons=2)
    Y[:, 1] = 3.0
    ds = neural_predictivity(X, Y, permutations=0)
    assert np.isnan(ds.normalised_predictivity[1])
    assert float(ds.predictivity[1]) == 0
    assert np.isfinite(ds.median_normalised_predictivity)


def test_p_is_uniform_without_a_relation_and_small_with_one():
    rng = np.random.default_rng(5)
    p = [
        float(
            neural_predictivity(
                rng.standard_normal((24, 5)),
                rng.standard_normal((24, 2)),
                permutations=19,
                folds=3,
                seed=k,
                alphas=[10.0],
            ).p_value
        )
        for k in range(100)
    ]
    assert set(np.round(np.array(p) * 20, 9)) <= set(range(1, 21))
    assert abs(np.mean(np.array(p) <= 0.2) - 0.2) < 4 * np.sqrt(0.16 / 100)
    assert abs(np.mean(p) - 0.525) < 4 * 0.29 / 10
    X, Y = recorded(rng)
    ds = neural_predictivity(X, Y, permutations=19)
    assert float(ds.p_value) == 0.05
    assert float(ds.null_mean) < 0.2 < float(ds.mean_predictivity)


def test_groups_stop_what_leaks_between_neighbours():
    """Features and responses share a slow drift within each text and nothing else: random folds see it, whole texts do not."""
    rng = np.random.default_rng(6)
    groups = np.repeat(np.arange(12), 10)
    X = np.repeat(rng.standard_normal((12, 8)), 10, axis=0) + 0.1 * rng.standard_normal((120, 8))
    Y = np.repeat(rng.standard_normal((12, 3)), 10, axis=0) + 0.1 * rng.standard_normal((120, 3))
    leaking, honest = (
        neural_predictivity(X, Y, permutations=49),
        neural_predictivity(X, Y, groups=groups, permutations=49, folds=4),
    )
    assert float(leaking.mean_predictivity) > 0.5
    assert float(leaking.p_value) == 0.02
    assert float(honest.mean_predictivity) < 0.4
    assert float(honest.p_value) > 0.05


def test_groups_are_permuted_whole():
    """Nothing is shared, but rows of a group are alike: permuting single rows would call half of such data significant at 0.2."""
    rng, low = np.random.default_rng(9), 0
    for k in range(80):
        X, Y = (np.repeat(rng.standard_normal((8, d)), 6, axis=0) + 0.1 * rng.standard_normal((48, d)) for d in (3, 1))
        ds = neural_predictivity(
            X, Y, groups=np.repeat(np.arange(8), 6), folds=2, permutations=19, alphas=[10.0], seed=k
        )
        low += float(ds.p_value) <= 0.2
    assert abs(low / 80 - 0.2) < 3.5 * np.sqrt(0.16 / 80)


def test_order_of_stimuli_and_constant_features_do_not_matter():
    rng = np.random.default_rng(7)
    X, Y = recorded(rng, stimuli=40)
    groups = np.arange(40) // 10
    order = rng.permutation(40)
    one = neural_predictivity(X, Y, groups=groups, folds=4, permutations=0)
    more = np.column_stack([X, np.full(40, 0.1)])
    two = neural_predictivity(more[order], Y[order], groups=groups[order], folds=4, permutations=0)
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-9, err_msg=str(name))
    nothing = neural_predictivity(np.ones((40, 2)), Y, permutations=9)
    assert (float(nothing.mean_predictivity), float(nothing.p_value)) == (0, 1)


GOOD = np.random.default_rng(8).standard_normal((20, 3))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: neural_predictivity(GOOD, GOOD[:19]), ArgumentError, "same stimuli"),
        (lambda: neural_predictivity(GOOD, GOOD * np.nan), DataError, "NaN"),
        (lambda: neural_predictivity(GOOD, GOOD[:, 0]), ArgumentError, "n_neurons"),
        (lambda: neural_predictivity(GOOD, GOOD, folds=21), ArgumentError, "fewer folds"),
        (lambda: neural_predictivity(GOOD, GOOD, folds=10), DataError, "Give fewer folds"),
        (lambda: neural_predictivity(GOOD, GOOD, folds=1), ArgumentError, "at least 2"),
        (lambda: neural_predictivity(GOOD, GOOD, alphas=[0.0]), ArgumentError, "positive"),
        (lambda: neural_predictivity(GOOD, GOOD, groups=np.arange(3)), ArgumentError, "one label"),
        (
            lambda: neural_predictivity(GOOD, GOOD, groups=np.arange(20) // 6),
            DataError,
            "have 6 of the 20 orders .* one size",
        ),
        (lambda: reliability(GOOD[..., None]), DataError, "two repeats"),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_groups_are_exchanged_for_groups_of_their_size(monkeypatch):
    """Every permutation moves whole groups, rows in order, among equals; one that has no equal stays."""
    sizes = [3, 5, 3, 4, 5, 3, 3, 5]
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(8), sizes))
    seen = []
    monkeypatch.setattr(predictivity, "_score", lambda fitted, Y: seen.append(Y.astype(int)[:, 0]) or Y[0])
    predictivity.null_predictivity([], np.arange(31.0)[:, None], groups, 300, 0)
    rows = [np.flatnonzero(groups == g).tolist() for g in range(8)]
    came = {g: set() for g in range(8)}
    for source in seen:
        for g in range(8):
            came[g].add(rows.index(source[rows[g]].tolist()))
    threes, fives = {0, 2, 5, 6}, {1, 4, 7}
    assert came == {0: threes, 2: threes, 5: threes, 6: threes, 1: fives, 4: fives, 7: fives, 3: {3}}
    assert len({tuple(source) for source in seen}) > 100  # of 4! 3! = 144


def test_p_of_unequal_groups_is_uniform_where_nothing_is_shared():
    small, sizes = 0, np.array([4, 6] * 4)
    groups = np.repeat(np.arange(8), sizes)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        X, Y = (rng.standard_normal((8, 3))[groups] + 0.3 * rng.standard_normal((40, 3)) for _ in range(2))
        options = {"groups": groups, "folds": 2, "permutations": 19, "alphas": [10.0], "halves": 1, "seed": seed}
        small += float(neural_predictivity(X, Y, **options).p_value) <= 0.2
    assert abs(small / 100 - 0.2) < 4 * np.sqrt(0.16 / 100)
