"""Every file that cannot be used ends in one sentence that names the file, the line and the cure."""

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from oplens.data import read_ts
from oplens.errors import ArgumentError, DataError, OplensError

GOOD = """\
# two cases of two channels
@problemName hands
@timeStamps false
@missing false
@univariate false
@dimensions 2
@equalLength true
@seriesLength 3
@classLabel true left right
@data
1,2,3:4,5,6:left
7,8,9:1.5,-2,3e2:right
"""
BARE = "@classLabel true left right\n@data\n"


def altered(old: str, new: str) -> bytes:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new).encode()


def bare(*cases: str) -> bytes:
    return (BARE + "\n".join(cases) + "\n").encode()


# name: (content, line that must be named or None, words that must be in the sentence)
FILES: dict[str, tuple[bytes, int | None, tuple[str, ...]]] = {
    # dimensions
    "one channel too few": (
        altered("7,8,9:1.5,-2,3e2:right", "7,8,9:right"),
        12,
        ("1 channel", "expected 2", "line 6"),
    ),
    "one channel too many": (altered("7,8,9:1.5", "7,8,9:0,0,0:1.5"), 12, ("3 channel", "expected 2", "line 6")),
    "first case against the header": (
        altered("@dimensions 2", "@dimensions 3"),
        11,
        ("2 channel", "expected 3", "line 6"),
    ),
    "against the first case": (
        bare("1,2:3,4:left", "1,2:3,4:5,6:right"),
        4,
        ("3 channel", "expected 2", "first case, line 3"),
    ),
    "several channels in a univariate file": (
        altered("@univariate false\n@dimensions 2", "@univariate true"),
        10,
        ("2 channel", "expected 1", "line 5"),
    ),
    "dimensions are no number": (
        altered("@dimensions 2", "@dimensions two"),
        6,
        ("@dimensions", "whole number", "'two'"),
    ),
    "dimensions are zero": (altered("@dimensions 2", "@dimensions 0"), 6, ("at least 1",)),
    "dimensions are negative": (altered("@dimensions 2", "@dimensions -2"), 6, ("whole number", "'-2'")),
    "dimensions are missing": (altered("@dimensions 2", "@dimensions"), 6, ("whole number",)),
    "univariate contradicts dimensions": (
        altered("@univariate false", "@univariate true"),
        5,
        ("2 dimensions", "line 6"),
    ),
    # values
    "a word": (altered("4,5,6", "4,five,6"), 11, ("value 2 of channel 2 of 2", "'five'", "not a number")),
    "a hexadecimal number": (altered("4,5,6", "4,0x5,6"), 11, ("'0x5'", "not a number")),
    "an underscore that Python would accept": (altered("4,5,6", "4,1_000,6"), 11, ("'1_000'", "not a number")),
    "digits of another script": (altered("4,5,6", "4,\u0665,6"), 11, ("value 2 of channel 2", "not a number")),
    "two decimal points": (altered("4,5,6", "4,5.0.1,6"), 11, ("'5.0.1'", "not a number")),
    "a broken exponent": (altered("3e2", "3e"), 12, ("value 3 of channel 2", "'3e'")),
    "a minus sign from a word processor": (altered("-2", "\u22122"), 12, ("value 2 of channel 2", "not a number")),
    "semicolons": (altered("4,5,6", "4;5;6"), 11, ("'4;5;6'", "separated by commas")),
    "spaces between values": (altered("4,5,6", "4 5 6"), 11, ("'4 5 6'", "separated by commas")),
    "a no-break space": (altered("4,5,6", "4,5\u00a0,6"), 11, ("value 2 of channel 2",)),
    "an empty value": (altered("4,5,6", "4,,6"), 11, ("value 2 of channel 2", "empty", "?")),
    "a trailing comma": (altered("4,5,6:left", "4,5,6,:left"), 11, ("value 4 of channel 2", "empty")),
    "an empty channel": (altered("1,2,3:4,5,6:left", "1,2,3::left"), 11, ("channel 2 of 2 is empty",)),
    "a series of length zero": (bare(":left"), 3, ("channel 1 of 1 is empty",)),
    "a very long token": (altered("4,5,6", "4," + "x" * 500 + ",6"), 11, ("x...'", "not a number")),
    "an overlong run of digits": (altered("4,5,6", "4," + "1" * 100_000 + "x,6"), 11, ("1...'", "not a number")),
    "infinity": (altered("4,5,6", "4,inf,6"), 11, ("value 2 of channel 2 of 2", "infinite", "finite number")),
    "minus infinity": (altered("4,5,6", "4,5,-Infinity"), 11, ("value 3 of channel 2 of 2", "infinite")),
    "too large for float64": (altered("3e2", "3e999"), 12, ("value 3 of channel 2 of 2", "infinite", "1.8e308")),
    "NA of a statistics package": (altered("4,5,6", "4,NA,6"), 11, ("'NA'", "missing value as ?")),
    "null": (altered("4,5,6", "4,null,6"), 11, ("'null'", "missing value as ?")),
    # missing values
    "a question mark": (
        altered("4,5,6", "4,?,6"),
        11,
        ("value 2 of channel 2 of 2", "1 in 1 case", 'impute="linear"', "--impute linear"),
    ),
    "NaN": (altered("4,5,6", "NaN,nan,6"), 11, ("value 1 of channel 2 of 2", "2 in 1 case", 'impute="mean"')),
    "missing values that pad": (
        altered("1,2,3:4,5,6", "1,2,?:4,5,?"),
        11,
        ("value 3 of channel 1", "2 in 1 case", "pad shorter cases", "delete"),
    ),
    # lengths
    "channels differ in length": (altered("4,5,6", "4,5"), 11, ("channel 2 has 2 values", "channel 1 has 3")),
    "a line cut short": (
        altered("7,8,9:1.5,-2,3e2:right", "7,8,9:1.5,-"),
        12,
        ("1 channel(s), expected 2 and a label",),
    ),
    "series length is no number": (
        altered("@seriesLength 3", "@seriesLength 3.5"),
        8,
        ("@seriesLength", "whole number", "'3.5'"),
    ),
    # labels
    "label missing": (altered("4,5,6:left", "4,5,6"), 11, ("label is missing", "2 channel(s)", "line 9")),
    "label missing in the first case of a bare file": (bare("1,2,3:4,5,6"), 3, ("label is missing", "label")),
    "label empty": (altered("4,5,6:left", "4,5,6:"), 11, ("label is missing", "@classLabel false")),
    "label a question mark": (altered("4,5,6:left", "4,5,6:?"), 11, ("label is missing", "':?'")),
    "label missing in a series of one step": (
        b"@dimensions 2\n@classLabel true a b\n@data\n1:2\n",
        4,
        ("label is missing", "2 channel(s)"),
    ),
    "no colon at all": (bare("abc"), 3, ("no ':'", "'abc'")),
    "unknown label": (altered("4,5,6:left", "4,5,6:both"), 11, ("unknown label 'both'", "line 9", "left, right")),
    "label in another case": (altered("4,5,6:left", "4,5,6:Left"), 11, ("unknown label 'Left'", "as left in both")),
    "label as another number": (b"@classLabel true 1 2\n@data\n1,2:1.0\n", 3, ("unknown label '1.0'", "as 1 in both")),
    "label with a space": (altered("4,5,6:left", "4,5,6:left hand"), 11, ("'left hand'", "cannot hold a space")),
    "label though unlabelled": (
        altered("@classLabel true left right", "@classLabel false"),
        11,
        ("'left'", "line 9", "@classLabel false", "label"),
    ),
    "numeric label though unlabelled": (
        b"@univariate true\n@classLabel false\n@data\n1,2:3\n",
        4,
        ("2 channel(s), expected 1", "line 1", "label"),
    ),
    # header
    "class names missing": (altered("true left right", "true"), 9, ("@classLabel true", "class names")),
    "class label neither true nor false": (
        altered("true left right", "left right"),
        9,
        ("true or false", "@classLabel true left right"),
    ),
    "class label without value": (altered("@classLabel true left right", "@classLabel"), 9, ("true or false",)),
    "class names though unlabelled": (
        altered("@classLabel true", "@classLabel false"),
        9,
        ("contradicts", "'left right'"),
    ),
    "class named twice": (altered("true left right", "true left left"), 9, ("'left'", "twice")),
    "class names with commas": (altered("true left right", "true left,right"), 9, ("comma", "'left,right'", "spaces")),
    "no class label line": (altered("@classLabel true left right\n", ""), 9, ("no @classLabel", "@classLabel false")),
    "class label misspelt": (altered("@classLabel", "@classLabels"), 9, ("'@classLabels'", "as @classLabel.")),
    "dimensions misspelt": (altered("@dimensions", "@dimesions"), 6, ("'@dimesions'", "as @dimensions.")),
    "tag given twice": (
        altered("@dimensions 2", "@dimensions 2\n@Dimensions 3"),
        7,
        ("@dimensions", "twice", "line 6"),
    ),
    "flag neither true nor false": (
        altered("@equalLength true", "@equalLength yes"),
        7,
        ("@equalLength", "true or false", "'yes'"),
    ),
    "flag without value": (altered("@missing false", "@missing"), 4, ("@missing", "true or false")),
    "time stamps": (
        altered("@timeStamps false", "@timeStamps true"),
        3,
        ("@timeStamps true", "evenly spaced", "sampling rate"),
    ),
    "time stamps in the data": (bare("(0,1),(1,2):left"), 3, ("'(0'", "time stamp")),
    "regression targets": (b"@targetLabel true\n@data\n1,2,3:0.5\n", 1, ("@targetLabel true", "regression", "class")),
    "@data missing": (altered("@data\n", ""), 10, ("'1,2,3:4,5,6:left'", "@data may be missing")),
    "@data with a value": (altered("@data", "@data 2"), 10, ("@data", "stand alone")),
    "header cut before @data": (GOOD.partition("@data")[0].encode(), 9, ("ends without @data",)),
    "header only": (GOOD.partition("1,2,3")[0].encode(), 10, ("no case", "one line per case")),
    "comments only below @data": ((GOOD.partition("1,2,3")[0] + "# 1,2,3:4,5,6:left\n\n").encode(), 10, ("no case",)),
    "two files joined": ((GOOD + GOOD.partition("\n")[2]).encode(), 13, ("'@problemName hands'", "joined")),
    "no header": (b"1,2,3:left\n", 1, ("header line", "'1,2,3:left'")),
    # other files
    "empty": (b"", None, ("empty", "0 bytes")),
    "blank lines": (b"\n  \n\r\n", None, ("no header and no cases",)),
    "comments alone": (b"# nothing here\n", None, ("no header and no cases",)),
    "only a byte-order mark": (b"\xef\xbb\xbf", None, ("no header and no cases",)),
    "ARFF": (b"% weka\n@relation hands\n@attribute a numeric\n@data\n1,left\n", 2, ("'@relation hands'", ".arff")),
    "web page": (b"<!DOCTYPE html>\n<html><body>404</body></html>\n", 1, ("HTML", "download the data file")),
    "Qt translation": (b'<?xml version="1.0"?>\n<!DOCTYPE TS>\n', 1, ("Qt translation",)),
    "Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9643944\n",
        1,
        ("Git LFS", "git lfs pull"),
    ),
    "TypeScript": (b"import { x } from './x';\nexport const y = x;\n", 1, ("TypeScript",)),
    "TypeScript behind a comment": (b"// licence\nlet y = 1;\n", 1, ("TypeScript",)),
    "MPEG video": (b"G" + bytes(187) + b"G" + bytes(187), None, ("MPEG",)),
    "binary": (bytes(range(256)) * 4, None, ("binary", "text file")),
    "zero bytes further down": (GOOD.encode() + b"# " + b"x" * 5000 + b"\n1,2,3:4,\x005,6:left\n", 14, ("zero byte",)),
    "gzip": (gzip.compress(GOOD.encode()), None, ("gzip", "unpack")),
    "zip": (b"PK\x03\x04" + bytes(40), None, ("zip archive", "unpack")),
    "UTF-16": (GOOD.encode("utf-16"), None, ("UTF-16", "UTF-8")),
    "MATLAB": (b"MATLAB 5.0 MAT-file" + bytes(200), None, ("MATLAB", "loadmat")),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + bytes(200), None, ("HDF5",)),
    "NumPy": (b"\x93NUMPY\x01\x00" + bytes(200), None, ("numpy.load",)),
    "Latin-1 label": (altered("left right", "left r\u00e9ght").decode().encode("latin-1"), 9, ("UTF-8",)),
    "Latin-1 value": (GOOD.replace("4,5,6", "4,\u00b5,6").encode("latin-1"), 11, ("character 9", "UTF-8")),
}


