"""What goes in and what comes out: padding, labels, names, preprocessing, and sentences for what cannot work."""

import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from oplens.data import SequenceData, as_sequences, load_example, noisy_sinusoids
from oplens.errors import ArgumentError, DataError
from oplens.estimator import S4DClassifier
from oplens.models import S4D, Preprocessing

QUICK = {"d_model": 4, "d_state": 8, "max_epochs": 2, "batch_size": 8, "patience": 20}


@pytest.fixture(scope="module")
def vowels() -> SequenceData:
    whole = load_example("JapaneseVowels")
    return whole.select(np.flatnonzero(np.isin(whole.y, ["1", "5"]))[::2])


@pytest.fixture(scope="module")
def fitted(vowels: SequenceData) -> S4DClassifier:
    return S4DClassifier(**QUICK).fit(vowels.cases(), vowels.y)


@pytest.fixture(scope="module")
def waves() -> SequenceData:
    return noisy_sinusoids(n_cases=24, n_timepoints=30, seed=0)


def plain_logits(model: S4D, case: np.ndarray) -> np.ndarray:
    """Logits of one case (channels, length) by the textbook recurrence, step by step in complex128."""
    p, config = {k: v.double() for k, v in model.state_dict().items()}, model.config
    x = (case - np.array(config.preprocessing.mean)[:, None]) / np.array(config.preprocessing.scale)[:, None]
    u = p["encoder.weight"] @ torch.tensor(x) + p["encoder.bias"][:, None]
    kernel = {k.split(".")[-1]: v for k, v in p.items() if ".kernel." in k}
    A = torch.complex(-kernel["log_A_real"].exp(), kernel["A_imag"])
    a = torch.exp(A * kernel["log_dt"].exp()[:, None])
    b, C = (a - 1) / A, torch.view_as_complex(kernel["C"].contiguous())
    state, total = torch.zeros_like(a), torch.zeros(config.d_model, dtype=torch.float64)
    for t in range(case.shape[1]):
        state = a * state + b * u[:, t : t + 1]
        z = 2 * (C * state).real.sum(1) + p["s4_layers.0.D"] * u[:, t]
        total += 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))
    return (p["decoder.weight"] @ (total / case.shape[1]) + p["decoder.bias"]).numpy()


def test_probabilities_are_those_of_the_recurrence_of_each_case_alone(fitted: S4DClassifier, vowels: SequenceData):
    logits = np.array([plain_logits(fitted.model_, case) for case in vowels.cases()])
    odds = np.exp(logits)
    np.testing.assert_allclose(fitted.predict_proba(vowels), odds / odds.sum(1, keepdims=True), rtol=1e-10)
    np.testing.assert_allclose(fitted.decision_function(vowels), logits[:, 1] - logits[:, 0], rtol=1e-9, atol=1e-10)
    assert fitted.predict(vowels).tolist() == [["1", "5"][int(row[1] > row[0])] for row in logits]
    assert fitted.score(vowels) == np.mean(fitted.predict(vowels) == vowels.y)


def test_padding_and_company_change_no_probability(fitted: S4DClassifier, vowels: SequenceData):
    padded = SequenceData(
        X=np.pad(vowels.X, ((0, 0), (0, 0), (0, 77))),
        lengths=vowels.lengths,
        y=vowels.y,
        channels=vowels.channels,
        classes=vowels.classes,
        sampling_rate=None,
        name="padded",
        source="padded",
    )
    expected = fitted.predict_proba(vowels)
    np.testing.assert_array_equal(fitted.predict_proba(padded), expected)
    alone = np.concatenate([fitted.predict_proba([case]) for case in vowels.cases()])
    np.testing.assert_allclose(alone, expected, rtol=1e-12)
    again = S4DClassifier(**QUICK).fit(padded)
    for name, tensor in fitted.model_.state_dict().items():
        assert torch.equal(tensor, again.model_.state_dict()[name]), name


def test_multiclass_decision_function_holds_logits():
    data = load_example("BasicMotions")
    model = S4DClassifier(**QUICK).fit(data.X, data.y)
    with torch.no_grad():
        logits = model.model_.as_float64()(torch.tensor(data.X).transpose(1, 2))
    np.testing.assert_allclose(model.decision_function(data.X), logits, atol=1e-12)
    assert (
        model.classes_.tolist() == ["Badminton", "Running", "Standing", "Walking"] == list(model.model_.config.classes)
    )


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["b", "a", "B"], ["B", "a", "b"]),
        ([10, 9, -1], ["-1", "9", "10"]),
        ([True, False, True], ["False", "True"]),
        (["10", "9", "1"], ["1", "10", "9"]),
    ],
)
def test_classes_are_sorted_as_scikit_learn_sorts_them(waves: SequenceData, labels: list, names: list[str]):
    y = [labels[i % 3] for i in range(24)]
    model = S4DClassifier(**QUICK).fit(waves.X, y)
    assert model.classes_.tolist() == sorted(set(labels))
    assert list(model.model_.config.classes) == names
    assert set(model.predict(waves.X).tolist()) <= set(labels)


