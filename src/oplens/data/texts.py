"""Tokenizers of model directories: text to tokens, and tokens back to the bytes they stand for; local files only, no code of theirs."""

import heapq
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from oplens.errors import ArgumentError, DataError

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer(Protocol):
    """What turns text into tokens.

    Attributes
    ----------
    name : str
        In words, for a reader.
    size : int
        Tokens are 0 to size - 1.
    before, after : tuple of int
        What the tokenizer puts around a text by its own habit, such as a token for its beginning.
    special : frozenset of int
        Tokens that stand for no text.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102
    @property
    def before(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def after(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def special(self) -> frozenset[int]: ...  # noqa: D102

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """Tokens of a text, nothing put around it; and how many of its UTF-8 bytes lie before the end of each."""
        ...

    def pieces(self, tokens: Sequence[int]) -> list[bytes] | None:
        """Bytes of text that each token stands for, none for a special one; None where tokens do not say."""
        ...

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """What to write under each token."""
        ...


def read_tokenizer(directory: str | Path) -> Tokenizer | None:
    """The tokenizer of a model directory: `tokenizer.json` (Hugging Face) or `vocabulary.json` (pieces with scores); None if it has neither.

    Raises
    ------
    DataError
        A file that is no tokenizer.
    """
    directory = Path(directory)
    if (directory / "tokenizer.json").is_file():
        return HuggingFaceTokenizer.read(directory)
    if (directory / "vocabulary.json").is_file():
        return ScoredPieces.read(directory / "vocabulary.json")
    return None


@dataclass(frozen=True)
class ScoredPieces:
    """Byte-pair encoding by scores, as llama2.c and SentencePiece do it: the best-scored pair of neighbours merges first, the left of equals.

    A text gets a blank in front. A character without a piece becomes the tokens of its bytes.

    Attributes
    ----------
    tokens : tuple of str
        Pieces in plain text, blanks as blanks; 0 to 2 stand for unknown, beginning and end, `<0x00>` to `<0xFF>` for bytes.
    scores : tuple of float

    Notes
    -----
    Claim: *exact* (the tokens of llama2.c's `encode`). Cost: O(n log n). Source: llama2.c, run.c; Sennrich et al. (2016), ACL.

    Examples
    --------
    >>> bytes_ = tuple(f"<0x{b:02X}>" for b in range(256))
    >>> pieces = ScoredPieces(("<unk>", "<s>", "</s>", *bytes_, " ", "a", "b", " a", "ab"), (*(0.0,) * 262, -1.0, -2.0))
    >>> tokens, ends = pieces.encode("ab!")  # " a" merges before "ab"
    >>> pieces.labels(tokens), ends, pieces.pieces([1, *tokens])
    ([' a', 'b', '!'], [1, 2, 3], [b'', b'a', b'b', b'!'])
    """

    tokens: tuple[str, ...]
    scores: tuple[float, ...]

    name = "byte-pair encoding by scores (vocabulary.json)"
    before = (1,)
    after = ()
    special = frozenset((0, 1, 2))

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.scores):
            raise DataError(
                f"ScoredPieces: {len(self.tokens)} tokens and {len(self.scores)} scores; one score belongs to each."
            )
        if len(set(self.tokens)) < len(self.tokens):
            raise DataError("ScoredPieces: a piece stands twice, so its token is ambiguous; give every piece once.")
        missing = [b for b in range(256) if f"<0x{b:02X}>" not in self._numbers]
        if missing or " " not in self._numbers:
            what = f"<0x{missing[0]:02X}>" if missing else "the blank"
            raise DataError(
                f"ScoredPieces: {what} has no token; without all bytes and the blank not every text has one."
            )

    @classmethod
    def read(cls, path: Path) -> "ScoredPieces":
        """From JSON: {"tokens": [...], "scores": [...]}."""
        value = _json(path)
        tokens, scores = (value.get(name) for name in ("tokens", "scores")) if isinstance(value, dict) else (None, None)
        if not isinstance(tokens, list) or not isinstance(scores, list):
            raise DataError(f'{path}: expected {{"tokens": [...], "scores": [...]}}.')
        if not all(isinstance(t, str) for t in tokens) or not all(type(s) in (int, float) for s in scores):
            raise DataError(f"{path}: tokens must be texts and scores numbers.")
        return cls(tuple(tokens), tuple(float(s) for s in scores))

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {piece: token for token, piece in enumerate(self.tokens)}

    @cached_property
    def _mergeable(self) -> dict[str, int]:
        return {t: i for t, i in self._numbers.items() if i > 2 and not _BYTE.fullmatch(t)}

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """See :class:`Tokenizer`."""
        if not text:
            return [], []
        symbols, sizes = [self._numbers[" "]], [0]
        for character in text:
            encoded, known = character.encode(), self._mergeable.get(character)
            parts = [known] if known is not None else [self._numbers[f"<0x{b:02X}>"] for b in encoded]
            symbols += parts
            sizes += [len(encoded)] if known is not None else [1] * len(encoded)
        kept = self._merged(symbols, sizes)
        ends, total = [], 0
        for position in kept:
            total += sizes[position]
            ends.append(total)
        return [symbols[position] for position in kept], ends

    def _merged(self, symbols: list[int], sizes: list[int]) -> list[int]:
        """Merge in place; positions that are left. A heap of pairs, stale ones skipped, in place of a search at every step."""
        n = len(symbols)
        left, right, alive = list(range(-1, n - 1)), list(range(1, n + 1)), [True] * n
        heap: list[tuple[float, int, int, int, int]] = []

        def consider(i: int) -> None:
            if i >= 0 and (j := right[i]) < n:
                found = self._mergeable.get(self.tokens[symbols[i]] + self.tokens[symbols[j]])
                if found is not None:
                    heapq.heappush(heap, (-self.scores[found], i, symbols[i], symbols[j], found))

        for i in range(n):
            consider(i)
        while heap:
            _, i, first, second, found = heapq.heappop(heap)
            j = right[i]
            if not alive[i] or symbols[i] != first or j >= n or symbols[j] != second:
                continue
            symbols[i], sizes[i], alive[j], right[i] = found, sizes[i] + sizes[j], False, right[j]
            if right[j] < n:
                left[right[j]] = i
            consider(left[i])
            consider(i)
        return [i for i in range(n) if alive[i]]

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        """See :class:`Tokenizer`; the blank in front of a text, after its beginning, stands for nothing."""
        found, fresh = [], False
        for token in tokens:
            piece = self._bytes(token)
            found.append(piece[1:] if fresh and piece.startswith(b" ") else piece)
            fresh = token <= 2
        return found

    def _bytes(self, token: int) -> bytes:
        if token <= 2:
            return b""
        raw = _BYTE.fullmatch(self.tokens[token])
        return bytes.fromhex(raw.group(1)) if raw else self.tokens[token].encode()

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """See :class:`Tokenizer`."""
        return [shown(self.tokens[t].strip() if t <= 2 else self._bytes(t)) for t in tokens]


@dataclass(frozen=True, eq=False)
class HuggingFaceTokenizer:
    """A `tokenizer.json`, run by the `tokenizers` library; its own truncation and padding are switched off.

    Attributes
    ----------
    name : str
    backend : tokenizers.Tokenizer
    before, after : tuple of int
    special : frozenset of int
    scheme : {"bytes", "pieces", ""}
        How tokens are text: bytes written as letters, pieces with a mark for blanks, or unknown (then byte counts are unknown too).
    strips : bool
        The first token's blank is put there by the tokenizer.
    """

    name: str
    backend: Any
    before: tuple[int, ...]
    after: tuple[int, ...]
    special: frozenset[int]
    scheme: str
    strips: bool

    @classmethod
    def read(cls, directory: Path) -> "HuggingFaceTokenizer":
        """From `tokenizer.json`, and the habit that `tokenizer_config.json` states."""
        try:
            import tokenizers
        except ImportError:
            raise ArgumentError(
                f"{directory}: reading tokenizer.json needs the tokenizers library; pip install 'oplens[hf]', or give tokens."
            ) from None
        path = directory / "tokenizer.json"
        value = _json(path)
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise DataError(f"{path}: no tokenizer ({str(error)[:200]}).") from None
        backend.no_truncation()
        backend.no_padding()
        special = frozenset(t for t, added in backend.get_added_tokens_decoder().items() if added.special)
        before, after = _around(backend)
        config = _json(directory / "tokenizer_config.json") if (directory / "tokenizer_config.json").is_file() else {}
        before = _stated_beginning(backend, config, before)
        parts = _parts(value.get("decoder") if isinstance(value, dict) else None)
        kind = type(backend.model).__name__
        return cls(f"{kind} (tokenizer.json)", backend, before, after, special, _scheme(parts), _strips(parts))

    @property
    def size(self) -> int:
        """One more than the largest token."""
        return 1 + max(map(int, self.backend.get_vocab(with_added_tokens=True).values()))

    def encode(self, text: str) -> tuple[list[int], list[int]]:
        """See :class:`Tokenizer`."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        # Spans may overlap (bytes of one character), leave gaps (blanks dropped) or be empty, (0, 0), for tokens put in: what counts is how
        # far they reach. What lies behind the last one, such as a dropped blank, is text that it ends.
        reached, ends = 0, []
        sizes = [0]
        for character in text:
            sizes.append(sizes[-1] + len(character.encode()))
        for _, end in encoding.offsets:
            reached = max(reached, end)
            ends.append(sizes[reached])
        return list(encoding.ids), [*ends[:-1], sizes[-1]] if ends else []

    def pieces(self, tokens: Sequence[int]) -> list[bytes] | None:
        """See :class:`Tokenizer`."""
        if not self.scheme:
            return None
        found, fresh = [], False
        for token in tokens:
            piece = self._bytes(token)
            if piece is None:
                return None
            found.append(piece[1:] if fresh and self.strips and piece.startswith(b" ") else piece)
            fresh = token in self.special
        return found

    def _bytes(self, token: int) -> bytes | None:
        text = self.backend.id_to_token(int(token))
        if text is None or (self.scheme == "pieces" and text == getattr(self.backend.model, "unk_token", None)):
            return None  # what an unknown piece stood for is lost
        if token in self.special:
            return b""
        if token in self._added:
            return bytes(text.encode())
        if self.scheme == "bytes":
            letters = [_LETTERS.get(c) for c in text]
            return None if None in letters else bytes(b for b in letters if b is not None)
        raw = _BYTE.fullmatch(text)
        return bytes.fromhex(raw.group(1)) if raw else text.replace("▁", " ").encode()

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self.backend.get_added_tokens_decoder())

    def labels(self, tokens: Sequence[int]) -> list[str]:
        """See :class:`Tokenizer`."""
        found = []
        for token in tokens:
            text = self.backend.id_to_token(int(token))
            piece = None if token in self.special or not self.scheme else self._bytes(token)
            found.append(shown(piece if piece is not None else f"[{token}]" if text is None else text))
        return found


