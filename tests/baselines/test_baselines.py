"""Baselines against plain loops, scikit-learn called directly, and the known figure of SelfRegulationSCP1."""

import itertools
import math

import numpy as np
import pytest
import xarray as xr
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from oplens.baselines import (
    HINDSIGHT,
    band_powers,
    evaluate,
    headline,
    step_window_means,
    window_means,
)
from oplens.data import SequenceData, load_example, noisy_sinusoids, read_ts
from oplens.errors import ArgumentError, DataError
from oplens.results import validate


def sequences(cases: list[np.ndarray], y: list[str] | None = None, pad: int = 0) -> SequenceData:
    longest = max(case.shape[1] for case in cases) + pad
    X = np.zeros((len(cases), cases[0].shape[0], longest))
    for i, case in enumerate(cases):
        X[i, :, : case.shape[1]] = case
    return SequenceData(
        X=X,
        lengths=np.array([case.shape[1] for case in cases], dtype=np.int64),
        y=None if y is None else np.array(y),
        channels=tuple(f"c{i}" for i in range(X.shape[1])),
        classes=() if y is None else tuple(sorted(set(y))),
        sampling_rate=None,
        name="test",
        source="test",
    )


def ragged(seed: int, lengths: list[int], n_channels: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(3.0, 2.0, (n_channels, length)) for length in lengths]


def two_classes(seed: int, n: int = 40, n_channels: int = 3, gap: float = 1.0, length: int = 20) -> SequenceData:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    cases = [rng.normal(gap * label * np.arange(n_channels)[:, None], 3.0, (n_channels, length)) for label in y]
    return sequences(cases, ["ab"[label] for label in y])


def test_channel_means_are_over_own_steps():
    cases = ragged(0, [5, 9, 1])
    expected = [[sum(row) / len(row) for row in case.tolist()] for case in cases]
    np.testing.assert_allclose(sequences(cases).means(), expected, rtol=1e-12)


def test_even_windows_by_a_plain_loop():
    cases = ragged(1, [11, 4, 2])
    got = window_means(sequences(cases), 3).reshape(3, 2, 3)
    for i, case in enumerate(cases):
        length = case.shape[1]
        for k in range(3):
            start = math.floor(k * length / 3)
            stop = max(start + 1, math.floor((k + 1) * length / 3))
            for c in range(2):
                assert got[i, c, k] == pytest.approx(sum(case[c, start:stop]) / (stop - start), rel=1e-12)


def test_64_step_windows_of_equal_cases_end_with_a_shorter_one():
    cases = ragged(2, [150, 150])
    got = step_window_means(sequences(cases), 150).reshape(2, 2, 3)
    for i, case in enumerate(cases):
        for k, (start, stop) in enumerate([(0, 64), (64, 128), (128, 150)]):
            np.testing.assert_allclose(got[i, :, k], [np.mean(case[c, start:stop]) for c in range(2)], rtol=1e-12)


def test_64_step_windows_of_unequal_cases_divide_each_case():
    data = sequences(ragged(3, [150, 30]))
    np.testing.assert_array_equal(step_window_means(data, 150), window_means(data, 3))


