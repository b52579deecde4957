"""Configurations: sizes per layer, dictionaries, and what cannot work."""

import json

import numpy as np
import pytest

from oplens.errors import ArgumentError
from oplens.models.transformer_config import LayerShape, TransformerConfig
from oplens.operators.attention import BigBird, Linformer, Performer, Reformer, Softmax

BASE = {"d_output": 2, "vocabulary": 3}


def config(**changes):
    return TransformerConfig(**{**BASE, **changes})


def test_sizes_are_filled_in_layer_by_layer():
    assert config(d_model=24, n_layers=2, n_heads=3).layers == (LayerShape(3, 8, 8, 96),) * 2
    mixed = config(d_model=24, n_layers=3, n_heads=[2, 0, 4], d_value=(5, 1, 6), d_ffn=np.array([7, 8, 0]).tolist())
    assert mixed.layers == (LayerShape(2, 12, 5, 7), LayerShape(0, 1, 1, 8), LayerShape(4, 6, 6, 0))
    assert mixed.last_attention == 2
    assert config(n_layers=3, n_heads=(1, 1, 0)).last_attention == 1
    assert config(n_heads=0).last_attention == -1
    assert config(d_model=10, n_heads=3, d_head=4).layers[0] == LayerShape(3, 4, 4, 40)
    assert config(d_model=16, n_frequencies=3).d_token == 10
    assert config(d_model=16, n_frequencies=3, positions="added").d_token == 16


@pytest.mark.parametrize(
    "attention", [Softmax(), Performer(5, 2, False), Reformer(1, 2, 3), BigBird(5, 0, 2, 7, 3)], ids=lambda a: a.name
)
def test_a_dictionary_gives_the_configuration_back(attention):
    given = config(
        d_model=24, n_layers=3, n_heads=(2, 0, 4), d_ffn=(7, 8, 0), activation="relu", norm="none", skip=False, causal=True,
        attention=attention, positions="learned", max_length=9, readout="mean", bias=False, weights="sparse", dropout=0.1,
        frequency_base=100,
    )  # fmt: skip
    found = TransformerConfig.from_dict(json.loads(json.dumps(given.to_dict())))
    assert found == given
    assert hash(found) == hash(given)
    assert found.frequency_base == 100.0
    assert TransformerConfig.from_dict({"d_output": 2, "d_input": 3}) == TransformerConfig(2, d_input=3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: config(d_output=0), "d_output=0.*at least 1"),
        (lambda: config(d_model=2.0), "d_model=2.0.*expected an integer"),
        (lambda: config(n_layers=True), "expected an integer"),
        (lambda: config(n_layers=5000), "at most 4096"),
        (lambda: config(d_model=2**27), "at most"),
        (lambda: config(vocabulary=None), "give one of them"),
        (lambda: config(d_input=2), "vocabulary=3, d_input=2.*give one of them"),
        (lambda: config(d_model=30, n_heads=4), "no multiple of n_heads; give d_head too"),
        (lambda: config(n_heads=(1, 1, 1)), r"3 numbers for n_layers=2 layers"),
        (lambda: config(n_heads=-1), "n_heads=-1"),
        (lambda: config(n_heads="4"), "n_heads='4'.*expected an integer"),
        (lambda: config(d_head=(4, 0)), "d_head=0"),
        (lambda: config(d_ffn=(4, 2.5)), "d_ffn=2.5"),
        (lambda: config(n_heads=(1, 0), d_ffn=(4, 0)), "layer 1 has neither heads nor hidden units"),
        (lambda: config(activation="swish"), "choose one of relu, gelu"),
        (lambda: config(norm=None), "choose one of none, pre, post"),
        (lambda: config(positions="rotary"), "choose one of own, added, learned, none"),
        (lambda: config(readout="first"), "choose one of last, mean, position"),
        (lambda: config(weights="csr"), "choose one of dense, sparse"),
        (lambda: config(skip=1), "skip=1.*True or False"),
        (lambda: config(dropout=1.0), "at least 0 and below 1"),
        (lambda: config(dropout=float("nan")), "finite number"),
        (lambda: config(frequency_base=1.0), "must be above 1"),
        (lambda: config(frequency_base="many"), "finite number"),
        (lambda: config(d_model=8, n_heads=2), "positions take 8 coordinates and leave none"),
        (lambda: config(d_model=9, n_heads=3, positions="added"), "d_model is even"),
        (lambda: config(positions="learned"), "give max_length"),
        (lambda: config(tied=True), "tied weights need tokens"),
        (lambda: config(tied=True, d_output=3), "no positions of their own"),
        (lambda: TransformerConfig(3, d_input=3, positions="none", tied=True), "tied weights need tokens"),
        (lambda: config(attention="softmax"), r"an attention family such as Softmax\(\)"),
        (lambda: config(attention=Linformer(), causal=True), "mixes all positions"),
        (lambda: TransformerConfig.from_dict({**BASE, "layers": 2}), "unknown keys layers"),
        (lambda: TransformerConfig.from_dict({"vocabulary": 2}), "'d_output' is missing"),
        (lambda: TransformerConfig.from_dict({**BASE, "attention": {"family": "lstm"}}), "'lstm' is unknown"),
        (lambda: TransformerConfig.from_dict({**BASE, "attention": None}), "attention=None"),
        (lambda: TransformerConfig.from_dict({**BASE, "d_model": None}), "d_model=None"),
    ],
)
def test_what_cannot_work_is_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
