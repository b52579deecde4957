"""Tokens and texts as cases: what is read is what stands in the file, its bytes are counted once, anything else is refused with the cure."""

import io
import json
import pickle
import re

import numpy as np
import pytest

from oplens.data import token_files
from oplens.data.cut_texts import text_tokens
from oplens.data.texts import HuggingFaceTokenizer, ScoredPieces, read_tokenizer, shown
from oplens.data.token_files import read_tokens
from oplens.data.tokens import Tokens, as_tokens
from oplens.errors import ArgumentError, DataError

BYTES = tuple(f"<0x{b:02X}>" for b in range(256))
WORDS = (" ", "a", "b", "c", "é", "ab", "bc", " a", "abc", " ab", "ca", "aa", "  ")
SCORES = (-9.0, -9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -4.0, -3.0, -0.5, -2.0, -2.0, -8.0)


def pieces():
    return ScoredPieces(("<unk>", "<s>", "</s>", *BYTES, *WORDS), (*(0.0,) * 259, *SCORES))


def encoded_step_by_step(tokens, scores, text):
    """llama2.c's encode, as it is written there: look over all pairs, merge the best-scored, again until none is left."""
    numbers = {t: i for i, t in enumerate(tokens)}
    ids = [numbers[" "]]
    for c in text:
        ids += [numbers[c]] if c in numbers else [b + 3 for b in c.encode()]
    while True:
        best, best_id, best_at = -1e10, -1, -1
        for i in range(len(ids) - 1):
            found = numbers.get(tokens[ids[i]] + tokens[ids[i + 1]], -1)
            if found != -1 and scores[found] > best:
                best, best_id, best_at = scores[found], found, i
        if best_at == -1:
            return ids
        ids[best_at : best_at + 2] = [best_id]


def test_scored_pieces_merge_as_llama2_c_does_and_count_every_byte_once():
    tokenizer, rng = pieces(), np.random.default_rng(0)
    for _ in range(300):
        text = "".join(rng.choice(list("aabbc  é?\n"), rng.integers(1, 30)))
        ids, ends = tokenizer.encode(text)
        assert ids == encoded_step_by_step(tokenizer.tokens, tokenizer.scores, text), text
        found = tokenizer.pieces([1, *ids])
        assert b"".join(found).decode() == text
        assert np.cumsum([len(p) for p in found[1:]]).tolist() == ends, text


