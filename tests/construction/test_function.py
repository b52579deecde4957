"""Tables of functions: every way in gives the same table, and what is no function is refused before any work."""

import itertools
import sys

import numpy as np
import pandas as pd
import pytest

from oplens.construction.families import NAMED
from oplens.construction.function import FunctionTable
from oplens.errors import ArgumentError, DataError


def hop(x, vocabulary, hops):
    """In words: the last position at or before this one whose predecessor holds this one's symbol; counted from 1."""
    here = len(x)
    for _ in range(hops):
        places = [j for j in range(2, here + 1) if x[j - 2] == x[here - 1]]
        if here == 0 or not places:
            return vocabulary
        here = places[-1]
    return x[here - 1]


def most_frequent(x, vocabulary):
    return min(range(vocabulary), key=lambda s: (-x.count(s), s))


ORACLES = {
    "parity": (lambda x, V: sum(x) % 2, {}),
    "majority": (most_frequent, {}),
    "k-hop": (lambda x, V: hop(x, V, 2), {"hops": 2}),
    "palindrome": (lambda x, V: int(list(x) == list(x)[::-1]), {}),
    "modular-sum": (lambda x, V: sum(x) % 4, {"modulus": 4}),
    "min": (lambda x, V: min(x), {}),
    "max": (lambda x, V: max(x), {}),
    "threshold": (lambda x, V: int(sum(x) >= 3), {"threshold": 3}),
}


@pytest.mark.parametrize(("vocabulary", "length"), [(2, 1), (2, 6), (3, 4)])
@pytest.mark.parametrize("name", ORACLES)
def test_named_functions_are_what_their_names_say(name, vocabulary, length):
    oracle, options = ORACLES[name]
    table = FunctionTable.from_family(name, vocabulary, length, **options)
    expected = [oracle(x, vocabulary) for x in itertools.product(range(vocabulary), repeat=length)]
    assert table.values[:, 0].tolist() == expected
    assert table.labels is not None
    assert max(expected) < table.labels
    again = FunctionTable.from_function(lambda x: oracle(x, vocabulary), vocabulary, length)
    np.testing.assert_array_equal(again.values, table.values)


def test_every_named_function_is_held_to_an_oracle():
    assert set(NAMED) == {*ORACLES, "random"}


def test_random_tables_follow_their_seed():
    first, again, other = (FunctionTable.from_family("random", 2, 9, seed=s, labels=3).values for s in (5, 5, 6))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.4
    counts = np.bincount(first[:, 0].astype(int), minlength=3)
    assert (np.abs(counts - 512 / 3) < 4 * (512 * 2 / 9) ** 0.5).all()


def test_inputs_stand_in_lexicographic_order_and_are_looked_up():
    table = FunctionTable.from_function(lambda x: (x[0] * 100 + x[1] * 10 + x[2], x[2] - 0.5), 3, 3)
    assert table.outputs == 2
    inputs = table.inputs()
    assert list(map(tuple, inputs.tolist())) == list(itertools.product(range(3), repeat=3))
    np.testing.assert_array_equal(table.values[:, 0], inputs @ [100, 10, 1])
    np.testing.assert_array_equal(table(np.array([[2, 0, 1]])), [[201.0, 0.5]])
    np.testing.assert_array_equal(table.inputs(5, 7), inputs[5:7])
    np.testing.assert_array_equal(table.inputs_at(np.array([8, 1])), inputs[[8, 1]])
    for bad, what in (([[0, 3, 1]], "0 to 2"), ([[0, 1]], "count, 3"), ([[0.0, 1.0, 1.0]], "whole numbers")):
        with pytest.raises(ArgumentError, match=what):
            table(bad)


def test_one_hot_is_the_label_as_coordinates():
    table = FunctionTable.from_family("min", 3, 2)
    hot = table.one_hot()
    assert hot.values.argmax(1).tolist() == table.values[:, 0].tolist()
    assert hot.values.sum(1).tolist() == [1.0] * 9
    with pytest.raises(ArgumentError, match="no labels"):
        hot.one_hot()