def test_band_powers_by_the_defining_sum():
    cases = ragged(4, [24, 17])
    got = band_powers(sequences(cases), 3).reshape(2, 2, 3)
    for i, case in enumerate(cases):
        length = case.shape[1]
        window = [0.5 - 0.5 * math.cos(2 * math.pi * (t + 1) / (length + 1)) for t in range(length)]
        for c in range(2):
            x = case[c] - sum(case[c]) / length
            powers: dict[int, list[float]] = {0: [], 1: [], 2: []}
            for k in range(1, length // 2 + 1):
                total = sum(window[t] * x[t] * np.exp(-2j * math.pi * k * t / length) for t in range(length))
                # (1/4, 1/2] is band 0, (1/8, 1/4] band 1, ...
                band = next(b for b in range(9) if 0.25 / 2**b < k / length <= 0.5 / 2**b)
                if band in powers:
                    powers[band].append(abs(total) ** 2 / sum(w * w for w in window))
            np.testing.assert_allclose(got[i, c], [np.mean(powers[b]) for b in range(3)], rtol=1e-9)


@pytest.mark.parametrize(("frequency", "band"), [(0.4, 0), (0.2, 1), (0.1, 2), (0.05, 3)])
def test_a_sinusoid_lies_in_its_octave_whatever_its_offset(frequency: float, band: int):
    wave = np.sin(2 * np.pi * frequency * np.arange(400))[None] + 1000.0
    powers = band_powers(sequences([wave]), 5)[0]
    assert powers.argmax() == band
    assert powers[band] > 1e3 * np.delete(powers, band).max()


@pytest.mark.parametrize(
    "features",
    [SequenceData.means, lambda d: window_means(d, 4), lambda d: step_window_means(d, 70), lambda d: band_powers(d, 3)],
)
def test_padding_enters_no_feature(features):
    cases = ragged(5, [70, 33, 12])
    np.testing.assert_allclose(features(sequences(cases, pad=40)), features(sequences(cases)), rtol=1e-13)


def test_channel_mean_row_equals_scikit_learn_called_directly():
    train, test = two_classes(0), two_classes(1, n=50)
    X = np.array([case.mean(axis=1) for case in train.cases()])
    X_test = np.array([case.mean(axis=1) for case in test.cases()])
    scores = {}
    for strength in (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0):
        folds = []
        for fit, held in StratifiedKFold(5, shuffle=True, random_state=0).split(X, train.y):
            centre, scale = X[fit].mean(0), X[fit].std(0)
            model = LogisticRegression(C=strength, max_iter=5000).fit((X[fit] - centre) / scale, train.y[fit])
            folds.append(np.mean(model.predict((X[held] - centre) / scale) == train.y[held]))
        scores[strength] = np.mean(folds)
    best = max(scores, key=lambda c: (round(scores[c], 12), -c))
    model = LogisticRegression(C=best, max_iter=5000).fit((X - X.mean(0)) / X.std(0), train.y)
    row = evaluate(train, test).sel(baseline="channel means")
    assert float(row["cv_accuracy"]) == pytest.approx(scores[best], abs=1e-12)
    assert float(row["accuracy"]) == np.mean(model.predict((X_test - X.mean(0)) / X.std(0)) == test.y)


def test_hindsight_is_the_best_pair_on_the_test_set():
    train, test = two_classes(2, n_channels=4), two_classes(3, n_channels=4)
    X, X_test = train.X.mean(2), test.X.mean(2)
    best = {}
    for pair in itertools.combinations(range(4), 2):
        A, B = X[:, pair], X_test[:, pair]
        model = LogisticRegression(max_iter=5000).fit((A - A.mean(0)) / A.std(0), train.y)
        best[pair] = np.mean(model.predict((B - A.mean(0)) / A.std(0)) == test.y)
    table = evaluate(train, test)
    assert float(table["accuracy"].sel(baseline=HINDSIGHT)) == max(best.values())
    named = tuple(train.channels.index(name) for name in table.attrs["hindsight_channels"].split(", "))
    assert best[named] == max(best.values())
    assert table["hindsight"].values.tolist() == [name == HINDSIGHT for name in table["baseline"].values]


def test_majority_is_that_of_the_training_set():
    train = sequences(ragged(6, [8] * 10), list("aaaaaaabbb"))
    test = sequences(ragged(7, [8] * 4), list("abbb"))
    table = evaluate(train, test).sel(baseline="majority class")
    assert (float(table["cv_accuracy"]), float(table["accuracy"])) == (0.7, 0.25)


def test_frequency_decides_and_means_do_not():
    train, test = (noisy_sinusoids(n_cases=100, frequencies=(5.0, 30.0), seed=seed) for seed in (0, 1))
    table = evaluate(train, test, model_accuracy=0.9)["accuracy"]
    assert float(table.sel(baseline="band powers")) == 1.0
    assert float(table.sel(baseline="channel means")) < 0.75


def test_table_obeys_the_schema_and_repeats():
    train, test = load_example("JapaneseVowels"), load_example("JapaneseVowels", "test")
    table = evaluate(train, test, model_accuracy=0.5)
    validate(xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "t"}), "/baselines": table}))
    again = evaluate(train, test, model_accuracy=0.5)
    xr.testing.assert_equal(table, again)
    assert table["baseline"].values.tolist() == [
        "channel means",
        "64-step window means",
        "8 window means",
        "band powers",
        "majority class",
        HINDSIGHT,
    ]
    assert table.attrs["headline"].startswith('The baseline "8 window means" (')
    assert " beats the model (50.0%), on 370 test cases" in table.attrs["headline"]


