"""Constructions B and C: exact in four dtypes, as encoders and decoders, with dense and sparse weights."""

import numpy as np
import pytest

from oplens.construction import FunctionTable, build_bits, build_depth2
from table_models import DTYPES, outputs


def halving(length):
    """Layers of B and how many of them attend: one per halving, and the look-up."""
    attending = int(np.ceil(np.log2(length)))
    return attending + 1, attending


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("vocabulary", "length"), [(2, 1), (6, 1), (2, 2), (3, 3), (5, 3), (4, 4), (2, 6), (2, 7), (2, 9)]
)
@pytest.mark.parametrize(
    ("name", "build", "layers"),
    [("bits", build_bits, halving), ("depth2", build_depth2, lambda length: (2, 1) if length > 1 else (1, 0))],
)
def test_every_input_gets_its_value_to_the_last_bit(name, build, layers, vocabulary, length, dtype):
    values = np.random.default_rng(length).integers(-9, 10, (vocabulary**length, 2)) / 4
    table = FunctionTable(vocabulary, length, values)
    for causal, weights in ((False, "dense"), (True, "sparse")):
        model, certificate = build(table, dtype, causal=causal, weights=weights)
        assert model.config.causal is causal
        assert model.config.weights == weights
        np.testing.assert_array_equal(outputs(model, table), values)
        assert (certificate.construction, certificate.claim, certificate.dtype) == (name, "exact", dtype)
        assert (certificate.depth, certificate.attention_layers) == layers(length)
        assert certificate.margin.met if length > 1 else certificate.margin is None
        assert (certificate.temperature is None) == (name == "depth2" or length == 1)