@pytest.mark.parametrize("name", FILES)
def test_malformed_file(name: str, tmp_path: Path) -> None:
    content, line, words = FILES[name]
    path = tmp_path / "hands_TRAIN.ts"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_ts(path)
    message = str(caught.value)
    where = str(path) if line is None else f"{path}, line {line}:"
    assert message.startswith(where), message
    if line is None:
        assert ", line " not in message
    for word in words:
        assert word in message.removeprefix(where), message
    assert message.endswith("."), message
    assert "\n" not in message
    assert len(message) < 500


def test_the_unaltered_file_is_accepted(tmp_path: Path) -> None:
    """Each case above fails for the alteration it makes and not for the rest of the file."""
    path = tmp_path / "good.ts"
    path.write_text(GOOD)
    data = read_ts(path)
    np.testing.assert_array_equal(data.X, [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [1.5, -2, 300]]])
    path.write_bytes(bare("1,2,3:left"))
    assert read_ts(path).X.tolist() == [[[1, 2, 3]]]


@pytest.mark.parametrize("impute", ["linear", "mean"])
def test_a_channel_without_values_cannot_be_imputed(impute: str, tmp_path: Path) -> None:
    path = tmp_path / "hands.ts"
    path.write_bytes(altered("4,5,6", "?,NaN,?"))
    with pytest.raises(DataError, match=r"hands\.ts, line 11: channel 2 of 2 has no value at all.*remove"):
        read_ts(path, impute=impute)  # type: ignore[arg-type]


