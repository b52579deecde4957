"""Every bound as a statement: its table, its text, what it refuses, and the page that lists it."""

import ast
import dataclasses
import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest

from oplens.errors import ArgumentError
from oplens.theory import BOUNDS, Bound, score_gap
from oplens.theory.statement import CLAIMS

ROOT = Path(__file__).parents[2]

EXAMPLES = {
    "sup_parameters": {"length": 10, "bits": 8},
    "mean_parameters": {"length": 10, "bits": 8, "error": 0.1},
    "sparse_parameters": {"length": 10, "bits": 8, "parameters": 1000},
    "real_parameters": {"length": 10, "operations_per_parameter": 2},
    "representable_fraction": {"length": 10, "bits": 8, "parameters": 20, "error": 0.1},
    "vc_dimension": {"parameters": 10, "operations": 100},
    "packing": {"length": 5, "lipschitz": 1.0, "error": 0.1, "bits": 8},
    "packing_mean": {"length": 5, "lipschitz": 1.0, "error": 0.1, "bits": 8},
    "error_floor": {"length": 5, "lipschitz": 1.0, "parameters_per_layer": 1000, "depth": 3, "bits": 8},
    "crm_interval": {"log2_tasks": 256.0, "bits": 8, "found": 1000, "fraction": 0.1},
    "meta_approximation": {"length": 4, "vocabulary": 2, "tasks": 5, "values": 3},
    "one_pass_memory": {"table": [0, 1, 1, 0], "vocabulary": 2},
    "lookup_size": {"length": 4, "vocabulary": 2, "frequencies": 4, "outputs": 1},
    "linear_pieces": {"widths": [3, 2]},
    "sawtooth_width": {"folds": 10, "depth": 2},
    "depth_width": {
        "budget": 1e6,
        "depth_coefficient": 1.0,
        "depth_power": 0.5,
        "width_coefficient": 1.0,
        "width_power": 1.0,
    },
    "depth_width_exponential": {
        "budget": 1e9,
        "depth_coefficient": 0.8,
        "depth_rate": 0.15,
        "width_coefficient": 1.0,
        "width_power": 1.0,
    },
    "perturbation": {
        "error": 0.1,
        "noise": 0.01,
        "jacobian_norm": 3.0,
        "curvature": 1.0,
        "parameters": 10,
        "lipschitz": 2.0,
    },
    "first_order": {"noise": 0.1, "singular_values": [1.0, 0.5]},
    "layerwise_spectral": {"norms": [1.0, 2.0], "noises": [0.1, 0.1], "input_norm": 1.0},
    "layerwise_gaussian": {"norms": [1.0, 2.0], "shapes": [(3, 2), (1, 3)], "noise": 0.1, "input_norm": 1.0},
    "attention_stability": {
        "radius": 1.0,
        "value_norm": 1.0,
        "score_norm": 1.0,
        "value_noise": 0.1,
        "score_noise": 0.1,
    },
    "layer_composition": {"lipschitz": [1.0, 2.0], "deviations": [0.1, 0.1]},
    "performer_features": {"query_key_norm": 1.0, "features": 16, "error": 0.1, "confidence": 0.9},
    "barron": {"constant": 1.0, "radius": 1.0, "units": 4},
    "barron_units": {"constant": 1.0, "radius": 1.0, "error": 0.1},
    "barron_gaussian": {"length": 3, "scale": 1.0},
    "barron_cosines": {"amplitudes": [1.0, -1.0], "frequencies": [1.0, 2.0]},
    "polynomial_span": {"length": 3, "degree": 2, "depth": 2},
    "fourier_rate": {"length": 2, "lipschitz": 1.0, "degree": 6},
    "piecewise_linear_rate": {"length": 2, "lipschitz": 1.0, "cells": 6},
    "sample_complexity": {"error": 0.1, "failure": 0.1, "bits": 100},
    "vc_sample_complexity": {"error": 0.1, "failure": 0.1, "vc_dimension": 10},
    "generalisation_gap": {"samples": 1000, "failure": 0.1, "bits": 100},
    "sampled_maximum": {"samples": 100, "failure": 0.1},
    "random_labels": {"samples": 100, "bits": 8, "parameters": 5, "error": 0.1},
}


@pytest.mark.parametrize("name", BOUNDS)
def test_every_bound_says_all_of_itself(name):
    bound = BOUNDS[name](**EXAMPLES[name])
    assert isinstance(bound, Bound)
    assert bound.name == name
    assert bound.hypotheses
    assert bound.statement
    assert bound.source
    assert bound.claim in ("bound", "exact")
    names = [q.name for q in bound.quantities]
    assert len(set(names)) == len(names)
    text = str(bound)
    for q in bound.quantities:
        assert q.claim in CLAIMS
        assert q.units
        assert math.isfinite(q.value)
        assert type(q.value) in (int, float)
        assert bound[q.name] == q.value
        assert f"{q.name} = " in text
        assert q.long_name in text
    for part in (bound.statement, bound.source, *bound.hypotheses):
        assert part in text
    if bound.stated is not None:
        assert bound.stated.name in text
        assert bound.stated.verdict in text
        assert all(math.isfinite(value) for _, value in bound.stated.values)
    with pytest.raises(dataclasses.FrozenInstanceError):
        bound.name = "other"
    with pytest.raises(KeyError, match="it has"):
        bound["no_such_number"]


