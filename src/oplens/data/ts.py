"""Reading `.ts` files: our own pass names what is wrong and on which line, then aeon reads the numbers."""

import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oplens.data.header import Header, at, quote, read_header, refuse_other_files
from oplens.data.sequences import SequenceData, default_channels, pad
from oplens.errors import ArgumentError, DataError

# Possessive quantifiers: a malformed channel of a million digits fails in linear time.
_NUMBER = r"[+-]?(?:\d++(?:\.\d*+)?|\.\d++)(?:e[+-]?\d++)?"
_VALUE = rf"\s*+(?:{_NUMBER}|\?|nan)\s*+"
_CHANNEL = re.compile(rf"{_VALUE}(?:,{_VALUE})*+", re.ASCII | re.IGNORECASE)
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_UNDECODED = re.compile("[\udc80-\udcff]")
_WORDS_FOR_MISSING = ("na", "n/a", "null", "none", "nil", "missing", "-", "--", ".", "<na>", "-nan", "+nan")

Impute = Literal["linear", "mean"]


@dataclass(frozen=True)
class _Body:
    lines: list[int]
    labels: list[str]
    lengths: list[int]


def read_ts(
    path: str | os.PathLike[str], *, impute: Impute | None = None, sampling_rate: float | None = None
) -> SequenceData:
    """Read a `.ts` file of labelled (or unlabelled) sequences, equal or unequal in length.

    Comments (``#``, ``%``), blank lines, Windows line ends and a byte-order mark are accepted anywhere; header tags
    in any case. Time stamps and regression targets are refused. Where the header's `@equalLength` or
    `@seriesLength` disagrees with the data, the data are followed and a `UserWarning` says so.

    Parameters
    ----------
    path : path-like
        Text in UTF-8.
    impute : {"linear", "mean"} or None
        What to do with missing values (``?``, ``NaN``). None refuses them. ``"linear"`` interpolates over time within
        the channel of that case and holds the nearest value at the ends; ``"mean"`` takes the mean of the channel's
        other values in that case. Neither looks at another case.
    sampling_rate : float or None
        Steps per second (Hz); the format does not store it.

    Returns
    -------
    SequenceData
        Labels exactly as in the file; classes in the order of the header, whether or not a case has them.

    Raises
    ------
    DataError
        Naming file and line (both counted from 1, as are channels and values), what was expected, and the cure.
    ArgumentError
        For an `impute` or `sampling_rate` that cannot work.

    Accuracy
    --------
    Exact: every value is the float64 nearest to its decimal text.

    Cost
    ----
    O(file size) in time; a normalised copy of the file is written to the temporary directory for aeon.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name) / "hands.ts"
    >>> _ = path.write_text('''@problemName hands
    ... @dimensions 2
    ... @classLabel true left Right
    ... @data
    ... 1,2,3:4,5,6:left
    ... 7,?,9:1,2,3:Right
    ... ''')
    >>> data = read_ts(path, impute="linear", sampling_rate=256)
    >>> data.X[1, 0].tolist(), data.y.tolist(), data.sampling_rate
    ([7.0, 8.0, 9.0], ['left', 'Right'], 256.0)
    >>> folder.cleanup()
    """
    if impute not in (None, "linear", "mean"):
        raise ArgumentError(f"read_ts(impute={impute!r}): impute must be None, 'linear' or 'mean'.")
    rate = _rate(sampling_rate)
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ArgumentError(f"read_ts({path!r}): expected the path of a .ts file.")
    path = Path(path)
    refuse_other_files(path)
    lines = _lines(path)
    header = read_header(path, lines)
    try:
        with tempfile.TemporaryDirectory(prefix="oplens-") as folder:
            copy = Path(folder) / "data.ts"
            body = _check_and_copy(path, header, lines, copy)
            cases = _load(copy)
    except OSError as error:
        raise DataError(
            f"{path}: reading failed ({error}); a copy of the file must fit in {tempfile.gettempdir()}, "
            "set TMPDIR to choose another folder."
        ) from error
    assert [case.shape[1] for case in cases] == body.lengths
    _refuse_infinite(path, cases, body)
    cases = _without_missing(path, cases, body, impute)
    _tell_lengths(path, header, body)
    values, lengths = pad(cases)
    return SequenceData(
        X=values,
        lengths=lengths,
        y=np.array(body.labels) if header.classes is not None else None,
        channels=default_channels(values.shape[1]),
        classes=header.classes or (),
        sampling_rate=rate,
        name=header.name or path.stem,
        source=str(path),
    )


