"""The data sets inside aeon, compared with aeon's own reader, and never downloaded."""

import socket
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from aeon.datasets import load_from_ts_file

from oplens.data import EXAMPLES, load_example
from oplens.data import examples as module
from oplens.errors import ArgumentError, DataError


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an example must not open a connection")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)


def embedded(name: str, split: str) -> str:
    spec = find_spec("aeon")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "datasets" / "data" / name / f"{name}_{split.upper()}.ts")


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_values_are_aeon_s(name: str, split: str) -> None:
    data = load_example(name, split)
    X, y = load_from_ts_file(embedded(name, split))
    assert data.n_cases == len(X)
    for got, want in zip(data.cases(), X, strict=True):
        np.testing.assert_array_equal(got, want)
    assert data.y is not None
    assert [label.lower() for label in data.y] == y.tolist()  # aeon lower-cases what the file writes
    assert data.source == f"aeon, {name}_{split.upper()}.ts"


def test_basic_motions() -> None:
    train, test = load_example("BasicMotions"), load_example("BasicMotions", "test")
    assert train.X.shape == test.X.shape == (40, 6, 100)
    assert train.classes == ("Standing", "Running", "Walking", "Badminton")
    assert train.sampling_rate == 10.0
    assert train.y is not None
    assert [(train.y == c).sum() for c in train.classes] == [10] * 4
    assert not np.array_equal(train.X, test.X)


def test_japanese_vowels_are_ragged() -> None:
    train, test = load_example("JapaneseVowels"), load_example("JapaneseVowels", "test")
    lengths = np.concatenate([train.lengths, test.lengths])
    assert (train.n_cases, test.n_cases, train.n_channels) == (270, 370, 12)
    assert (lengths.min(), lengths.max()) == (7, 29)
    assert train.classes == tuple("123456789")
    assert train.sampling_rate is None


@pytest.mark.parametrize("name", ["SelfRegulationSCP1", "basicmotions", "../BasicMotions", "", None, "Airline"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(
        ArgumentError, match=r"only the data sets that ship with aeon .*BasicMotions.* downloads nothing"
    ):
        load_example(name)


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'BasicMotions'"):
        load_example("BasicMotion")


@pytest.mark.parametrize("split", ["Train", "valid", None, ""])
def test_other_splits_are_refused(split: str) -> None:
    with pytest.raises(ArgumentError, match="split must be 'train' or 'test'"):
        load_example("GunPoint", split)


def test_an_aeon_without_the_file_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.EXAMPLES, "Absent", None)
    with pytest.raises(DataError, match=r"holds no Absent_TRAIN\.ts"):
        load_example("Absent")
