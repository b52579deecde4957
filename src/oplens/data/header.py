"""The header of a `.ts` file, and the other kinds of file that carry that suffix."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from oplens.errors import DataError
from oplens.files import kind_of

_TAGS = {
    "problemname": "@problemName",
    "timestamps": "@timeStamps",
    "missing": "@missing",
    "univariate": "@univariate",
    "dimension": "@dimension",
    "dimensions": "@dimensions",
    "equallength": "@equalLength",
    "serieslength": "@seriesLength",
    "classlabel": "@classLabel",
    "targetlabel": "@targetLabel",
    "data": "@data",
}
_BOOLEANS = ("timestamps", "missing", "univariate", "equallength", "targetlabel")
_COUNTS = ("dimension", "dimensions", "serieslength")
# What is met under the name of a .ts file, by kind (oplens.files.kind_of); texts are named below, with their line.
_FOREIGN = {
    **{kind: f"compressed with {kind}; unpack it first" for kind in ("gzip", "bzip2", "xz")},
    "zip": "a zip archive; unpack it and name the .ts file inside",
    "utf-16": "saved as UTF-16; save it again as UTF-8",
    "hdf5": "an HDF5 file, not text",
    "numpy": "a NumPy array; load it with numpy.load and pass the array",
    "matlab": "a MATLAB file; load it with scipy.io.loadmat and pass the array",
}
_SOURCE_CODE = re.compile(
    r"(?:import|export|const|let|var|type|interface|class|enum|declare|function|namespace|abstract|async)\b"
    r"|//|/\*|['\"]use "
)


@dataclass(frozen=True)
class Header:
    """What the header of a `.ts` file states; None where it is silent.

    Attributes
    ----------
    name : str or None
    classes : tuple of str or None
        In the order of the header line; None when cases carry no label.
    n_channels : int or None
    equal_length : bool or None
    series_length : int or None
    lines : dict
        Line number of each tag, by its lower-case name.
    """

    name: str | None
    classes: tuple[str, ...] | None
    n_channels: int | None
    equal_length: bool | None
    series_length: int | None
    lines: dict[str, int]


def at(path: Path, line: int, message: str) -> DataError:
    """Return the error for a line (counted from 1) of a file."""
    return DataError(f"{path}, line {line}: {message}")


def quote(text: str) -> str:
    """Return text from a file for a message, shortened, with control characters escaped."""
    return repr(text if len(text) <= 40 else text[:37] + "...")


def refuse_other_files(path: Path) -> None:
    """Raise a `DataError` when the path is no file, or its first bytes are no text."""
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.ts"))[:3]
        hint = f", for example {inside[0]}" if inside else ""
        raise DataError(f"{path} is a directory; name the .ts file in it{hint}.")
    if not path.exists():
        names = [p.name for p in path.parent.glob("*.ts")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise DataError(f"{path} does not exist{hint}")
    if not path.is_file():
        raise DataError(f"{path} is not a regular file; copy the data to a .ts file first.")
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    if not start:
        raise DataError(f"{path} is empty (0 bytes); expected a header, @data and one line per case.")
    kind = kind_of(start)
    if kind in _FOREIGN:
        raise DataError(f"{path} is {_FOREIGN[kind]}.")
    if b"\0" in start:
        video = start[:1] == b"G" and start[188:189] in (b"G", b"")
        what = "an MPEG transport stream (video), which shares the suffix .ts" if video else "binary"
        raise DataError(f"{path} is {what}; expected a text file of time series.")


def read_header(path: Path, lines: Iterator[tuple[int, str]]) -> Header:
    """Read lines up to and with `@data` and return what they state."""
    seen: dict[str, tuple[int, list[str]]] = {}
    number = 0
    for number, line in lines:
        if not line or line[0] in "#%":
            continue
        if line[0] != "@":
            raise at(path, number, _not_a_header(line, bool(seen)))
        words = line[1:].split()
        tag = words[0].lower() if words else ""
        if tag in ("relation", "attribute"):
            raise at(
                path, number, f"{quote(line)} belongs to an .arff or .tsf file; expected the header of a .ts file."
            )
        if tag not in _TAGS:
            near = difflib.get_close_matches(tag, _TAGS, n=1, cutoff=0.8)
            if near:
                raise at(path, number, f"unknown tag {quote('@' + words[0])}; write it as {_TAGS[near[0]]}.")
            continue
        # two problem names, or the same line twice, occur in published files and contradict nothing
        if tag in seen and tag != "problemname" and words[1:] != seen[tag][1]:
            raise at(
                path,
                number,
                f"{_TAGS[tag]} is given twice, with another value on line {seen[tag][0]}; keep one of them.",
            )
        seen[tag] = (number, words[1:])
        if tag == "data":
            if len(words) > 1:
                raise at(path, number, f"@data must stand alone on its line, got {quote(line)}; cases follow below it.")
            return _interpret(path, seen)
    if not seen:
        raise DataError(f"{path} holds no header and no cases, only blank or comment lines.")
    raise at(path, number, "the file ends without @data; expected the line @data and one line per case below it.")


def _not_a_header(line: str, after_header: bool) -> str:
    if line.startswith("version https://git-lfs"):
        return "this is a Git LFS pointer, not the data; fetch the file with `git lfs pull`."
    if line.startswith("<"):
        return (
            "this is an HTML or XML page (a web page saved instead of the data, or a Qt translation file, "
            "which shares the suffix .ts); download the data file itself."
        )
    if not after_header and _SOURCE_CODE.match(line):
        return (
            "this looks like TypeScript source, which shares the suffix .ts; "
            "expected a header line such as @problemName."
        )
    if after_header:
        return f"expected a header line (@...), a # comment or @data, got {quote(line)}; the line @data may be missing above it."
    return f"expected a header line such as @problemName before the data, got {quote(line)}."


def _interpret(path: Path, seen: dict[str, tuple[int, list[str]]]) -> Header:
    flags = {tag: _boolean(path, tag, *seen[tag]) for tag in _BOOLEANS if tag in seen}
    counts = {tag: _count(path, tag, *seen[tag]) for tag in _COUNTS if tag in seen}
    if flags.get("timestamps"):
        raise at(
            path,
            seen["timestamps"][0],
            "@timeStamps true is not supported: oplens needs evenly spaced values; write the values alone, "
            "set @timeStamps false and give the sampling rate instead.",
        )
    if flags.get("targetlabel"):
        raise at(
            path,
            seen["targetlabel"][0],
            "@targetLabel true marks a regression set; oplens explains decisions between classes: "
            "replace the targets by class labels and write @classLabel true with their names.",
        )
    if "classlabel" not in seen:
        raise at(
            path,
            seen["data"][0],
            "no @classLabel before @data; write @classLabel true followed by the class names, "
            "or @classLabel false when the cases carry no label.",
        )
    classes = _classes(path, *seen["classlabel"])
    stated = [tag for tag in ("dimensions", "dimension") if tag in seen]
    n_channels = counts[stated[0]] if stated else None
    if n_channels == 0:
        raise at(path, seen[stated[0]][0], f"{_TAGS[stated[0]]} must be at least 1, got 0.")
    if flags.get("univariate"):
        if n_channels not in (None, 1):
            raise at(
                path,
                seen["univariate"][0],
                f"@univariate true contradicts {n_channels} dimensions on line {seen[stated[0]][0]}; "
                "write @univariate false.",
            )
        n_channels = 1
    return Header(
        name=" ".join(seen["problemname"][1]) or None if "problemname" in seen else None,
        classes=classes,
        n_channels=n_channels,
        equal_length=flags.get("equallength"),
        series_length=counts.get("serieslength"),
        lines={tag: line for tag, (line, _) in seen.items()},
    )


def _boolean(path: Path, tag: str, line: int, words: list[str]) -> bool:
    if len(words) == 1 and words[0].lower() in ("true", "false"):
        return words[0].lower() == "true"
    raise at(path, line, f"{_TAGS[tag]} must be followed by true or false, got {quote(' '.join(words))}.")


def _count(path: Path, tag: str, line: int, words: list[str]) -> int:
    if len(words) == 1 and words[0].isascii() and words[0].isdigit() and len(words[0]) < 10:
        return int(words[0])
    raise at(path, line, f"{_TAGS[tag]} must be followed by one whole number, got {quote(' '.join(words))}.")


def _classes(path: Path, line: int, words: list[str]) -> tuple[str, ...] | None:
    state = words[0].lower() if words else ""
    if state not in ("true", "false"):
        example = " ".join(words) or "left right"
        raise at(
            path,
            line,
            f"@classLabel must be followed by true or false, got {quote(' '.join(words))}; "
            f"write @classLabel true {example[:60]} or @classLabel false.",
        )
    names = words[1:]
    if state == "false":
        if names:
            raise at(path, line, f"@classLabel false contradicts the class names {quote(' '.join(names))}; write true.")
        return None
    if not names:
        raise at(path, line, "@classLabel true must be followed by the class names, separated by spaces.")
    seen: set[str] = set()
    for name in names:
        if "," in name or ":" in name:
            raise at(path, line, f"the class name {quote(name)} holds a comma or colon; separate names by spaces.")
        if name in seen:
            raise at(path, line, f"@classLabel names {quote(name)} twice; every class once.")
        seen.add(name)
    return tuple(names)