def write(path, rows, header="a,b,y"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


AND = ["1,1,1", "0,0,0", "1,0,0", "0,1,0"]  # in no order


def test_files_are_read_whatever_the_order_of_rows(tmp_path):
    table = FunctionTable.from_file(write(tmp_path / "and.csv", AND), labels=2)
    assert (table.vocabulary, table.length, table.name, table.symbols) == (2, 2, "and", None)
    assert table.values[:, 0].tolist() == [0, 0, 0, 1]
    named = FunctionTable.from_file(
        write(tmp_path / "named.csv", ["T, F ,1.5,2", "F,F,-1,0", "F,T,0.25,1", "T,T,3e2,7"], "p,q,u,v"),
        vocabulary=["T", "F"],
        outputs=["v", "u"],
    )
    assert named.symbols == ("T", "F")
    assert named.values.tolist() == [[7, 300], [2, 1.5], [1, 0.25], [0, -1]]
    truth = FunctionTable.from_file(write(tmp_path / "t.csv", ["9,False", "10,True"], "x,y"))
    assert truth.symbols == ("9", "10")  # numbers in the order of numbers
    assert truth.values[:, 0].tolist() == [0, 1]


REFUSED_FILES = {
    "gap": (AND[:3], {}, r"1 of the 2\^2 = 4 inputs over 0, 1 are missing, first 0 1"),
    "duplicate": ([*AND, "0,0,1"], {}, r"rows 2 and 5: input 0 0 is given twice"),
    "NaN": ([*AND[:3], "0,1,NaN"], {}, r"row 4, column 'y': 'NaN' is no finite number"),
    "None": ([*AND[:3], "0,1,None"], {}, r"row 4, column 'y': 'None' is no finite number"),
    "infinite": ([*AND[:3], "0,1,inf"], {}, r"'inf' is no finite number"),
    "empty cell": ([*AND[:3], "0,,1"], {}, r"row 4, column 'b': no value"),
    "symbol outside": (
        [*AND[:3], "0,2,1"],
        {"vocabulary": 2},
        r"row 4, column 'b': symbol '2' is outside the vocabulary",
    ),
    "label outside": ([*AND[:3], "0,1,2"], {"labels": 2}, r"row 4, column 'y': '2' is no label from 0 to 1"),
    "no label": ([*AND[:3], "0,1,0.5"], {"labels": 2}, r"'0.5' is no label"),
    "one symbol": (["0,0,1"], {}, "only the symbol '0' occurs"),
    "no rows": ([], {}, "no rows"),
    "more cells": (["0,0,0,1"], {}, "more cells than the header"),
    "ragged": (["0,0,0", "0,1,1,2,3"], {}, "not a CSV table"),
    "unknown output": (AND, {"outputs": ["z"]}, "has the columns a, b, y"),
    "outputs as text": (AND, {"outputs": "y"}, "a list of column names"),
    "nothing but outputs": (AND, {"outputs": ["a", "b", "y"]}, "no column is left"),
    "symbols twice": (AND, {"vocabulary": ["0", "0"]}, "different"),
    "vocabulary of one": (AND, {"vocabulary": 1}, "from 2"),
    "vocabulary as text": (AND, {"vocabulary": "01"}, "list of their names"),
    "too large": (AND, {"memory_limit": 31}, r"needs 32 bytes, above the limit of 31"),
}


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_files_that_are_no_function_are_refused(tmp_path, name):
    rows, options, message = REFUSED_FILES[name]
    with pytest.raises((DataError, ArgumentError), match=message):
        FunctionTable.from_file(write(tmp_path / "f.csv", rows), **options)


def test_files_that_are_no_tables_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        FunctionTable.from_file(tmp_path / "none.csv")
    (tmp_path / "packed.csv").write_bytes(b"\x1f\x8b\x08 and so on")
    with pytest.raises(DataError, match="gzip"):
        FunctionTable.from_file(tmp_path / "packed.csv")
    (tmp_path / "empty.csv").write_bytes(b"")
    with pytest.raises(DataError, match="not a CSV table"):
        FunctionTable.from_file(tmp_path / "empty.csv")
    with pytest.raises(DataError, match="given twice"):
        FunctionTable.from_file(write(tmp_path / "twice.csv", AND, "a,a ,y"))


def test_parquet_without_its_reader_is_refused_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "f.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="pip install pyarrow"):
        FunctionTable.from_file(tmp_path / "f.parquet")


def test_parquet_is_read(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    path = tmp_path / "f.parquet"
    frame = pd.DataFrame({"a": [0, 0, 1, 1], "b": [0, 1, 0, 1], "y": [0.5, 1.0, 2.0, 4.0]})
    frame.to_parquet(path)
    assert FunctionTable.from_file(path).values[:, 0].tolist() == [0.5, 1, 2, 4]
    frame.assign(y=[0.5, None, 2.0, 4.0]).to_parquet(path)
    with pytest.raises(DataError, match=r"row 2, column 'y'"):
        FunctionTable.from_file(path)
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match="not a Parquet file"):
        FunctionTable.from_file(path)


def boom(x):
    if x == (1, 0):
        raise KeyError("no such word")
    return 0


REFUSED_FUNCTIONS = {
    "None": (lambda x: None if x == (0, 1) else 1, {}, r"returned None at input \(0, 1\)"),
    "NaN": (lambda x: float("nan"), {}, r"returned nan at input \(0, 0\)"),
    "infinite": (lambda x: 1e400, {}, "finite number"),
    "text": (lambda x: "3", {}, "returned '3'"),
    "nothing": (lambda x: (), {}, "finite number"),
    "complex": (lambda x: 1j, {}, "finite number"),
    "another count": (lambda x: (1,) * (1 + x[1]), {}, r"2 numbers at input \(0, 1\), 1 at the first"),
    "raises": (boom, {}, r"raised KeyError at input \(1, 0\)"),
    "label outside": (sum, {"labels": 2}, r"value 2 at input \(1, 1\) is no label from 0 to 1"),
    "labels of two numbers": (lambda x: x, {"labels": 2}, "one number per input"),
    "labels of none": (sum, {"labels": 0}, "at least 1"),
}


@pytest.mark.parametrize("name", REFUSED_FUNCTIONS)
def test_functions_that_have_no_value_somewhere_are_refused(name):
    function, options, message = REFUSED_FUNCTIONS[name]
    with pytest.raises((DataError, ArgumentError), match=message):
        FunctionTable.from_function(function, 2, 2, **options)


def test_what_is_too_large_is_refused_before_the_first_call():
    def never(x):
        raise AssertionError("was called")

    with pytest.raises(ArgumentError, match=r"needs 8,589,934,592 bytes, above the limit of 4,294,967,296"):
        FunctionTable.from_function(never, 2, 30)
    with pytest.raises(ArgumentError, match=r"about 2\^1000003 bytes"):
        FunctionTable.from_family("parity", 2, 10**6)
    with pytest.raises(ArgumentError, match="3 number"):
        FunctionTable.from_function(lambda x: (1, 2, 3), 2, 4, memory_limit=200)


def test_other_arguments_are_refused_with_their_names():
    for call, message in (
        (lambda: FunctionTable.from_family("parrot", 2, 3), "named functions are parity"),
        (lambda: FunctionTable.from_family("parity", 2, 3, hops=1), "it takes none"),
        (lambda: FunctionTable.from_family("k-hop", 2, 3, hops=0), "hops=0"),
        (lambda: FunctionTable.from_family("k-hop", 2, 3, hops=True), "hops=True"),
        (lambda: FunctionTable.from_family("parity", 1, 3), "vocabulary=1"),
        (lambda: FunctionTable.from_family("parity", 2, 0), "length=0"),
        (lambda: FunctionTable.from_family("parity", 2, 2.0), "length=2.0"),
        (lambda: FunctionTable(2, 3, np.zeros(7)), r"one row for each of the 2\^3 inputs"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
    with pytest.raises(DataError, match=r"no finite value at input \(1, 0\)"):
        FunctionTable(2, 2, np.array([0, 1, np.nan, 2]))