def test_a_directory_names_a_file_inside(tmp_path: Path) -> None:
    (tmp_path / "hands_TEST.ts").write_text(GOOD)
    with pytest.raises(DataError, match=r"is a directory; .* for example hands_TEST\.ts\.$"):
        read_ts(tmp_path)


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "hands_TEST.ts").write_text(GOOD)
    with pytest.raises(DataError, match=r"hands_TESt\.ts does not exist; did you mean hands_TEST\.ts\?$"):
        read_ts(tmp_path / "hands_TESt.ts")
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'no' / 'such.ts'} does not exist.")):
        read_ts(str(tmp_path / "no" / "such.ts"))


def test_a_device_is_not_read() -> None:
    with pytest.raises(DataError, match="not a regular file"):
        read_ts("/dev/zero")


@pytest.mark.parametrize("rate", [0, -256, float("nan"), float("inf"), "256", True])
def test_sampling_rate_must_be_positive(rate: object, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"sampling_rate=.*positive number of Hz"):
        read_ts(tmp_path / "hands.ts", sampling_rate=rate)  # type: ignore[arg-type]


@pytest.mark.parametrize("impute", ["median", "", True, 0])
def test_impute_must_be_known(impute: object, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"impute=.*'linear' or 'mean'"):
        read_ts(tmp_path / "hands.ts", impute=impute)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", [None, 3, "", ["a.ts"]])
def test_path_must_be_a_path(path: object) -> None:
    with pytest.raises(OplensError, match=r"expected the path of a \.ts file"):
        read_ts(path)  # type: ignore[arg-type]
