"""Files that must be read, compared with a parser of a few lines written here."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oplens.data import SequenceData, read_ts

HEADER = "@problemName hands\n@dimensions 2\n@classLabel true left Right\n@data\n"
CASES = "1,2,3:4,5,6:left\n7,8,9:1.5,-2,3e2:Right\n"
VALUES = [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [1.5, -2, 300]]]


def plain(path: Path) -> tuple[list[list[list[float]]], list[str], list[str]]:
    """Values, labels and class names of a well-formed file, by str.split alone."""
    head, _, body = path.read_text().partition("@data\n")
    classes = next(line for line in head.split("\n") if line.startswith("@classLabel true")).split()[2:]
    values, labels = [], []
    for line in body.split("\n"):
        if line:
            *channels, label = line.split(":")
            values.append([[float(v) for v in channel.split(",")] for channel in channels])
            labels.append(label)
    return values, labels, classes


def read(tmp_path: Path, content: str | bytes, **options: object) -> SequenceData:
    path = tmp_path / "hands.ts"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_ts(path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("split", "n_cases"), [("TRAIN", 268), ("TEST", 293)])
def test_self_regulation_scp1(shared_data: Path, split: str, n_cases: int) -> None:
    path = shared_data / "data" / "SelfRegulationSCP1" / f"SelfRegulationSCP1_{split}.ts"
    data = read_ts(path, sampling_rate=256)
    values, labels, classes = plain(path)
    assert data.X.shape == (n_cases, 6, 896)
    np.testing.assert_array_equal(data.X, np.array(values))
    assert data.y is not None
    assert data.y.tolist() == labels
    assert list(data.classes) == classes == ["negativity", "positivity"]
    assert data.lengths.tolist() == [896] * n_cases
    assert (data.name, data.source, data.sampling_rate) == ("SelfRegulationSCP1", str(path), 256.0)
    assert len(set(data.channels)) == 6


@pytest.mark.parametrize(
    "content",
    [
        HEADER + CASES,
        (HEADER + CASES).removesuffix("\n"),
        (HEADER + CASES).replace("\n", "\r\n"),
        (HEADER + CASES).replace("\n", "\r"),
        b"\xef\xbb\xbf" + (HEADER + CASES).encode(),
        b"\xef\xbb\xbf" + (HEADER + CASES).replace("\n", "\r\n").encode(),
        "# a comment\n\n" + HEADER.replace("@data", "\n% another\n@data") + CASES,
        HEADER + "\n# between the cases: 1,2\n" + CASES.replace("\n", "\n\n#\n") + "\n\n",
        HEADER.replace("@problemName", "@PROBLEMNAME").replace("@classLabel true", "@CLASSLABEL TRUE").replace("@data", "@DATA") + CASES,
        HEADER.replace(" ", "\t  ") + CASES,
        "  " + (HEADER + CASES).replace("\n", "  \n  ").rstrip(" "),
        HEADER + CASES.replace(",", " , ").replace(":", " : "),
        HEADER.replace("@dimensions 2\n", "@dimension 2\n@unheardOf 3\n@targetLabel false\n") + CASES,
        HEADER.replace("@dimensions 2\n", "") + CASES,
        HEADER + CASES.replace("3e2", "+300.").replace("1.5", "015E-1"),
        HEADER.replace("@problemName hands", "@problemName feet\n@problemName hands\n@Dimensions 2") + CASES,
        "# caf\u00e9 in Latin-1\n".encode("latin-1") + (HEADER + CASES).encode(),
    ],
    ids=[
        "plain", "no last line end", "CRLF", "CR", "BOM", "BOM and CRLF", "comments above", "comments below", "tags in capitals", "tabs",
        "indented", "spaces around values", "further tags", "no dimensions", "number forms",
        "repeated tags", "Latin-1 comment",
    ],
)  # fmt: skip
def test_forms_of_one_file(content: str | bytes, tmp_path: Path) -> None:
    data = read(tmp_path, content)
    np.testing.assert_array_equal(data.X, VALUES)
    assert data.y is not None
    assert data.y.tolist() == ["left", "Right"]
    assert data.classes == ("left", "Right")
    assert (data.name, data.sampling_rate) == ("hands", None)


def test_unequal_lengths_are_padded_with_zeros(tmp_path: Path) -> None:
    data = read(tmp_path, HEADER + "1,2,3:4,5,6:left\n7:-1:Right\n8,9:1,2:left\n")
    np.testing.assert_array_equal(data.X, [[[1, 2, 3], [4, 5, 6]], [[7, 0, 0], [-1, 0, 0]], [[8, 9, 0], [1, 2, 0]]])
    assert data.lengths.tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("tag", "line", "found"),
    [("@equalLength true\n", 1, "2 to 3 steps"), ("@seriesLength 4\n", 1, "2 to 3 steps")],
)
def test_a_header_that_is_wrong_about_lengths_is_told(tag: str, line: int, found: str, tmp_path: Path) -> None:
    with pytest.warns(
        UserWarning, match=rf"hands\.ts, line {line}: {tag.strip()}, but the cases have {found}"
    ) as caught:
        data = read(tmp_path, tag + HEADER + "1,2,3:4,5,6:left\n8,9:1,2:left\n")
    assert data.lengths.tolist() == [3, 2]
    assert len(caught) == 1


def test_a_series_length_that_all_cases_miss_is_told(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="line 2: @seriesLength 4, but the cases have 3 steps"):
        data = read(tmp_path, "@equalLength true\n@seriesLength 4\n" + HEADER + CASES)
    np.testing.assert_array_equal(data.X, VALUES)


def test_unequal_length_as_the_header_says_is_silent(tmp_path: Path) -> None:
    data = read(tmp_path, "@equalLength false\n@seriesLength 4\n" + HEADER + "1,2,3:4,5,6:left\n8,9:1,2:left\n")
    assert data.lengths.tolist() == [3, 2]


def test_class_order_is_the_header_s_and_labels_are_text(tmp_path: Path) -> None:
    data = read(tmp_path, "@classLabel true 10 2 1.0 B a\n@data\n1,2:2\n3,4:10\n5,6:1.0\n7,8:a\n")
    assert data.classes == ("10", "2", "1.0", "B", "a")
    assert data.y is not None
    assert data.y.tolist() == ["2", "10", "1.0", "a"]


def test_labels_outside_ascii_and_html_stay_as_they_are(tmp_path: Path) -> None:
    data = read(tmp_path, "@classLabel true h\u00f6ren <b>\n@data\n1,2:h\u00f6ren\n3,4:<b>\n")
    assert data.y is not None
    assert data.y.tolist() == ["h\u00f6ren", "<b>"]


def test_a_single_class_can_be_read(tmp_path: Path) -> None:
    data = read(tmp_path, "@classLabel true only\n@data\n1,2:only\n")
    assert data.classes == ("only",)


def test_unlabelled(tmp_path: Path) -> None:
    data = read(tmp_path, "@classLabel false\n@data\n1,2:3,4\n5,6:7,8\n")
    assert data.y is None
    assert data.classes == ()
    np.testing.assert_array_equal(data.X, [[[1, 2], [3, 4]], [[5, 6], [7, 8]]])


def test_univariate_and_one_step(tmp_path: Path) -> None:
    data = read(tmp_path, "@univariate true\n@classLabel true 1 2\n@data\n5:1\n6:2\n")
    np.testing.assert_array_equal(data.X, [[[5]], [[6]]])
    assert data.y is not None
    assert data.y.tolist() == ["1", "2"]


def test_the_name_falls_back_to_the_file_s(tmp_path: Path) -> None:
    assert read(tmp_path, (HEADER + CASES).replace("@problemName hands\n", "")).name == "hands"
    assert read(tmp_path, (HEADER + CASES).replace("@problemName hands", "@problemName My hands")).name == "My hands"


def test_a_path_without_suffix_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "hands"
    path.write_text(HEADER + CASES)
    np.testing.assert_array_equal(read_ts(str(path)).X, VALUES)


def test_imputation(tmp_path: Path) -> None:
    content = "@classLabel true a\n@data\n?,1,?,NaN,7,?:5,?,6,4,nan,0:a\n1,2,4:?,3,3:a\n"
    linear = read(tmp_path, content, impute="linear")
    np.testing.assert_allclose(linear.X[0], [[1, 1, 3, 5, 7, 7], [5, 5.5, 6, 4, 2, 0]], rtol=1e-15)
    np.testing.assert_array_equal(linear.X[1], [[1, 2, 4, 0, 0, 0], [3, 3, 3, 0, 0, 0]])
    mean = read(tmp_path, content, impute="mean")
    np.testing.assert_allclose(mean.X[0], [[4, 1, 4, 4, 7, 4], [5, 3.75, 6, 4, 3.75, 0]], rtol=1e-15)
    np.testing.assert_array_equal(mean.X[1], [[1, 2, 4, 0, 0, 0], [3, 3, 3, 0, 0, 0]])


def test_imputation_leaves_whole_files_alone(tmp_path: Path) -> None:
    for impute in ("linear", "mean"):
        np.testing.assert_array_equal(read(tmp_path, HEADER + CASES, impute=impute).X, VALUES)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    cases=st.lists(
        st.integers(1, 6).flatmap(
            lambda n: st.lists(
                st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=n, max_size=n),
                min_size=3,
                max_size=3,
            )
        ),
        min_size=1,
        max_size=5,
    )
)
def test_every_float64_survives(cases: list[list[list[float]]], tmp_path: Path) -> None:
    lines = [":".join(",".join(map(repr, channel)) for channel in case) + ":left" for case in cases]
    data = read(tmp_path, HEADER.replace("2", "3") + "\n".join(lines) + "\n")
    assert data.lengths.tolist() == [len(case[0]) for case in cases]
    for got, want in zip(data.cases(), cases, strict=True):
        assert got.tobytes() == np.array(want).tobytes()  # bytes also tell -0.0 from 0.0