def test_names_rate_and_preprocessing_travel_with_the_model(waves: SequenceData, tmp_path: Path):
    model = S4DClassifier(**{**QUICK, "patience": None}).fit(waves)
    model.model_.save_pretrained(tmp_path)
    back = S4D.from_pretrained(tmp_path)
    assert back.config == model.model_.config
    assert (back.config.channels, back.config.classes, back.config.sampling_rate) == (
        ("signal",), ("15 Hz", "20 Hz"), 100.0)  # fmt: skip
    np.testing.assert_allclose(back.config.preprocessing.scale, waves.X.std((0, 2)))
    assert not back.training
    assert not model.model_.training
    assert all(p.dtype == torch.float32 for p in model.model_.parameters())
    given = S4DClassifier(**QUICK, channels=("Cz",), sampling_rate=256).fit(waves.X, waves.y)
    assert (given.model_.config.channels, given.model_.config.sampling_rate) == (("Cz",), 256.0)


def test_standardisation_knows_only_the_cases_trained_on(waves: SequenceData):
    """The held-out cases are those an independent split names; blowing them up must not move the preprocessing."""
    from sklearn.model_selection import StratifiedShuffleSplit

    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    kept, held = next(StratifiedShuffleSplit(1, test_size=5, random_state=seed).split(waves.X, waves.y))
    X = waves.X.copy()
    X[held] *= 1000
    model = S4DClassifier(**QUICK).fit(X, waves.y)
    np.testing.assert_allclose(model.model_.config.preprocessing.mean, X[kept].mean((0, 2)), rtol=1e-9)
    np.testing.assert_allclose(model.model_.config.preprocessing.scale, X[kept].std((0, 2)), rtol=1e-9)


def test_units_and_offsets_of_channels_do_not_matter(vowels: SequenceData):
    """Volts or microvolts, with any offset: standardisation takes them out, to float32 rounding of the training."""
    scale, offset = 10.0 ** np.arange(-6, 6), np.linspace(-1e3, 1e3, 12)
    cases = [case * scale[:, None] + (offset * scale)[:, None] for case in vowels.cases()]
    model = S4DClassifier(**QUICK).fit(cases, vowels.y)
    expected = S4DClassifier(**QUICK).fit(vowels).predict_proba(vowels)
    np.testing.assert_allclose(model.predict_proba(cases), expected, atol=1e-4)


def test_remove_offset_makes_each_cases_mean_irrelevant(vowels: SequenceData):
    model = S4DClassifier(**QUICK, remove_offset=True).fit(vowels)
    shifted = [case + i * np.arange(12)[:, None] for i, case in enumerate(vowels.cases())]
    np.testing.assert_allclose(model.predict_proba(shifted), model.predict_proba(vowels), rtol=1e-9)
    raw = S4DClassifier(**QUICK).fit(vowels)
    assert np.abs(raw.predict_proba(shifted) - raw.predict_proba(vowels)).max() > 0.1


def test_preprocessing_none_and_given(waves: SequenceData):
    none = S4DClassifier(**QUICK, preprocessing="none").fit(waves)
    assert none.model_.config.preprocessing == Preprocessing((0.0,), (1.0,))
    given = Preprocessing((0.5,), (2.0,), remove_offset=True)
    assert S4DClassifier(**QUICK, preprocessing=given).fit(waves).model_.config.preprocessing == given


def test_reference_architecture_learns():
    data = noisy_sinusoids(n_cases=60, frequencies=(5.0, 30.0), n_timepoints=60, noise=0.3, seed=0)
    test = noisy_sinusoids(n_cases=60, frequencies=(5.0, 30.0), n_timepoints=60, noise=0.3, seed=1)
    model = S4DClassifier(
        architecture="reference", n_layers=2, prenorm=True, d_model=8, d_state=16, dropout=0.1, max_epochs=15
    )
    assert model.fit(data).score(test) > 0.9
    assert model.model_.config.n_layers == 2


def test_pickled_classifier_predicts_the_same(fitted: S4DClassifier, vowels: SequenceData):
    back = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(back.predict_proba(vowels), fitted.predict_proba(vowels))


def test_threads_are_left_alone(waves: SequenceData):
    before = torch.get_num_threads()
    S4DClassifier(**QUICK).fit(waves)
    assert torch.get_num_threads() == before


def with_value(value: float) -> np.ndarray:
    X = np.random.default_rng(0).normal(size=(8, 2, 10))
    X[3, 1, 4] = value
    return X


Y = ["a", "b"] * 4
GOOD = with_value(0.0)