def _rate(value: float | None) -> float | None:
    if value is None:
        return None
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if number and 0 < value < float("inf"):
        return float(value)
    raise ArgumentError(f"read_ts(sampling_rate={value!r}): expected a positive number of Hz, or None when unknown.")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.strip()
            if "\0" in line:
                raise at(path, number, "a zero byte; the file is binary or damaged, expected text.")
            if not line.isascii() and line[0] not in "#%" and (bad := _UNDECODED.search(line)):
                column = bad.start() + 1
                raise at(path, number, f"character {column} is not valid UTF-8; save the file again as UTF-8.")
            yield number, line


def _check_and_copy(path: Path, header: Header, lines: Iterator[tuple[int, str]], copy: Path) -> _Body:
    """Check every case and write it for aeon.

    aeon lower-cases labels, stops at blank lines and comments below @data and believes the header about lengths,
    so it gets the channels alone, under a header that is always true.
    """
    body = _Body([], [], [])
    classes = frozenset(header.classes or ())
    n_channels = header.n_channels
    with copy.open("w", encoding="ascii") as out:
        out.write("@univariate false\n@equallength false\n@classlabel false\n@data\n")
        for number, line in lines:
            if not line or line[0] in "#%":
                continue
            if line[0] == "@":
                raise at(
                    path, number, f"{quote(line)} is a header line below @data; were two files joined? Keep one header."
                )
            fields = line.split(":")
            channels, label = _split(path, number, header, fields, n_channels)
            if n_channels is None:
                n_channels = len(channels)
            if len(channels) != n_channels:
                raise at(path, number, _wrong_count(header, len(channels), n_channels, body))
            if label is not None:
                if label not in classes:
                    raise at(path, number, _unknown_label(header, label))
                body.labels.append(label)
            _check_channels(path, number, channels)
            body.lines.append(number)
            body.lengths.append(channels[0].count(",") + 1)
            out.write(":".join(channels) + "\n")
    if not body.lines:
        raise at(path, header.lines["data"], "no case follows @data; expected one line per case.")
    return body


def _split(
    path: Path, number: int, header: Header, fields: list[str], n_channels: int | None
) -> tuple[list[str], str | None]:
    stated = header.lines["classlabel"]
    if header.classes is None:
        last = fields[-1]
        surplus = len(fields) > 1 and n_channels in (None, len(fields) - 1)
        if surplus and last.strip() and "," not in last and not _CHANNEL.fullmatch(last):
            raise at(
                path,
                number,
                f"the last field {quote(last)} looks like a label, but line {stated} says @classLabel false; "
                "expected channels alone, or @classLabel true and the class names.",
            )
        return fields, None
    label = fields[-1].strip()
    count = "channels" if n_channels is None else f"{n_channels} channel(s)"
    expected = f"{count} separated by ':' and then a label"
    if label in ("", "?"):
        raise at(
            path,
            number,
            f"the label is missing (the line ends with {quote(':' + label)}); expected {expected}. "
            "For a file without labels write @classLabel false and leave the last ':' out.",
        )
    values_instead = "," in label or len(fields) == 1 or len(fields) == n_channels
    if label not in header.classes and values_instead and _CHANNEL.fullmatch(label):
        raise at(
            path,
            number,
            f"the label is missing: the line ends with values; expected {expected} "
            f"(@classLabel true on line {stated}).",
        )
    if len(fields) == 1:
        raise at(path, number, f"no ':' in {quote(fields[0])}; expected {expected}.")
    return fields[:-1], label


def _wrong_count(header: Header, got: int, expected: int, body: _Body) -> str:
    tag = next((tag for tag in ("dimensions", "dimension", "univariate") if tag in header.lines), None)
    if header.n_channels is None:
        why = f"as in the first case, line {body.lines[0]}"
    else:
        assert tag is not None
        why = f"as line {header.lines[tag]} states"
    and_label = " and a label" if header.classes is not None else ""
    unlabelled = header.classes is None and got == expected + 1
    cure = (
        "if the last one is a label, write @classLabel true and the class names"
        if unlabelled
        else "channels are separated by ':'"
    )
    return f"{got} channel(s), expected {expected}{and_label} ({why}); {cure}."


def _unknown_label(header: Header, label: str) -> str:
    assert header.classes is not None
    shown = ", ".join(header.classes[:10]) + (", ..." if len(header.classes) > 10 else "")
    message = f"unknown label {quote(label)}; expected one of the classes of line {header.lines['classlabel']}: {shown}"
    same = [c for c in header.classes if c.lower() == label.lower() or _equal_numbers(c, label)]
    if same:
        return f"{message}. Labels are compared as text: write it as {same[0]} in both places."
    if len(label.split()) > 1:
        return f"{message}. A class name cannot hold a space."
    return f"{message}. Correct the label, or add it to that line."


def _equal_numbers(a: str, b: str) -> bool:
    try:
        return float(a) == float(b)
    except ValueError:
        return False


