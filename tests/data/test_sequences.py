"""Arrays in memory: what is accepted is exact, what is not gets a sentence."""

import dataclasses
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

from oplens.data import SequenceData, as_sequences
from oplens.errors import DataError

RNG = np.random.default_rng(0)
CUBE = RNG.standard_normal((4, 2, 5))


def with_value(value: float, *where: int) -> np.ndarray:
    X = CUBE.copy()
    X[where] = value
    return X


def test_an_array_keeps_its_values_and_is_copied() -> None:
    X = CUBE.copy()
    data = as_sequences(X)
    X[:] = 0
    np.testing.assert_array_equal(data.X, CUBE)
    assert data.lengths.tolist() == [5] * 4
    assert data.channels == ("channel 1", "channel 2")
    assert data.y is None
    assert data.classes == ()
    assert data.sampling_rate is None


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, np.int8, np.int64, np.uint16, np.bool_, np.longdouble, ">f8"]
)
def test_real_dtypes_are_converted_exactly(dtype: Any) -> None:
    X = (RNG.integers(0, 2, size=(3, 2, 4)) if dtype is np.bool_ else RNG.integers(0, 100, size=(3, 2, 4))).astype(
        dtype
    )
    data = as_sequences(X)
    assert data.X.dtype == np.float64
    assert data.X.tolist() == [[[float(v) for v in row] for row in case] for case in X]


def test_a_list_of_unequal_lengths_is_padded() -> None:
    cases = [RNG.standard_normal((2, n)) for n in (3, 5, 1)]
    data = as_sequences(cases)
    assert data.lengths.tolist() == [3, 5, 1]
    for i, case in enumerate(cases):
        n = case.shape[1]
        np.testing.assert_array_equal(data.X[i, :, :n], case)
        assert not data.X[i, :, n:].any()
        np.testing.assert_array_equal(data.cases()[i], case)


@pytest.mark.parametrize(
    "make", [tuple, lambda c: np.array([*c, None], dtype=object)[:-1], lambda c: [torch.tensor(x) for x in c]]
)
def test_other_containers_of_cases(make: Any) -> None:
    cases = [np.arange(6.0).reshape(2, 3), np.arange(4.0).reshape(2, 2)]
    data = as_sequences(make(cases))
    np.testing.assert_array_equal(data.X, [[[0, 1, 2], [3, 4, 5]], [[0, 1, 0], [2, 3, 0]]])


def test_nested_lists_of_numbers() -> None:
    np.testing.assert_array_equal(as_sequences([[[1, 2], [3, 4]], [[5], [6]]]).X, [[[1, 2], [3, 4]], [[5, 0], [6, 0]]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32])
def test_tensors(dtype: torch.dtype) -> None:
    X = torch.arange(12).reshape(2, 3, 2).to(dtype)
    if dtype.is_floating_point:
        X.requires_grad_()
    assert as_sequences(X).X.tolist() == np.arange(12.0).reshape(2, 3, 2).tolist()


def test_a_data_array_is_ordered_by_its_dimensions() -> None:
    array = xr.DataArray(CUBE, dims=("case", "channel", "time"), coords={"channel": ["Cz", "Pz"]}).transpose(
        "time", "case", "channel"
    )
    data = as_sequences(array)
    np.testing.assert_array_equal(data.X, CUBE)
    assert data.channels == ("Cz", "Pz")


def test_sequence_data_is_returned_itself() -> None:
    data = as_sequences(CUBE)
    assert as_sequences(data) is data


class Epochs:
    """Stands for the class of MNE, which oplens knows by its module."""

    __module__ = "mne.epochs"