def test_the_table_holds_every_bound_once_and_under_its_own_name():
    assert list(EXAMPLES) == list(BOUNDS)
    assert all(function.__name__ == name for name, function in BOUNDS.items())
    for name, function in BOUNDS.items():
        assert set(EXAMPLES[name]) <= set(inspect.signature(function).parameters)
        for word in ("Parameters\n", "Returns\n", "Accuracy:", "Cost:", ">>> "):
            assert word in function.__doc__, (name, word)


def wrong_values(name, argument, value):
    if argument == "table":
        return [[], [0, 1, 1], [0.0, math.nan], [0] * 6, [[0, 1], [1, 0]], np.eye(2), 3, None, {}, True]
    if isinstance(value, list):
        longer = [*value, *value] if argument != "widths" and name != "first_order" else [0, -1]
        return [[], 3, None, longer, [math.nan] * len(value), ["x"] * len(value)]
    if isinstance(value, int):
        return [-1, 2.5, True, "3", None, math.inf]
    return [math.nan, math.inf, -1.0, "x", True, 10**400] + [None] * (name != "perturbation")


@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name, example in EXAMPLES.items() for argument in example]
)
def test_every_argument_outside_the_hypotheses_is_refused_with_a_sentence(name, argument):
    for bad in wrong_values(name, argument, EXAMPLES[name][argument]):
        with pytest.raises(ArgumentError) as caught:
            BOUNDS[name](**{**EXAMPLES[name], argument: bad})
        message = str(caught.value)
        assert message.startswith(name)
        assert message.endswith(".")
        assert len(message) > 40
        assert argument in message or argument == "table" or isinstance(bad, list)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("sup_parameters", {"length": 1001}, "between 1 and 1000"),
        ("mean_parameters", {"error": 0.5}, "the constant 1/2 has 1/2"),
        ("sparse_parameters", {"parameters": 127}, r"fewer than 2\^10.*At least 128"),
        ("random_labels", {"error": 0.5}, "one of two constants"),
        ("packing", {"error": 0.5}, "the constant 0 serves the whole class"),
        ("packing", {"length": 1000}, r"exceeds 2\^1000"),
        ("packing_mean", {"error": 0.3536}, "half of all signs"),
        ("error_floor", {"depth": 10**400}, "1329 binary digits.*at most 1e100"),
        ("lookup_size", {"frequencies": 1001}, "between 1 and 1000"),
        ("depth_width", {"depth_power": 1e-3, "width_power": 1e-3, "width_coefficient": 1e9}, "beyond float64"),
        ("depth_width_exponential", {"depth_rate": 1e-9}, "a million layers"),
        ("layerwise_spectral", {"norms": [1e60] * 6, "noises": [1.0] * 6}, "output_norm is beyond float64"),
        ("layerwise_spectral", {"input_norm": 1e61}, "0 and 1e\\+60 in size; change the units"),
        ("barron", {"radius": 1e-61}, "1e-60 and 1e\\+60 in size"),
        ("crm_interval", {"found": 31}, "32 is the least"),
        ("crm_interval", {"fraction": 1.0}, "below 1"),
        ("meta_approximation", {"length": 1001}, r"exceeds 2\^1000"),
        ("one_pass_memory", {"table": [0, 1, 1]}, r"3 values, which is not 2\^n"),
        ("one_pass_memory", {"table": [0, np.float32("nan")]}, "NaN"),
        ("lookup_size", {"length": 1}, "between 2 and"),
        ("linear_pieces", {"widths": [2**300] * 4}, r"2\^1000 pieces"),
        ("linear_pieces", {"widths": [2, 0]}, r"widths\[1\]"),
        ("depth_width_exponential", {"budget": 1e-3}, "no minimum"),
        (
            "depth_width_exponential",
            {
                "budget": 10.0,
                "depth_coefficient": 0.3,
                "depth_rate": 0.05,
                "width_coefficient": 0.3,
                "width_power": 0.5,
            },
            "one layer is better",
        ),
        ("layerwise_spectral", {"noises": [0.1]}, "has 1 numbers where 2 are expected"),
        ("layerwise_gaussian", {"shapes": [(3, 2)]}, "has 1 numbers where 2 are expected"),
        ("layerwise_gaussian", {"shapes": [(3, 2, 1), (1, 3)]}, "has 3 numbers where 2 are expected"),
        ("performer_features", {"query_key_norm": 18.0}, "below 18"),
        ("barron_units", {"error": 1e-60, "constant": 1e60, "radius": 1e60}, "no finite number of units"),
        ("polynomial_span", {"degree": 1025, "depth": 1}, "degree 1024"),
        ("polynomial_span", {"length": 10**6, "degree": 1000, "depth": 1}, r"2\^1000"),
        ("fourier_rate", {"norm": "l3"}, "'l1', 'l2' or 'max'"),
        ("sampled_maximum", {"failure": 1e-61}, "1e-60"),
        ("sample_complexity", {"realisable": "False"}, "realisable must be True or False"),
        ("sample_complexity", {"realisable": 1}, "realisable must be True or False"),
        ("layerwise_spectral", {"residual": "no"}, "residual must be True or False"),
        ("layerwise_gaussian", {"residual": None}, "residual must be True or False"),
    ],
)
def test_limits_are_refused_with_their_reason(name, change, reason):
    with pytest.raises(ArgumentError, match=reason):
        BOUNDS[name](**{**EXAMPLES[name], **change})