def _check_channels(path: Path, number: int, channels: list[str]) -> None:
    for i, channel in enumerate(channels):
        if not _CHANNEL.fullmatch(channel):
            raise at(path, number, _bad_channel(i, len(channels), channel))
    steps = channels[0].count(",") + 1
    for i, channel in enumerate(channels):
        if channel.count(",") + 1 != steps:
            raise at(
                path,
                number,
                f"channel {i + 1} has {channel.count(',') + 1} values, channel 1 has {steps}; "
                "expected as many in every channel of a case (cases may differ).",
            )


def _bad_channel(index: int, count: int, channel: str) -> str:
    where = f"channel {index + 1} of {count}"
    if not channel.strip():
        return f"{where} is empty; expected at least one number."
    tokens = [token.strip(" \t\r\n\f\v") for token in channel.split(",")]
    position, token = next((i, t) for i, t in enumerate(tokens) if not _CHANNEL.fullmatch(t))
    value = f"value {position + 1} of {where}"
    if not token:
        return f"{value} is empty; expected a number between commas, or ? for a missing value."
    if _INFINITE.fullmatch(token):
        return f"{value} is infinite ({quote(token)}); expected a finite number: correct it, or write ? and impute it."
    if token.startswith("("):
        return f"{value} is {quote(token)}, which looks like a time stamp; expected values alone, separated by commas."
    if token.lower() in _WORDS_FOR_MISSING:
        return f"{value} is {quote(token)}, not a number; write a missing value as ?."
    return f"{value} is {quote(token)}, not a number; expected numbers separated by commas."


def _load(copy: Path) -> list[NDArray[np.float64]]:
    from aeon.datasets import load_from_ts_file

    cases, _ = load_from_ts_file(str(copy))
    return list(cases)


def _refuse_infinite(path: Path, cases: list[NDArray[np.float64]], body: _Body) -> None:
    for case, line in zip(cases, body.lines, strict=True):
        if np.isinf(case).any():
            channel, step = (int(i) + 1 for i in np.argwhere(np.isinf(case))[0])
            raise at(
                path,
                line,
                f"value {step} of channel {channel} of {len(case)} is too large for a float64 and would be infinite; "
                "expected magnitudes below 1.8e308.",
            )


def _without_missing(
    path: Path, cases: list[NDArray[np.float64]], body: _Body, impute: Impute | None
) -> list[NDArray[np.float64]]:
    missing = [np.isnan(case) for case in cases]
    holes = [i for i, hole in enumerate(missing) if hole.any()]
    if not holes:
        return cases
    if impute is None:
        first = holes[0]
        channel, step = (int(i) + 1 for i in np.argwhere(missing[first])[0])
        total = sum(int(missing[i].sum()) for i in holes)
        padded = all(missing[i][:, -1].all() for i in holes)
        advice = (
            " The missing values end their cases in every channel: if they only pad shorter cases, delete them instead."
            if padded
            else ""
        )
        raise at(
            path,
            body.lines[first],
            f"value {step} of channel {channel} of {len(cases[first])} is missing ({total} in {len(holes)} case(s) of "
            f'the file); expected numbers. Fill them with impute="linear" or impute="mean" '
            f"(--impute linear on the command line).{advice}",
        )
    filled = list(cases)
    for i in holes:
        for channel, hole in enumerate(missing[i]):
            if hole.all():
                raise at(
                    path,
                    body.lines[i],
                    f"channel {channel + 1} of {len(cases[i])} has no value at all, so nothing can be imputed; "
                    "remove the case, or the channel from every case.",
                )
        filled[i] = np.stack([_fill(row, hole, impute) for row, hole in zip(cases[i], missing[i], strict=True)])
    return filled


def _fill(row: NDArray[np.float64], hole: NDArray[np.bool_], impute: Impute) -> NDArray[np.float64]:
    if not hole.any():
        return row
    filled = row.copy()
    if impute == "mean":
        filled[hole] = row[~hole].mean()
    else:
        steps = np.arange(len(row))
        filled[hole] = np.interp(steps[hole], steps[~hole], row[~hole])
    return filled


def _tell_lengths(path: Path, header: Header, body: _Body) -> None:
    shortest, longest = min(body.lengths), max(body.lengths)
    found = f"{shortest} to {longest} steps" if shortest < longest else f"{shortest} steps"
    stated = header.series_length
    if header.equal_length and shortest < longest:
        line, tag = header.lines["equallength"], "@equalLength true"
    elif header.equal_length is not False and stated is not None and (shortest, longest) != (stated, stated):
        line, tag = header.lines["serieslength"], f"@seriesLength {stated}"
    else:
        return
    warnings.warn(
        f"{path}, line {line}: {tag}, but the cases have {found}; the data are followed, shorter cases are padded "
        "and masked.",
        UserWarning,
        stacklevel=3,
    )