def test_without_test_labels_only_training_folds_speak():
    train = two_classes(4)
    table = evaluate(train, sequences(two_classes(5).cases()))
    assert "accuracy" not in table
    assert HINDSIGHT not in table["baseline"].values
    assert float(table["cv_accuracy"].sel(baseline="channel means")) > 0.5
    assert table.attrs["headline"].startswith("The test cases have no labels")


def test_one_case_of_a_class_leaves_no_folds():
    train = sequences(ragged(8, [8] * 5), list("aaaab"))
    table = evaluate(train, sequences(ragged(9, [8] * 3), list("aab")))
    assert math.isnan(float(table["cv_accuracy"].sel(baseline="channel means")))
    assert 0 <= float(table["accuracy"].sel(baseline="channel means")) <= 1


def test_single_steps_and_silent_channels_are_no_obstacle():
    cases = [np.vstack([x, np.zeros_like(x)]) for x in ragged(10, [1, 2, 1, 3, 5, 4], n_channels=1)]
    table = evaluate(sequences(cases, list("ababab")), sequences(cases, list("ababab")))
    assert np.isfinite(table["accuracy"]).all()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            0.80,
            'The baseline "picked" (90.0%) beats the model (80.0%), and "means" (85.0%), chosen without hindsight, beats it, on',
        ),
        (
            0.85,
            'The baseline "picked" (90.0%) beats the model (85.0%), and "means" (85.0%), chosen without hindsight, ties with it,',
        ),
        (0.87, 'The baseline "picked" (90.0%) beats the model (87.0%), on 200 test cases'),
        (0.90, 'The baseline "picked" (90.0%) ties with the model (90.0%), on 200 test cases'),
        (0.95, 'The model (95.0%) is 5.0 points ahead of the best baseline, "picked" (90.0%)'),
        (None, 'The best baseline on 200 test cases is "picked" (90.0%).'),
    ],
)
def test_headline_says_first_who_wins(model: float | None, expected: str):
    assert headline({"means": 0.85, "picked": 0.90}, model, 200, hindsight=("picked",)).startswith(expected)


def test_headline_interval_is_wilsons():
    n, p, z = 50, 0.9, 1.959963984540054
    centre, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((centre + sign * half) / (1 + z * z / n) for sign in (-1, 1))
    assert headline({"means": 0.1}, p, n).endswith(f"{low:.1%} to {high:.1%}.")


def test_scp1_is_decided_by_two_channel_means_with_hindsight(shared_data):
    folder = shared_data / "data" / "SelfRegulationSCP1"
    train, test = (read_ts(folder / f"SelfRegulationSCP1_{part}.ts") for part in ("TRAIN", "TEST"))
    table = evaluate(train, test, model_accuracy=250 / 293)
    assert float(table["accuracy"].sel(baseline=HINDSIGHT)) == pytest.approx(0.87, abs=0.005)
    assert table.attrs["headline"].startswith(f'The baseline "{HINDSIGHT}" (87.0%) beats the model (85.3%), and ')
    assert '"64-step window means" (85.3%), chosen without hindsight, ties with it' in table.attrs["headline"]
    assert "8 window means" not in table["baseline"].values


def test_refusals_are_sentences():
    train, test = two_classes(6), two_classes(7)
    with pytest.raises(DataError, match=r"training cases have no labels"):
        evaluate(sequences(train.cases()), test)
    with pytest.raises(DataError, match=r"all training cases are 'a'; at least two classes"):
        evaluate(sequences(train.cases(), ["a"] * 40), test)
    with pytest.raises(DataError, match=r"have 3 channels, the test cases 2"):
        evaluate(train, two_classes(8, n_channels=2))
    with pytest.raises(ArgumentError, match=r"model_accuracy=87.*between 0 and 1"):
        evaluate(train, test, model_accuracy=87)
    with pytest.raises(ArgumentError, match=r"no labels to compare"):
        evaluate(train, sequences(test.cases()), model_accuracy=0.5)
