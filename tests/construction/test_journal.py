"""A long verification, interrupted anywhere, ends with the counts of one that was not."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from oplens.construction import FunctionTable, build_bits, journal, verification, verify


@pytest.fixture
def at_once(monkeypatch):
    """Every batch is written, and there are many."""
    monkeypatch.setattr(journal, "AFTER", 0.0)
    monkeypatch.setattr(journal, "EVERY", 0.0)
    monkeypatch.setattr(verification, "_VALUES_AT_ONCE", 2**12)


def broken(length=8):
    """A model with some wrong outputs, so that counts are more than zeros."""
    table = FunctionTable.from_family("parity", 2, length)
    model, _ = build_bits(table)
    with torch.no_grad():
        model.block(3).feedforward.down.weight[:, [3, 77, 200]] += torch.tensor([0.25, 1.0, 0.5], dtype=torch.float64)
    return model, table


def interrupted(model, table, path, at, **options):
    def progress(done, total):
        if done >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(model, table, ["float64", "float32"], resume=path, progress=progress, **options)


@pytest.mark.parametrize("at", [1, 300, 700])
def test_counts_are_those_of_one_run(at, at_once, tmp_path):
    model, table = broken()
    full: list[int] = []
    whole = verify(model, table, ["float64", "float32"], progress=lambda done, total: full.append(done))
    assert [check.errors for check in whole.checks] == [3] * 4
    path, seen = tmp_path / "folder" / "kept.json", []
    interrupted(model, table, path, at)
    kept = sum(item["inputs"] for item in json.loads(path.read_text())["passes"].values())
    assert at <= kept < 1024
    again = verify(model, table, ["float64", "float32"], resume=path, progress=lambda done, total: seen.append(done))
    assert again == whole
    assert seen[-1] == 1024
    assert len(seen) <= len(full) - at // 20 + 4, "what was done is not done again, but told once per pass"


def test_another_model_or_option_starts_anew(at_once, tmp_path):
    model, table = broken()
    interrupted(model, table, tmp_path / "kept.json", 700)
    good, _ = build_bits(table)
    assert verify(good, table, ["float64", "float32"], resume=tmp_path / "kept.json").errors == 0
    interrupted(model, table, tmp_path / "kept.json", 700)
    other = verify(model, table, ["float64", "float32"], resume=tmp_path / "kept.json", shuffles=2)
    assert other == verify(model, table, ["float64", "float32"], shuffles=2)
    negated = dataclasses.replace(table, values=1 - table.values)
    interrupted(model, table, tmp_path / "kept.json", 700)
    assert (
        verify(model, negated, resume=tmp_path / "kept.json").checks[0].errors == 256 - 1
    )  # 77 has parity 0, told as 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"key": 1}', "null", '{"key": "x", "passes": 3}'])
def test_a_damaged_file_is_not_used(content, tmp_path):
    (tmp_path / "kept.json").write_text(content)
    table = FunctionTable.from_family("parity", 2, 4)
    assert verify(build_bits(table)[0], table, resume=tmp_path / "kept.json").errors == 0


def test_what_takes_less_than_a_minute_leaves_no_file(tmp_path):
    model, table = broken()
    interrupted(model, table, tmp_path / "kept.json", 600)
    assert list(tmp_path.iterdir()) == []


def test_keys_tell_single_weights_apart():
    table = FunctionTable.from_family("parity", 2, 3)
    for dtype in ("float64", "bfloat16"):
        model, _ = build_bits(table, dtype)
        key = journal.verification_key(model, table, ())
        assert key == journal.verification_key(build_bits(table, dtype)[0], table, ())
        with torch.no_grad():
            model.block(0).feedforward.up.weight[0, 0] += 2.0**-6
        assert key != journal.verification_key(model, table, ())
    values = np.array(table.values)
    values[5] += 1e-9
    assert journal.verification_key(model, table, ()) != journal.verification_key(
        model, dataclasses.replace(table, values=values, labels=None), ()
    )