@pytest.mark.parametrize(
    ("X", "y", "error", "words"),
    [
        (with_value(math.nan), Y, DataError, r"case 3, channel 1, step 4 .* NaN"),
        (with_value(math.inf), Y, DataError, r"case 3, channel 1, step 4 .* infinite"),
        (GOOD[:, 0], Y, DataError, r"expected an array \(n_cases, n_channels, n_timepoints\), got shape \(8, 10\)"),
        (GOOD[:, :, :, None], Y, DataError, r"got shape \(8, 2, 10, 1\)"),
        ([GOOD[0], GOOD[1][:1]], ["a", "b"], DataError, r"case 1 has 1 channels, case 0 has 2"),
        ("train.ts", Y, DataError, r"read_ts"),
        (GOOD, Y[:-1], DataError, r"X has 8 cases but y has 7 labels; give one label per case"),
        (GOOD, None, DataError, r"requires y to be passed.*X carries no labels"),
        (GOOD, ["a"] * 8, DataError, r"only one class, 'a'; .* needs at least two"),
        (GOOD, np.zeros(8, dtype=int), DataError, r"only one class, '0'; .* needs at least two"),
        (GOOD, [*Y[:7], "c"], DataError, r"class 'c' has a single case.*patience=None"),
        (GOOD, [*Y[:7], None], DataError, r"y holds None; leave out cases without a label"),
        (GOOD, list("abcdefgh"), DataError, r"has a single case"),
        (GOOD, np.linspace(0.1, 0.9, 8), DataError, r"S4DClassifier.fit: Unknown label type"),
        (GOOD, [[1, 0], [0, 1]] * 4, ValueError, r"should be a 1d array"),
        (GOOD, [0.0, 1.0, math.nan, 1.0] * 2, DataError, r"y contains NaN or infinity, first at case 2"),
    ],
)
def test_data_that_cannot_be_trained_on(X: object, y: object, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        S4DClassifier(**QUICK).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"lr": 0.0}, r"lr=0.0\): expected a positive number"),
        ({"lr": "fast"}, r"lr='fast'"),
        ({"lr_ssm": math.nan}, r"lr_ssm=nan"),
        ({"weight_decay": -1}, r"weight_decay=-1\): expected 0 or more"),
        ({"offset_jitter": -0.1}, r"offset_jitter=-0.1\): expected 0 or more"),
        ({"label_smoothing": 1.0}, r"label_smoothing=1.0"),
        ({"max_epochs": 0}, r"max_epochs=0\): expected a whole number"),
        ({"batch_size": 2.5}, r"batch_size=2.5"),
        ({"patience": 0}, r"patience=0\): .* or None"),
        ({"validation_fraction": 1.0}, r"validation_fraction=1.0\): expected between 0 and 1"),
        ({"schedule": "linear"}, r"schedule='linear'\): choose one of cosine, constant"),
        ({"preprocessing": "minmax"}, r"preprocessing='minmax'\): choose one of standardise, none"),
        ({"preprocessing": Preprocessing.identity(3)}, r"preprocessing holds 3 channels, the model has d_input=2"),
        ({"preprocessing": Preprocessing.identity(2), "remove_offset": True}, r"the given Preprocessing says"),
        ({"channels": ("a",)}, r"1 names of channels .* the model has 2"),
        ({"sampling_rate": -1.0}, r"sampling_rate=-1.0"),
        ({"d_state": 7}, r"d_state=7.* even"),
        ({"initialisation": "legs"}, r"initialisation='legs'.*lin, inv, real"),
        ({"coupling": 5}, r"coupling=5\): a ring of d_state=8 sites has neighbours 1 to 4 sites away"),
        ({"phase_delay": 0.2}, r"phase_delay=0.2\): the rings would start unstable"),
        ({"architecture": "deep"}, r"architecture='deep'"),
        ({"n_layers": 2}, r"plain architecture has one layer"),
        ({"dropout": 1.0}, r"dropout=1.0"),
        ({"random_state": "seed"}, r"random_state='seed'\): give a whole number from 0"),
        ({"random_state": -1}, r"random_state=-1\): give a whole number from 0"),
        ({"random_state": 2**32}, r"random_state=4294967296\): give a whole number from 0"),
    ],
)
def test_parameters_that_cannot_work(parameters: dict, words: str):
    with pytest.raises(ArgumentError, match=words):
        S4DClassifier(**{**QUICK, **parameters}).fit(GOOD, Y)


def test_prediction_refuses_other_channels_and_models_not_fitted(fitted: S4DClassifier, waves: SequenceData):
    with pytest.raises(DataError, match=r"X has 1 channels, but the model was trained on 12 \(channel 1, channel 2"):
        fitted.predict(waves.X)
    for method in ("predict", "predict_proba", "decision_function", "score"):
        with pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(S4DClassifier(), method)(waves.X)
    with pytest.raises(DataError, match=r"score: requires y"):
        fitted.score(as_sequences(load_example("JapaneseVowels").cases()))