REFUSED: dict[str, tuple[Any, str]] = {
    "one axis": (CUBE[0, 0], r"got shape \(5,\); one univariate case is X\[np\.newaxis, np\.newaxis, :\]"),
    "two axes": (CUBE[:, 0], r"got shape \(4, 5\); .*X\[:, np\.newaxis, :\]"),
    "four axes": (CUBE[None], r"got shape \(1, 4, 2, 5\); .*last axis is time"),
    "no axis": (np.array(3.0), r"got shape \(\)"),
    "no cases": (CUBE[:0], r"no cases: shape \(0, 2, 5\)"),
    "no channels": (CUBE[:, :0], r"no channels: shape \(4, 0, 5\)"),
    "no steps": (CUBE[..., :0], r"no time steps: shape \(4, 2, 0\)"),
    "NaN": (with_value(np.nan, 3, 0, 2), r"case 3, channel 0, step 2 \(counted from 0\) is NaN; fill the gap"),
    "infinite": (with_value(np.inf, 1, 1, 4), r"case 1, channel 1, step 4 \(counted from 0\) is infinite; fill"),
    "minus infinite": (with_value(-np.inf, 0, 1, 4), r"case 0, channel 1, step 4 .* is infinite"),
    "many NaN": (
        with_value(np.nan, slice(1, 3), 1, slice(0, 2)),
        r"case 1, channel 1, step 0 .*NaN; 4 values of 2 case\(s\)",
    ),
    "NaN padding": (
        with_value(np.nan, 2, slice(None), slice(3, 5)),
        r"case 2, channel 0, step 3 .*list of unpadded arrays",
    ),
    "NaN in a list": ([CUBE[0], with_value(np.nan, 1, 0, 1)[1]], r"case 1, channel 0, step 1 .*NaN"),
    "beyond float64": (np.full((1, 1, 2), np.longdouble(10) ** 400), r"case 0, channel 0, step 0 .* infinite"),
    "complex": (CUBE + 0j, r"the array is complex; pass real signals"),
    "objects": (CUBE.astype(object), r"the array holds Python objects, expected real numbers"),
    "text": (CUBE.astype(str), r"the array holds text, expected real numbers"),
    "bytes": (np.full((1, 1, 1), b"1"), r"the array holds bytes"),
    "dates": (np.zeros((1, 1, 1), "datetime64[s]"), r"the array holds dates"),
    "masked": (np.ma.masked_greater(CUBE, 1.0), r"masked values; fill them"),
    "empty list": ([], r"the list is empty"),
    "list of 1-D arrays": ([CUBE[0, 0], CUBE[1, 0]], r"case 0 has shape \(5,\).*x\[np\.newaxis, :\]"),
    "list with one 3-D array": (
        [CUBE[0], CUBE],
        r"case 1 has shape \(4, 2, 5\), expected \(n_channels, n_timepoints\)",
    ),
    "list of numbers": ([1.0, 2.0], r"case 0 is a float"),
    "list with None": ([CUBE[0], None], r"case 1 is None"),
    "list with text": ([CUBE[0], "abc"], r"case 1 is text"),
    "list without channels": ([CUBE[0], CUBE[1][:0]], r"case 1 has no channels: shape \(0, 5\)"),
    "list without steps": ([CUBE[0], CUBE[1][:, :0]], r"case 1 has no time steps: shape \(2, 0\)"),
    "list of different channels": ([CUBE[0], CUBE[1][:1, :3]], r"case 1 has 1 channels, case 0 has 2 .*same channels"),
    "list of swapped axes": (
        [np.zeros((9, 2)), np.zeros((7, 2))],
        r"case 1 has 7 channels, case 0 has 9 .*\[x\.T for x in X\]",
    ),
    "list with ragged channels": ([[[1, 2], [3]]], r"channels of case 0 differ in length"),
    "list with words": ([[[1, "a"]]], r"case 0 holds text"),
    "list with complex": ([CUBE[0] + 0j], r"case 0 is complex"),
    "list with objects": ([[[1, None]]], r"case 0 holds Python objects"),
    "path": ("train.ts", r"got text; .*read_ts\(path\)"),
    "nothing": (None, r"got None"),
    "dict": ({"X": CUBE}, r"got a dict; pass one of its entries"),
    "generator": ((x for x in CUBE), r"got a generator"),
    "data frame": (pd.DataFrame(CUBE[0]), r"got a pandas DataFrame, whose rows may be cases or time steps"),
    "series": (pd.Series(CUBE[0, 0]), r"got a pandas Series"),
    "unnamed dimensions": (xr.DataArray(CUBE), r"must be called case, channel and time, got dim_0, dim_1, dim_2"),
    "xarray data set": (
        xr.Dataset({"signal": (("case", "channel", "time"), CUBE)}),
        r"xarray Dataset; pass one of its variables",
    ),
    "MNE epochs": (Epochs(), r"MNE Epochs; pass epochs\.get_data\(\).*volts"),
    "complex tensor": (torch.zeros(1, 1, 2, dtype=torch.complex64), r"the tensor is complex"),
    "tensor of two axes": (torch.zeros(3, 2), r"got shape \(3, 2\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    value, pattern = REFUSED[name]
    with pytest.raises(DataError) as caught:
        as_sequences(value)
    message = str(caught.value)
    assert re.search(pattern, message), message
    assert message.startswith("as_sequences: ")
    assert message.endswith(".")
    assert "\n" not in message


LABELLED = SequenceData(
    X=np.array([[[1.0, 2.0]], [[3.0, 0.0]], [[5.0, 6.0]]]),
    lengths=np.array([2, 1, 2]),
    y=np.array(["b", "a", "b"]),
    channels=("Cz",),
    classes=("b", "a"),
    sampling_rate=10.0,
    name="n",
    source="s",
)

INCONSISTENT: dict[str, tuple[dict[str, Any], str]] = {
    "float32": ({"X": LABELLED.X.astype(np.float32)}, r"float64 array .*got float32 of shape \(3, 1, 2\)"),
    "list": ({"X": LABELLED.X.tolist()}, r"got list"),
    "empty": ({"X": np.zeros((0, 1, 2))}, r"non-empty"),
    "lengths of another number": ({"lengths": np.array([2, 2])}, r"shape \(3,\)"),
    "lengths of floats": ({"lengths": np.array([2.0, 1.0, 2.0])}, r"int64"),
    "length zero": ({"lengths": np.array([2, 1, 0])}, r"case 2 has length 0, expected between 1 and the 2 steps"),
    "length beyond": ({"lengths": np.array([2, 1, 3])}, r"case 2 has length 3"),
    "padding not zero": ({"lengths": np.array([2, 1, 1])}, r"case 2 has values other than zero past its length 1"),
    "padding of the last channel not zero": (
        {
            "X": np.array([[[1.0, 2.0], [1.0, 2.0]], [[1.0, 0.0], [1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]]]),
            "channels": ("Cz", "Pz"),
        },
        r"case 1 has values other than zero past its length 1",
    ),
    "NaN": ({"X": np.where(LABELLED.X == 5, np.nan, LABELLED.X)}, r"case 2, channel 0, step 0 .*NaN"),
    "too many channel names": ({"channels": ("a", "b")}, r"2 names in channels, but X has 1"),
    "channel names in a list": ({"channels": ["a"]}, r"channels must be a tuple of strings"),
    "class twice": ({"classes": ("a", "b", "a")}, r"classes names 'a' twice"),
    "label without class": ({"classes": ("b",)}, r"case 1 is labelled 'a', .*classes b"),
    "labels of numbers": ({"y": np.array([0, 1, 0])}, r"y must be an array of 3 strings"),
    "labels of another number": ({"y": np.array(["a"])}, r"y must be an array of 3 strings"),
    "rate zero": ({"sampling_rate": 0.0}, r"positive float in Hz"),
    "rate NaN": ({"sampling_rate": float("nan")}, r"positive float in Hz"),
}


@pytest.mark.parametrize("name", INCONSISTENT)
def test_parts_must_fit(name: str) -> None:
    change, pattern = INCONSISTENT[name]
    with pytest.raises(DataError, match=pattern):
        dataclasses.replace(LABELLED, **change)


def test_selection_keeps_order_classes_and_padding() -> None:
    chosen = LABELLED.select([2, 1])
    np.testing.assert_array_equal(chosen.X, [[[5, 6]], [[3, 0]]])
    assert chosen.lengths.tolist() == [2, 1]
    assert chosen.y is not None
    assert chosen.y.tolist() == ["b", "a"]
    assert (chosen.classes, chosen.channels, chosen.sampling_rate) == (("b", "a"), ("Cz",), 10.0)
    np.testing.assert_array_equal(LABELLED.select(LABELLED.lengths == 2).X, LABELLED.X[[0, 2]])


@pytest.mark.parametrize("cases", [[], [3], [-4], [0.5], [[0]], 1])
def test_selection_of_cases_that_are_not_there(cases: Any) -> None:
    with pytest.raises(DataError, match=r"SequenceData\.select"):
        LABELLED.select(cases)
