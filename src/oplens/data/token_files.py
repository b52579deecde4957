"""Files of tokens and of text: `.npy`, `.npz`, `.json`, `.jsonl`, `.txt`, `.md`; each is what it says or refused with the cure."""

import json
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.data.cut_texts import text_tokens
from oplens.data.texts import Tokenizer
from oplens.data.tokens import Tokens, as_tokens
from oplens.errors import ArgumentError, DataError
from oplens.files import kind_of

_TEXTS = (".txt", ".md", ".text")
_KINDS = (
    "whole numbers as .npy or .npz, lists of them or texts as .json or .jsonl (one case a line), or text as .txt or .md"
)
LARGEST = 2**32  # bytes that an archive may unpack to: a few kilobytes of zeros could fill any memory
_TOKENS, _MASKS = ("tokens", "input_ids", "ids"), ("mask", "attention_mask")


def read_tokens(
    path: str | Path,
    tokenizer: Tokenizer | None = None,
    *,
    window: int | None = None,
    max_length: int | None = None,
    vocabulary: int | None = None,
    pad: int | None = None,
) -> Tokens:
    r"""Read tokens, or text through a tokenizer.

    `.npy`: whole numbers (n_cases, length), or (n,): a stream, cut into windows. `.npz`: the same as `tokens`, with `mask` or `lengths`.
    `.json`: a list of cases, `.jsonl`: one case a line; a case is a list of whole numbers, a text, or an object with `tokens` or `text`.
    `.txt`, `.md`: UTF-8 text, tokenised whole and cut into windows.

    Parameters
    ----------
    path : path-like
    tokenizer : Tokenizer, optional
        Of the model: :func:`oplens.data.read_tokenizer`. Needed for text; of tokens it gives labels and bytes.
    window : int, optional
        Cases are cut into windows of this many tokens. Default: min(`max_length`, 512) for text and streams; rows stay whole.
    max_length, vocabulary : int, optional
        What the model takes.
    pad : int, optional
        Token that pads arrays: where it ends rows, or else where it begins them, it is left out. -1: nothing is padding.

    Raises
    ------
    DataError
        Anything that is no such file, named with the case or byte to blame and the cure. Nothing is unpickled.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "rows.jsonl"
    ...     _ = path.write_text("[1, 5, 2]\n[1, 7]\n")
    ...     tokens = read_tokens(path)
    >>> tokens.ids.tolist(), tokens.lengths.tolist(), tokens.name
    ([[1, 5, 2], [1, 7, 0]], [3, 2], 'rows.jsonl')
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: {'is no file' if path.exists() else 'no such file'}; give {_KINDS}.")
    if pad is not None and (isinstance(pad, bool) or not isinstance(pad, int) or pad < -1):
        raise ArgumentError(f"read_tokens(pad={pad!r}): give a token, or -1 where nothing is padding.")
    with path.open("rb") as file:
        kind = kind_of(file.read(512))
    if kind == "git-lfs":
        raise DataError(
            f"{path}: a pointer that git-lfs left in place of the file; run `git lfs pull` where it came from."
        )
    limits: dict[str, Any] = {"window": window, "max_length": max_length, "vocabulary": vocabulary}
    named: dict[str, Any] = {"name": path.name, "source": path.name}
    suffix = path.suffix.lower()
    if suffix in _TEXTS:
        return text_tokens([_text(path)], _needed(path, tokenizer), **limits, **named)
    if suffix in (".json", ".jsonl"):
        cases = _cases(path, suffix == ".jsonl")
        if isinstance(cases[0], str):
            return text_tokens(cases, _needed(path, tokenizer), **limits, **named)
        return as_tokens(cases, tokenizer, **limits, **named)
    if suffix not in (".npy", ".npz"):
        pickled = suffix in (".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib")
        why = "such files can run code when they are read" if pickled else "not a kind of file that is read here"
        raise DataError(f"{path}: {why}; give {_KINDS}.")
    rows, lengths = _archive(path, kind) if suffix == ".npz" else (_array(path, kind), None)
    if rows.ndim == 2 and rows.dtype.kind in "iu" and lengths is None and rows.size:
        rows, lengths = _unpadded(path, rows, pad)
    return as_tokens(rows, tokenizer, lengths=lengths, **limits, **named)


def _needed(path: Path, tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise DataError(
            f"{path}: text needs the model's tokenizer, and its directory holds neither tokenizer.json nor vocabulary.json; give token ids."
        )
    return tokenizer


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if kind_of(data[:512]) == "utf-16":
            raise DataError(f"{path}: text in UTF-16; save it as UTF-8.") from None
        raise DataError(
            f"{path}: no text in UTF-8, byte {error.start} is {data[error.start]:#04x}; save it as UTF-8."
        ) from None
    if "\0" in text:
        raise DataError(f"{path}: holds a NUL character, so it is no text; give {_KINDS}.")
    if not text.strip():
        raise DataError(f"{path}: the text is empty.")
    return text


def _cases(path: Path, lines: bool) -> list[Any]:
    """Cases of JSON, all lists of whole numbers or all texts."""
    text = _text(path)
    if lines:
        kept = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        values = [(f"line {number}", _json(path, line, f"line {number}")) for number, line in kept]
    else:
        value = _json(path, text, "the file")
        if not isinstance(value, list) or not value:
            raise DataError(f"{path}: expected a list of cases, [[5, 3, 8], [2, 7]].")
        values = [(f"case {number}", case) for number, case in enumerate(value)]
    found = [(where, _case(path, where, value)) for where, value in values]
    first = isinstance(found[0][1], str)
    for where, case in found:
        if isinstance(case, str) != first:
            raise DataError(f"{path}, {where}: texts and tokens are mixed; give one or the other.")
    return [case for _, case in found]


def _case(path: Path, where: str, value: Any) -> list[int] | str:
    if isinstance(value, dict):
        present = [name for name in (*_TOKENS, "text") if name in value]
        if len(present) != 1:
            raise DataError(f"{path}, {where}: an object must have one of `tokens`, `input_ids`, `text`.")
        value = value[present[0]]
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value and all(type(t) is int for t in value):
        return value
    raise DataError(f"{path}, {where}: expected a list of whole numbers or a text, and something in it.")


def _json(path: Path, text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, {where}: not JSON ({str(error)[:200]}).") from None


def _array(path: Path, kind: str) -> NDArray[Any]:
    if kind != "numpy":
        raise DataError(f"{path}: named .npy, but no array that numpy wrote; save it with numpy.save.")
    with path.open("rb") as file:
        return np.asarray(_loaded(path, lambda: np.load(file, allow_pickle=False)))


def _loaded(path: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except (ValueError, OSError, EOFError, KeyError, SyntaxError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: {_damage(error)}") from None


def _damage(error: Exception) -> str:
    if "allow_pickle" in str(error) or "pickled" in str(error):
        return (
            "holds Python objects, such as rows of different lengths, which could run code when read; save padded rows with their lengths "
            "(numpy.savez(path, tokens=..., lengths=...)), or one list a line as .jsonl."
        )
    return f"damaged or cut off ({str(error)[:200]})."


def _archive(path: Path, kind: str) -> tuple[NDArray[Any], Any]:
    """Tokens and lengths of an .npz file, padding moved to the right."""
    if kind != "zip":
        raise DataError(f"{path}: named .npz, but no archive of arrays; save it with numpy.savez.")
    with path.open("rb") as file, _loaded(path, lambda: np.load(file, allow_pickle=False)) as archive:
        names = list(archive.files)
        chosen = [name for name in names if name in _TOKENS]
        masks = [name for name in names if name in (*_MASKS, "lengths")]
        if len(chosen) != 1 or len(masks) > 1:
            raise DataError(
                f"{path}: holds {', '.join(names) or 'nothing'}; expected `tokens` and, if rows are padded, one of `mask` and `lengths`."
            )
        size = sum(entry.file_size for entry in archive.zip.infolist())
        if size > LARGEST:
            raise DataError(
                f"{path}: unpacks to {size / 2**30:.3g} GiB, more than the {LARGEST / 2**30:.3g} GiB that are read; save fewer cases, or the "
                "tokens alone as .npy."
            )
        rows, *beside = (_loaded(path, partial(archive.__getitem__, name)) for name in (*chosen, *masks))
    if not masks:
        return rows, None
    return (rows, beside[0]) if masks[0] == "lengths" else _masked(path, rows, beside[0])


def _masked(path: Path, rows: NDArray[Any], mask: NDArray[Any]) -> tuple[NDArray[Any], Any]:
    if mask.shape != rows.shape or mask.ndim != 2 or not np.isin(mask, (0, 1)).all():
        raise DataError(
            f"{path}: the mask of shape {mask.shape} must hold 0 and 1, one for each of {rows.shape} tokens."
        )
    real = mask.astype(bool)
    lengths, start = real.sum(1), real.argmax(1)
    position = np.arange(rows.shape[1])
    whole = (position >= start[:, None]) & (position < (start + lengths)[:, None])
    bad = (lengths == 0) | (whole != real).any(1)
    if bad.any():
        raise DataError(
            f"{path}: the mask of case {int(np.argmax(bad))} hides all tokens, or some between real ones; padding stands before or after."
        )
    return _shifted(rows, start, lengths)


def _shifted(rows: NDArray[Any], start: Any, lengths: Any) -> tuple[NDArray[Any], Any]:
    """Rows with what is real moved to the front."""
    columns = np.minimum(np.arange(rows.shape[1]) + start[:, None], rows.shape[1] - 1)
    return np.take_along_axis(rows, columns, 1), lengths.astype(np.int64)


def _unpadded(path: Path, rows: NDArray[Any], pad: int | None) -> tuple[NDArray[Any], Any]:
    """Without the padding that `pad` says; refuses rows that look padded when nothing is said."""
    if pad is None:
        for side, view in (("end", rows[:, ::-1]), ("begin", rows)):
            found = _looks_padded(view, side == "begin")
            if found is not None:
                raise DataError(
                    f"{path}: rows {side} with {found}, some with more of it than others, and it stands nowhere else, so it looks like "
                    f"padding, which must not be measured; give pad={found}, a mask or lengths, or pad=-1 if it is data."
                )
        return rows, None
    other = rows != pad
    if not other.any(1).all():
        raise DataError(f"{path}: case {int(np.argmin(other.any(1)))} is nothing but padding; leave it out.")
    start, stop = other.argmax(1), rows.shape[1] - other[:, ::-1].argmax(1)
    if (stop < rows.shape[1]).any():  # a beginning may be the same token as the padding behind
        start = np.zeros_like(start)
    return _shifted(rows, start, stop - start)


def _looks_padded(rows: NDArray[Any], some_without: bool) -> int | None:
    """Token at the beginning of rows, in runs of different lengths and nowhere else; with `some_without` a row must lack it."""
    values, counts = np.unique(rows[:, 0], return_counts=True)
    token = values[counts.argmax()]
    other = rows != token
    runs = np.where(other.any(1), other.argmax(1), rows.shape[1])
    inside = int((~other).sum()) - int(runs.sum())
    # Every text begins with its own first token, and an empty one may hold two.
    missing = not some_without or runs.min() == 0
    return int(token) if runs.max() > 1 and len(np.unique(runs)) > 1 and missing and not inside else None