EXTREMES = {
    int: (10**18, 10**100, 2**1000, 10**400),
    float: (1e300, 1e154, 1e60, 1e30, 1e-30, 1e-60, 1e-160, 1e-300, 5e-324),
}


@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name, example in EXAMPLES.items() for argument in example]
)
def test_huge_and_tiny_arguments_give_numbers_or_a_sentence(name, argument):
    given = EXAMPLES[name][argument]
    listed = isinstance(given, list) and isinstance(given[0], float)
    for extreme in EXTREMES[float] if listed else EXTREMES.get(type(given), ()):
        try:
            bound = BOUNDS[name](**{**EXAMPLES[name], argument: [extreme] * len(given) if listed else extreme})
        except ArgumentError as refusal:
            told = str(refusal)
        else:
            assert all(isinstance(q.value, int) or math.isfinite(q.value) for q in bound.quantities)
            told = str(bound)
        assert told.startswith(name)
        assert len(told) < 3000


@pytest.mark.parametrize("residual", [False, True])
def test_a_layerwise_statement_is_the_formula_that_is_computed(residual):
    """What is printed, evaluated: with residual connections 1 is added to every norm."""
    for name, changes in (("layerwise_spectral", {}), ("layerwise_gaussian", {})):
        bound = BOUNDS[name](**{**EXAMPLES[name], **changes, "residual": residual})
        printed = bound.statement.split(" <= norm(x) ")[1].split(", e_l")[0]
        s, sides = [1.0, 2.0], [(3, 2), (1, 3)]
        e = [0.1, 0.1] if name == "layerwise_spectral" else [0.1 * (m**0.5 + n**0.5) for m, n in sides]
        both = printed.replace("prod_l (s_l + e_l)", "moved").replace("prod_l (1 + s_l + e_l)", "moved")
        both = both.replace("prod_l (1 + s_l)", "still").replace("prod_l s_l", "still")
        one = int("prod_l (1 + s_l)" in printed)
        assert both.strip("()") == "moved - still"
        expected = math.prod(one + a + b for a, b in zip(s, e, strict=True)) - math.prod(one + a for a in s)
        assert bound.value == pytest.approx(expected, rel=1e-12)
        assert any("x_{l-1} + phi" in text for text in bound.hypotheses) == residual


def test_numpy_numbers_and_arrays_are_taken():
    plain = BOUNDS["packing"](**EXAMPLES["packing"])
    given = BOUNDS["packing"](length=np.int64(5), lipschitz=np.float64(1), error=np.float64(0.1), bits=np.int32(8))
    assert given == plain
    assert BOUNDS["first_order"](0.1, np.array([1.0, 0.5])) == BOUNDS["first_order"](0.1, [1.0, 0.5])
    assert BOUNDS["linear_pieces"](np.array([3, 2])).value == 12


def test_score_gap_refuses_what_has_no_gap():
    with pytest.raises(ArgumentError, match="score_gap"):
        score_gap(4, 1)
    with pytest.raises(ArgumentError, match="score_gap"):
        score_gap(0, 5)


DEFINITION = re.compile(r'^\[([^\]]+)\]: (\S+) "([^"]+)"$', re.MULTILINE)


def test_the_page_lists_every_bound_and_its_links_name_tests_that_exist():
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(BOUNDS)
    definitions = {label: (target, test) for label, target, test in DEFINITION.findall(text)}
    used = set(re.findall(r"\]\[([^\]]+)\]", text))
    assert used == set(definitions)
    for target, test in definitions.values():
        tree = ast.parse((ROOT / "docs" / target).resolve().read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 6, row
        name = cells[0].strip("`")
        assert "][" in cells[1], name
        bound = BOUNDS[name](**EXAMPLES[name])
        assert cells[3] == bound.claim, name
