"""Texts cut into cases of tokens."""

from collections.abc import Sequence

import numpy as np

from oplens.data.texts import Tokenizer
from oplens.data.tokens import LONGEST_BY_DEFAULT, Integers, Tokens, check_range, checked_window, padded, usable
from oplens.errors import ArgumentError, DataError


def text_tokens(
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    window: int | None = None,
    max_length: int | None = None,
    vocabulary: int | None = None,
    name: str = "text",
    source: str = "text",
) -> Tokens:
    """Texts as :class:`Tokens`: each is tokenised whole and cut into windows, the tokenizer's own special tokens around every window.

    Windows do not overlap, so the first tokens of a window have little before them: perplexity is that of short contexts. Where the
    tokenizer puts no token in front, the first token of each window is not predicted.

    Parameters
    ----------
    texts : sequence of str
    window : int, optional
        Most tokens of a case, special ones included; default min(`max_length`, 512).

    Raises
    ------
    DataError
        Empty texts, tokens outside the vocabulary.
    """
    call = f"text of {source}"
    size = checked_window(window, max_length) or min(max_length or LONGEST_BY_DEFAULT, LONGEST_BY_DEFAULT)
    before, after = list(tokenizer.before), list(tokenizer.after)
    inner = size - len(before) - len(after)
    if inner < 1:
        raise ArgumentError(
            f"{call}(window={size}): the tokenizer puts {size - inner} tokens around a text; windows must be longer."
        )
    cases: list[Integers] = []
    n_bytes: list[int] = []
    left_out = 0
    for text in texts:
        ids, ends = tokenizer.encode(text)
        starts = [0, *ends]
        for start in range(0, len(ids), inner):
            stop = min(start + inner, len(ids))
            if stop - start < 2 and not before:
                left_out += 1
                continue
            cases.append(np.array([*before, *ids[start:stop], *after], dtype=np.int64))
            n_bytes.append(ends[stop - 1] - starts[start if before else start + 1])
    if not cases:
        raise DataError(f"{call}: the text has no tokens to measure; give at least a sentence.")
    check_range(call, cases, vocabulary)
    whole = len(cases) == len(texts) and not left_out
    notes = [
        (
            f"{'Every text' if len(texts) > 1 else 'The text'} is one case of at most {size} tokens; "
            if whole
            else f"The text is cut into {len(cases)} windows of at most {size} tokens that do not overlap; "
        )
        + ("a special token stands in front of each." if before else "the first token of each is not predicted.")
    ]
    if left_out:
        notes.append(f"{left_out} pieces of a single token are left out: they predict nothing.")
    padded_ids, lengths = padded(cases)
    place = np.arange(padded_ids.shape[1])
    text_mask = (place >= len(before)) & (place < lengths[:, None] - len(after))
    counted, note = usable(lengths, text_mask, n_bytes)
    extra = {"texts": len(texts), "window": size}
    return Tokens(padded_ids, lengths, counted, tokenizer, name, source, (*notes, *note), extra, text_mask)