def shown(piece: str | bytes) -> str:
    r"""A token as a label: line ends and tabs as they are, other control characters spelt out, bytes that are no text as such.

    Examples
    --------
    >>> shown(b" a\n"), shown(b"\xe2\0"), shown("<s>")
    (' a\n', '\\xe2\\x00', '<s>')
    """
    text = piece.decode("utf-8", "backslashreplace") if isinstance(piece, bytes) else piece
    return "".join(c if c.isprintable() or c in "\n\t\r\u00a0" else ascii(c)[1:-1] for c in text)


def _letters() -> dict[str, int]:
    """Letters that stand for bytes in byte-level vocabularies: printable bytes for themselves, the others from U+0100 on (GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(plain)]
    return {**{chr(b): b for b in plain}, **{chr(0x100 + i): b for i, b in enumerate(others)}}


_LETTERS = _letters()


def _around(backend: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Special tokens in front of and behind a text."""
    encoding = backend.encode("a", add_special_tokens=True)
    inner = [i for i, mark in enumerate(encoding.special_tokens_mask) if not mark]
    if not inner:
        return (), ()
    return tuple(encoding.ids[: inner[0]]), tuple(encoding.ids[inner[-1] + 1 :])


def _stated_beginning(backend: Any, config: Any, before: tuple[int, ...]) -> tuple[int, ...]:
    """`add_bos_token` of tokenizer_config.json overrules what tokenizer.json puts in front, as it does in transformers."""
    if not isinstance(config, dict) or not isinstance(config.get("add_bos_token"), bool):
        return before
    named = config.get("bos_token")
    named = named.get("content") if isinstance(named, dict) else named
    bos = backend.token_to_id(named) if isinstance(named, str) else None
    if bos is None:
        return before
    rest = tuple(t for t in before if t != bos)
    return (bos, *rest) if config["add_bos_token"] else rest


def _parts(decoder: Any) -> list[dict[str, Any]]:
    """A decoder, or those that it is a sequence of."""
    if not isinstance(decoder, dict):
        return []
    inner = decoder.get("decoders")
    return [decoder] if not isinstance(inner, list) else [part for one in inner for part in _parts(one)]


def _scheme(parts: list[dict[str, Any]]) -> str:
    """How tokens are text, as their decoder has it."""
    if any(part.get("type") == "ByteLevel" for part in parts):
        return "bytes"
    marks = [
        p
        for p in parts
        if p.get("type") == "Replace" and p.get("pattern") == {"String": "▁"} and p.get("content") == " "
    ]
    return "pieces" if marks or any(part.get("type") == "Metaspace" for part in parts) else ""


def _strips(parts: list[dict[str, Any]]) -> bool:
    """Whether decoding takes away a blank in front, which encoding has put there."""
    return any(
        part.get("type") == "Strip"
        or (part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never")
        for part in parts
    )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({str(error)[:200]}).") from None