def test_scored_pieces_of_the_stories_agree_with_another_library(shared_data):
    library = pytest.importorskip("tokenizers")
    folder = shared_data / "models" / "stories260K"
    tokenizer = read_tokenizer(folder)
    marked = [t.replace(" ", "▁") for t in tokenizer.tokens]
    vocabulary = {t: i for i, t in enumerate(marked)}
    merges = []
    for i in sorted(range(259, len(marked)), key=lambda i: -tokenizer.scores[i]):
        splits = [(marked[i][:k], marked[i][k:]) for k in range(1, len(marked[i]))]
        merges += [s for s in splits if s[0] in vocabulary and s[1] in vocabulary]
    other = library.Tokenizer(library.models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>"))
    n = library.normalizers
    other.normalizer = n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")])
    rows = np.load(folder / "sampled_tokens.npy")[:40].tolist()
    stories = [b"".join(tokenizer.pieces(row)).decode("utf-8", "ignore") for row in rows]
    canonical = 0
    for row, story in zip(rows, [*stories, "Zoë's 3 cafés — naïve! 日本\n\n  ends"], strict=False):
        ids, ends = tokenizer.encode(story)
        assert ids == other.encode(story).ids, story
        assert ends[-1] == len(story.encode())
        canonical += ids[:100] == row[1:101]
    assert canonical > 20  # the model was trained on such tokens, so it samples them, mostly


def byte_level(folder, text, config=None):
    """A byte-level tokenizer with a token for the beginning, truncation and padding switched on as in published ones."""
    library = pytest.importorskip("tokenizers")
    backend = library.Tokenizer(library.models.BPE())
    backend.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([text], trainer)
    backend.post_processor = library.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.enable_truncation(4)
    backend.enable_padding(length=4, pad_id=1, pad_token="<pad>")
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return read_tokenizer(folder)


TEXT = "the cafés of the naïve – the 日本 of the\n\tcafés\0 <s>".replace("\0", "\x07")


def test_byte_level_tokenizers_give_back_every_byte_and_put_their_own_beginning_in_front(tmp_path):
    tokenizer = byte_level(tmp_path / "a", TEXT)
    assert (tokenizer.before, tokenizer.after) == ((0,), ())
    plain = TEXT.replace("<s>", "")
    ids, ends = tokenizer.encode(plain)
    assert b"".join(tokenizer.pieces(ids)) == plain.encode()  # cut at 4 tokens it would not be
    assert ends[-1] == len(plain.encode())
    assert tokenizer.pieces([0, *ids])[0] == b""
    assert tokenizer.pieces([10**6]) is None
    assert tokenizer.labels([0])[0] == "<s>"
    assert "".join(tokenizer.labels(ids)[:4]).startswith("the caf")


def test_tokenizer_config_overrules_the_beginning(tmp_path):
    without = byte_level(tmp_path / "a", TEXT, {"add_bos_token": False, "bos_token": "<s>"})
    again = byte_level(tmp_path / "b", TEXT, {"add_bos_token": True, "bos_token": {"content": "<s>"}})
    assert (without.before, again.before) == ((), (0,))


def word_pieces(folder):
    library = pytest.importorskip("tokenizers")
    words = ["[UNK]", "[CLS]", "[SEP]", "once", "upon", "a", "time", "##s", "."]
    backend = library.Tokenizer(library.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.add_special_tokens(words[:3])
    backend.normalizer = library.normalizers.BertNormalizer()
    backend.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    backend.decoder = library.decoders.WordPiece()
    around = library.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    backend.post_processor = around
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    return read_tokenizer(folder)


def test_word_pieces_say_no_bytes_of_tokens_but_texts_know_theirs(tmp_path):
    tokenizer = word_pieces(tmp_path)
    assert (tokenizer.before, tokenizer.after, tokenizer.size) == ((1,), (2,), 9)
    tokens = as_tokens([[1, 3, 4, 2]], tokenizer)
    assert tokens.n_bytes is None
    assert "bits per byte" in tokens.notes[0]
    assert tokens.labels(0) == ("[CLS]", "once", "upon", "[SEP]")
    cut = text_tokens(["Once  upon a times."], tokenizer, window=5)
    assert cut.ids.tolist() == [[1, 3, 4, 5, 2], [1, 6, 7, 8, 2]]
    assert cut.n_bytes.tolist() == [len("Once  upon a"), len(" times.")]
    assert cut.text_mask.tolist() == [[False, True, True, True, False]] * 2
    assert "2 predicted tokens are special" in cut.notes[-1]
    assert text_tokens(["Once upon a time. \n"], tokenizer).n_bytes.tolist() == [19]


def test_sentencepiece_like_tokenizers_drop_the_blank_they_add(tmp_path):
    library = pytest.importorskip("tokenizers")
    words = ["<unk>", "<s>", *BYTES, "▁", "▁a", "a", "b", "▁ab"]
    merges = [("▁", "a"), ("▁a", "b")]
    backend = library.Tokenizer(
        library.models.BPE({w: i for i, w in enumerate(words)}, merges, byte_fallback=True, unk_token="<unk>")
    )
    backend.add_special_tokens(["<s>"])
    n, d = library.normalizers, library.decoders
    backend.normalizer = n.Sequence([n.Prepend("▁"), n.Replace(" ", "▁")])
    backend.decoder = d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path)
    ids, ends = tokenizer.encode("ab aé")
    assert tokenizer.pieces([1, *ids]) == [b"", b"ab", b" a", b"\xc3", b"\xa9"]
    assert ends[-1] == len("ab aé".encode())
    assert as_tokens([[1, *ids]], tokenizer).n_bytes.tolist() == [6]
    assert as_tokens([ids], tokenizer).n_bytes.tolist() == [4]  # the first token is not predicted
    assert tokenizer.labels([1, *ids]) == ["<s>", " ab", " a", "\\xc3", "\\xa9"]
    assert tokenizer.pieces([1, 0]) is None  # nobody knows what an unknown piece stood for


@pytest.mark.parametrize(("scheme", "first"), [("always", b"ab"), ("first", b"ab"), ("never", b" ab")])
def test_marks_of_blanks_stand_for_bytes_unless_the_tokenizer_puts_them_there(tmp_path, scheme, first):
    library = pytest.importorskip("tokenizers")
    words = ["<unk>", "<s>", "▁", "a", "b", "▁a", "▁ab"]
    backend = library.Tokenizer(
        library.models.BPE({w: i for i, w in enumerate(words)}, [("▁", "a"), ("▁a", "b")], unk_token="<unk>")
    )
    backend.add_special_tokens(["<s>"])
    backend.pre_tokenizer = library.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = library.decoders.Metaspace(prepend_scheme=scheme)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer.pieces([1, 6, 5]) == [b"", first, b" a"]
    ids, ends = tokenizer.encode("ab ab" if scheme != "never" else " ab ab")
    assert ids == [6, 6]
    assert sum(map(len, tokenizer.pieces([1, *ids]))) == ends[-1]


@pytest.mark.parametrize("window", [2, 3, 5, 64])
@pytest.mark.parametrize("beginning", [True, False])
def test_windows_cover_the_text_once(tmp_path, window, beginning):
    tokenizer = byte_level(tmp_path, TEXT, {"add_bos_token": beginning, "bos_token": "<s>"})
    text = TEXT.replace("<s>", "") * 3
    ids, _ = tokenizer.encode(text)
    tokens = text_tokens([text], tokenizer, window=window)
    skip = int(beginning)
    rows = [row[skip:n].tolist() for row, n in zip(tokens.ids, tokens.lengths, strict=True)]
    joined = [t for row in rows for t in row]
    assert joined == ids[: len(joined)]
    assert len(ids) - len(joined) == (0 if beginning else len(ids) % window == 1)
    if beginning:
        assert int(tokens.n_bytes.sum()) == len(text.encode())
        assert (tokens.ids[:, 0] == 0).all()
    else:
        # Bytes of one character may lie in two windows; the whole character is its first token's.
        predicted = sum(len(p) for row in rows for p in tokenizer.pieces(row)[1:])
        assert abs(int(tokens.n_bytes.sum()) - predicted) <= 2 * len(rows)
    assert ("do not overlap" if tokens.n_cases > 1 else "The text is one case of") in tokens.notes[0]
    assert tokens.facts["tokens"] == int(tokens.lengths.sum())


def test_bytes_of_tokens_are_those_of_all_but_the_first():
    tokenizer = pieces()
    ids, _ = tokenizer.encode("abc é")
    tokens = as_tokens([[1, *ids], [*ids, 2]], tokenizer)
    whole, first = len("abc é".encode()), len(tokenizer.pieces(ids)[0])
    assert tokens.n_bytes.tolist() == [whole, whole + 1 - first]  # " abc é", the blank being the first token's
    assert tokens.text_mask.tolist() == [[False, *[True] * len(ids)], [True] * len(ids) + [False]]
    bare = as_tokens(
        [[1, *ids], [1, 259]], tokenizer
    )  # the blank that stands in front of a text, and nothing behind it
    assert bare.n_bytes is None
    assert "Case 1" in bare.notes[-1]


def test_special_tokens_are_no_text_wherever_they_stand():
    tokenizer = pieces()
    tokens = as_tokens([[1, 260, 2, 1, 261], [1, 1, 2], [260, 262]], tokenizer)
    assert tokens.n_bytes.tolist() == [2, 0, 1]
    assert tokens.text_mask.tolist() == [
        [False, True, False, False, True],
        [False] * 5,
        [True, True, False, False, False],
    ]
    assert tokens.notes == (
        "4 predicted tokens are special and stand for no text: they count in perplexity, not in bits per byte.",
    )
    batches = list(tokens.batches(2))
    assert [b.text_mask.tolist() for b in batches] == [tokens.text_mask[:2].tolist(), [[True, True]]]
    assert tokens.first(2).text_mask.tolist() == tokens.text_mask[:2].tolist()
    assert as_tokens([[1, 1, 2]], tokenizer).n_bytes is None
    assert as_tokens([[1, 5]]).text_mask is None


class Spans:
    """A backend whose tokens have these spans; one put in by a normaliser has none, (0, 0), and the last blanks are dropped."""

    ids = (7, 8, 9, 10)
    offsets = ((0, 2), (0, 0), (1, 3), (2, 3))

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        return self


def test_bytes_before_the_end_of_a_token_never_decrease_and_reach_the_end_of_the_text():
    tokenizer = HuggingFaceTokenizer("spans", Spans(), (), (), frozenset(), "", False)
    ids, ends = tokenizer.encode("éab \n")  # two bytes for the first character
    assert (ids, ends) == ([7, 8, 9, 10], [3, 3, 4, 6])
    tokens = text_tokens(["éab \n"], tokenizer, window=2)
    assert tokens.n_bytes is None  # the token put in covers no byte
    assert text_tokens(["éab \n"], tokenizer, window=4).n_bytes.tolist() == [3]


def test_batches_are_cut_to_their_longest_case():
    tokens = as_tokens([[1, 2, 3], [4], [5, 6, 7, 8], [9, 9]])
    found = [(b.ids.tolist(), b.mask.sum(1).tolist()) for b in tokens.batches(2)]
    assert found == [([[1, 2, 3], [4, 0, 0]], [3, 1]), ([[5, 6, 7, 8], [9, 9, 0, 0]], [4, 2])]
    few = tokens.first(2)
    assert few.ids.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert "first 2 of 4" in few.notes[0]
    assert tokens.first(9) is tokens


def saved(value):
    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()


def zipped(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


ROWS = [[1, 5, 3], [1, 7, 0]]
GOOD = {
    "rows.npy": (saved(np.array(ROWS, np.uint16)), {}, [[1, 5, 3], [1, 7, 0]]),
    "padded behind.npy": (saved(np.array(ROWS)), {"pad": 0}, [[1, 5, 3], [1, 7]]),
    "padded before.npy": (saved(np.array([[0, 1, 5], [2, 1, 7]])), {"pad": 0}, [[1, 5], [2, 1, 7]]),
    "padded as it begins.npy": (saved(np.array([[2, 5, 6, 2], [2, 7, 2, 2]])), {"pad": 2}, [[2, 5, 6], [2, 7]]),
    "data that looks padded.npy": (saved(np.array([[1, 0, 0], [1, 7, 0]])), {"pad": -1}, [[1, 0, 0], [1, 7, 0]]),
    "stream.npy": (saved(np.arange(7)), {"window": 3}, [[0, 1, 2], [3, 4, 5]]),
    "lengths.npz": (zipped(tokens=np.array(ROWS), lengths=np.array([3, 2])), {}, [[1, 5, 3], [1, 7]]),
    "mask.npz": (
        zipped(input_ids=np.array([[9, 1, 5], [2, 1, 9]]), attention_mask=[[0, 1, 1], [1, 1, 0]]),
        {},
        [[1, 5], [2, 1]],
    ),
    "rows.jsonl": (b"[1, 5, 3]\n\n[1, 7]\n", {}, [[1, 5, 3], [1, 7]]),
    "objects.jsonl": (b'{"input_ids": [1, 5], "text": 3}\n'.replace(b', "text": 3', b""), {}, [[1, 5]]),
    "rows.json": (b"\xef\xbb\xbf[[1, 5, 3], [1, 7]]", {}, [[1, 5, 3], [1, 7]]),
    "cut.json": (b"[[1, 5, 3, 8], [1, 7]]", {"window": 2}, [[1, 5], [3, 8], [1, 7]]),
}


@pytest.mark.parametrize("name", GOOD)
def test_files_of_tokens(tmp_path, name):
    content, options, expected = GOOD[name]
    (tmp_path / name).write_bytes(content)
    tokens = read_tokens(tmp_path / name, **options)
    assert [row[:n].tolist() for row, n in zip(tokens.ids, tokens.lengths, strict=True)] == expected
    assert tokens.source == name


def test_files_of_text(tmp_path):
    tokenizer = pieces()
    expected = [1, *tokenizer.encode("ab é\n")[0]]
    (tmp_path / "a.txt").write_bytes("\ufeffab é\n".encode())
    (tmp_path / "a.json").write_text('["ab é\\n"]')
    (tmp_path / "a.jsonl").write_text('{"text": "ab é\\n"}\n"b"', encoding="utf-8")
    for name in ("a.txt", "a.json", "a.jsonl"):
        tokens = read_tokens(tmp_path / name, tokenizer)
        assert tokens.ids[0, : tokens.lengths[0]].tolist() == expected, name
    assert tokens.n_cases == 2
    assert tokens.n_bytes.tolist() == [6, 1]
    assert tokens.notes[0] == "Every text is one case of at most 512 tokens; a special token stands in front of each."
    assert read_tokens(tmp_path / "a.txt", tokenizer).notes[0].startswith("The text is one case of at most 512 tokens;")
    with pytest.raises(DataError, match="is no file; give whole numbers"):
        read_tokens(tmp_path, tokenizer)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n"
BAD = {
    "absent.npy": (None, {}, "no such file"),
    "lfs.npy": (LFS, {}, "git lfs pull"),
    "lfs.txt": (LFS, {}, "git lfs pull"),
    "pickle.pkl": (pickle.dumps([1]), {}, "run code"),
    "model.pt": (b"PK\x03\x04", {}, "run code"),
    "table.csv": (b"1,2\n", {}, "not a kind of file"),
    "objects.npy": (saved(np.array([[1, 2], [3]], dtype=object)), {}, "one list a line"),
    "objects.npz": (zipped(tokens=np.array([[1, 2], [3]], dtype=object)), {}, "could run code"),
    "text in its place.npy": (b"1 2 3", {}, "numpy.save"),
    "cut.npy": (saved(np.array(ROWS))[:-5], {}, "damaged"),
    "text in its place.npz": (b"1 2 3", {}, "numpy.savez"),
    "cut.npz": (zipped(tokens=np.array(ROWS))[:-40], {}, "damaged"),
    "floats.npy": (saved(np.array(ROWS, float)), {}, "whole numbers"),
    "booleans.npy": (saved(np.array(ROWS, bool)), {}, "whole numbers"),
    "empty.npy": (saved(np.zeros((0, 4), int)), {}, "non-empty"),
    "three.npy": (saved(np.zeros((2, 3, 4), int)), {}, r"\(n_cases, length\)"),
    "negative.npy": (saved(np.array([[3, 4], [1, -100]])), {}, "case 1 holds -100"),
    "outside.npy": (saved(np.array([[3, 4], [1, 8]])), {"vocabulary": 8}, "case 1 holds 8, the vocabulary is 0 to 7"),
    "long.npy": (saved(np.array(ROWS)), {"max_length": 2, "pad": -1}, "window=2"),
    "padding unsaid behind.npy": (saved(np.array([[3, 4, 2, 2], [5, 2, 2, 2], [1, 1, 1, 3]])), {}, "pad=2"),
    "padding unsaid before.npy": (saved(np.array([[0, 0, 5, 6], [1, 4, 3, 5], [0, 8, 8, 9]])), {}, "begin with 0"),
    "nothing but padding.npy": (saved(np.array([[1, 4], [0, 0]])), {"pad": 0}, "case 1 is nothing but padding"),
    "no tokens.npz": (zipped(x=np.array(ROWS)), {}, "holds x"),
    "both.npz": (
        zipped(tokens=np.array(ROWS), mask=np.ones((2, 3)), lengths=np.array([3, 3])),
        {},
        "one of `mask` and `lengths`",
    ),
    "gap.npz": (zipped(tokens=np.array(ROWS), mask=np.array([[1, 1, 1], [1, 0, 1]])), {}, "mask of case 1"),
    "additive.npz": (zipped(tokens=np.array(ROWS), mask=np.array([[0, 0, 0], [0, 0, -1e9]])), {}, "0 and 1"),
    "lengths.npz": (zipped(tokens=np.array(ROWS), lengths=np.array([3, 4])), {}, "case 1 has length 4"),
    "how many.npz": (zipped(tokens=np.array(ROWS), lengths=np.array([3])), {}, "2 whole numbers"),
    "mixed.jsonl": (b'[1, 2]\n"a"\n', {}, "line 2: texts and tokens"),
    "broken.jsonl": (b"[1, 2]\n[1,\n", {}, "line 2: not JSON"),
    "floats.jsonl": (b"[1, 2.5]\n", {}, "line 1: expected a list of whole numbers"),
    "booleans.jsonl": (b"[1, true]\n", {}, "line 1: expected a list of whole numbers"),
    "huge.jsonl": (b"[1, 100000000000000000000]\n", {}, "beyond 2\\^63"),
    "empty case.json": (b"[[1], []]", {}, "case 1"),
    "no list.json": (b'{"a": 1}', {}, "list of cases"),
    "no keys.jsonl": (b'{"a": 1}', {}, "`text`"),
    "latin.txt": ("café".encode("latin-1"), {}, "byte 3 is 0xe9"),
    "utf-16.txt": ("café".encode("utf-16"), {}, "UTF-16"),
    "binary.txt": (b"a\0b", {}, "NUL"),
    "blank.txt": (b" \n", {}, "empty"),
    "no tokenizer.txt": (b"once", {}, "needs the model's tokenizer"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_cannot_be_used_are_refused_with_the_cure(tmp_path, name):
    content, options, words = BAD[name]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as raised:
        read_tokens(tmp_path / name, **options)
    assert name in str(raised.value)


def test_an_archive_that_would_fill_the_memory_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", tokens=np.zeros((1000, 1000), np.int64))
    assert (tmp_path / "bomb.npz").stat().st_size < 20_000
    monkeypatch.setattr(token_files, "LARGEST", 2**22)
    with pytest.raises(DataError, match=r"bomb\.npz: unpacks to 0\.00745 GiB, more than the 0\.00391 GiB"):
        read_tokens(tmp_path / "bomb.npz")
    monkeypatch.setattr(token_files, "LARGEST", 2**23)
    assert read_tokens(tmp_path / "bomb.npz").n_cases == 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [({"window": 1}, "at least 2"), ({"window": 9, "max_length": 8}, "at most 8"), ({"pad": -2}, "-1 where")],
)
def test_options_that_cannot_be(tmp_path, options, words):
    (tmp_path / "a.npy").write_bytes(saved(np.array(ROWS)))
    with pytest.raises(ArgumentError, match=words):
        read_tokens(tmp_path / "a.npy", **options)


def test_a_small_vocabulary_is_not_taken_for_padding(tmp_path):
    rows = np.random.default_rng(0).integers(0, 2, (40, 6))
    (tmp_path / "a.npy").write_bytes(saved(rows))
    assert (read_tokens(tmp_path / "a.npy").ids == rows).all()
    stories = np.array([[1, 4, 5], [1, 1, 6], [1, 7, 8]])  # an empty one begins twice
    (tmp_path / "b.npy").write_bytes(saved(stories))
    assert (read_tokens(tmp_path / "b.npy").ids == stories).all()


def test_windows_shorter_than_what_stands_around_a_text_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="2 tokens around"):
        text_tokens(["once"], word_pieces(tmp_path), window=2)
    with pytest.raises(DataError, match="another tokenizer"):
        text_tokens(["once"], word_pieces(tmp_path), vocabulary=3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": ["a"], "scores": [1, 2]}, "1 tokens and 2 scores"),
        ({"tokens": ["a", "a"], "scores": [1, 2]}, "twice"),
        ({"tokens": ["a", "b"], "scores": [1, 2]}, "<0x00> has no token"),
        ({"tokens": [1], "scores": [1]}, "must be texts"),
        ({"scores": [1]}, "expected"),
        ([], "expected"),
    ],
)
def test_vocabularies_that_are_none(tmp_path, change, words):
    (tmp_path / "vocabulary.json").write_text(json.dumps(change))
    with pytest.raises(DataError, match=words):
        read_tokenizer(tmp_path)


def test_tokenizers_that_are_none(tmp_path):
    assert read_tokenizer(tmp_path) is None
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="no tokenizer"):
        HuggingFaceTokenizer.read(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="JSON"):
        read_tokenizer(tmp_path)


def test_labels_can_be_written_into_a_result():
    assert shown(b"\x00\n") == "\\x00\n"
    assert shown(b"\xc3") == "\\xc3"
    assert not re.search("\0", shown("a\0"))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"ids": np.zeros((0, 2), np.int64)}, "non-empty"),
        ({"lengths": np.array([1])}, "2,"),
        ({"lengths": np.array([1, 3])}, "case 1 has length 3"),
        ({"ids": np.array([[1, 2], [-3, 0]])}, "case 1 holds -3"),
        ({"lengths": np.array([1, 1])}, "padding must be 0"),
        ({"n_bytes": np.array([1])}, "n_bytes"),
        ({"text_mask": np.array([True, False])}, "text_mask"),
    ],
)
def test_parts_that_do_not_fit(parts, words):
    good = {"ids": np.array([[1, 2], [3, 0]]), "lengths": np.array([2, 1])}
    Tokens(**good)
    with pytest.raises(DataError, match=words):
        Tokens(**good | parts)
