"""`oplens bound`: the numbers of the library, or one sentence."""

import pytest

from command_line import typed
from oplens.theory import BOUNDS


def run(monkeypatch, capsys, *words):
    return typed(monkeypatch, capsys, "bound", *words)


def test_every_bound_is_listed_with_what_it_says(monkeypatch, capsys):
    code, out, _ = run(monkeypatch, capsys)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(BOUNDS)
    assert all(len(line.split()) > 3 for line in out.splitlines())


@pytest.mark.parametrize(
    ("words", "bound"),
    [
        (["sup_parameters", "length=10", "bits=16"], lambda: BOUNDS["sup_parameters"](10, 16)),
        (["packing", "lipschitz=1", "length=2", "error=0.05", "bits=8"], lambda: BOUNDS["packing"](2, 1, 0.05, 8)),
        (["one_pass_memory", "table=[0, 1, 1, 0]", "vocabulary=2"], lambda: BOUNDS["one_pass_memory"]([0, 1, 1, 0], 2)),
    ],
)
def test_the_command_prints_what_the_library_says(words, bound, monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, *words)
    assert code == 0, err
    assert out == f"{bound()}\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["upper_parameters"], "unknown; choose from sup_parameters"),
        (["packing", "length=2"], "lipschitz, error, bits missing"),
        (["sup_parameters", "length=2", "width=3"], "'width=3' is none of its arguments"),
        (["sup_parameters", "length=2", "length=3", "bits=1"], "'length=3' is none of its arguments, each once"),
        (["sup_parameters", "length=ten", "bits=1"], "ten"),
        (["sup_parameters", "length=0", "bits=1"], "length"),
        (["packing", "length=2", "lipschitz=-1", "error=0.1", "bits=8"], "lipschitz"),
    ],
)
def test_what_is_no_bound_is_one_sentence(words, sentence, monkeypatch, capsys):
    code, out, err = run(monkeypatch, capsys, *words)
    assert (code, out) == (1, "")
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err
