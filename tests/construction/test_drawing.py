"""Drawn constructions: what positions hold is what a plain reading of the input says, and a broken weight is seen."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from oplens.construction import (
    FunctionTable,
    Verification,
    build_bits,
    build_depth2,
    build_fourier,
    build_lookup,
    build_piecewise_linear,
    verify,
)
from oplens.construction.drawing import draw_real, draw_table
from oplens.construction.formulas import formula
from oplens.construction.layouts import Sizes, read_holdings
from oplens.construction.real_functions import MeasuredError, evaluate, sup_error
from oplens.construction.steps import walk
from oplens.errors import ArgumentError
from oplens.results import read_results, validate, write_results

BUILDERS = {"lookup": build_lookup, "bits": build_bits, "depth2": build_depth2}
ABS = formula("abs(x1 - x2)")


def drawn(kind, table, examples=None, spoil=None, **options):
    model, certificate = BUILDERS[kind](table, **options)
    if spoil is not None:
        with torch.no_grad():
            spoil(model)
    return model, draw_table(model, table, [(certificate, verify(model, table, shuffles=0))], examples)


def real(build, f, size, lipschitz=("l1", 1.0), bounds=(0.0, 1.0), spoil=None, **options):
    model, certificate = build(f, f.n, size, lipschitz, bounds, **options)
    if spoil is not None:
        with torch.no_grad():
            spoil(model)
    found = sup_error(model, f, bounds, points=200)
    return model, certificate, found, draw_real(model, f, certificate, found, bounds, "f")


def states(tree):
    return tree["construction_states"].to_dataset()


def stretch(widths, n):
    """(layers, n, n): which input positions the last w symbols are; those that begin before the input are nothing."""
    found = np.zeros((len(widths), n, n), dtype=bool)
    for layer, width in enumerate(widths):
        for i in range(n):
            for j in range(n):
                found[layer, i, j] = i - width < j <= i and i + 1 >= width
    return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["lookup", "bits"])
@pytest.mark.parametrize(
    ("vocabulary", "length", "widths"), [(2, 6, [1, 2, 3, 6]), (3, 4, [1, 2, 4]), (2, 7, [1, 2, 4, 7])]
)
def test_halving_doubles_what_a_position_holds(vocabulary, length, widths, kind, causal):
    table = FunctionTable.from_family("majority", vocabulary, length)
    inputs = np.random.default_rng(0).integers(0, vocabulary, (3, length))
    _, tree = drawn(kind, table, inputs, causal=causal)
    ds = states(tree)
    whole = stretch([*widths, widths[-1]][: ds.sizes["layer"]], length)
    assert int(ds.wrong.sum()) == 0
    for case, x in enumerate(inputs):
        known = ds.known.values[case]
        for layer in range(len(widths) - (kind == "lookup")):
            rows = [i for i in range(length) if i + 1 >= widths[layer]]
            np.testing.assert_array_equal(~np.isnan(known[layer, rows]), whole[layer, rows])
        held = ~np.isnan(known)
        np.testing.assert_array_equal(known[held], np.broadcast_to(x, known.shape)[held])
        assert known[-1, -1].tolist() == x.tolist(), "the last position knows the whole input"


def test_the_answer_is_made_of_a_tree_of_positions():
    _, tree = drawn("lookup", FunctionTable.from_family("parity", 2, 6), [[1, 0, 1, 1, 0, 1]])
    used = states(tree).used.values[0]
    assert [np.flatnonzero(row).tolist() for row in used] == [[0, 1, 2, 3, 4, 5], [1, 2, 4, 5], [2, 5], [5]]


def test_two_layers_fill_slots_and_gather_them():
    inputs = np.array([[2, 0, 1, 1], [0, 0, 0, 0]])
    _, tree = drawn("depth2", FunctionTable.from_family("palindrome", 3, 4), inputs)
    ds = states(tree)
    for case, x in enumerate(inputs):
        for layer in (0, 1):
            np.testing.assert_array_equal(ds.known.values[case, layer], np.where(np.eye(4, dtype=bool), x, np.nan))
        np.testing.assert_array_equal(ds.known.values[case, 2], np.tile(x, (4, 1)))
        assert ds.used.values[case].tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]]
    assert int(ds.wrong.sum()) == 0


@pytest.mark.parametrize("build", [build_fourier, build_piecewise_linear])
def test_reals_are_gathered_at_every_position(build):
    bounds = (-1.0, 3.0)
    _model, _certificate, found, tree = real(build, ABS, 3, bounds=bounds)
    ds = states(tree)
    x = np.array([[float(value) for value in row] for row in ds.text.values])
    np.testing.assert_allclose(x[0], found.point, atol=1e-3)
    for case in range(ds.sizes["case"]):
        given = ds.known.values[case, 0].diagonal()
        np.testing.assert_allclose(given, x[case], atol=1e-3)
        np.testing.assert_allclose(
            ds.known.values[case, 2:], np.broadcast_to(given, ds.known.values[case, 2:].shape), atol=1e-12
        )
        assert np.isnan(ds.known.values[case, 1, [0, 1], [1, 0]]).all()
    assert int(ds.wrong.sum()) == 0
    assert 0 < ds.attrs["tolerance"] < 1e-11


def test_maps_and_firing_units_are_those_of_the_models_own_trace():
    table = FunctionTable.from_family("modular-sum", 3, 5)
    model, tree = drawn("bits", table, [[2, 1, 0, 0, 2]])
    trace = model.trace(torch.tensor([[2, 1, 0, 0, 2]]))
    weight, firing = tree["construction_maps"].weight.values[0], states(tree).firing.values[0]
    assert weight.shape == (4, 1, 5, 5)
    for layer, block in enumerate(trace.layers):
        if block.weights is None:
            assert np.isnan(weight[layer]).all()
        else:
            np.testing.assert_allclose(weight[layer], block.weights[0].detach(), rtol=1e-6)
        assert firing[layer + 1].tolist() == (block.activations[0] > 0).sum(-1).tolist()
    assert firing[0].tolist() == [0] * 5
    assert firing[-1, -1] == 1


def shut_second_fetch(model):
    model.block(1).attention.output.weight.zero_()


def turn_second_query(model):
    model.block(1).attention.query.weight.copy_(model.block(2).attention.query.weight)


def swap_symbols(model):
    model.embedding.token.weight.copy_(model.embedding.token.weight.flip(0))


@pytest.mark.parametrize("kind", ["lookup", "bits"])
@pytest.mark.parametrize(("spoil", "first"), [(shut_second_fetch, 2), (turn_second_query, 2), (swap_symbols, 0)])
def test_a_broken_weight_is_seen_in_the_layer_where_it_breaks(kind, spoil, first):
    """In the picture alone: the last position, which the answer is read from, holds something else than its input."""
    _, tree = drawn(kind, FunctionTable.from_family("parity", 2, 6), [[1, 0, 1, 1, 1, 1]], spoil)
    ds = states(tree)
    wrong = ds.wrong.values[0].any(-1)
    assert np.flatnonzero(wrong.any(-1))[0] == first
    assert wrong[first, -1]
    assert not wrong[:first].any()


def test_a_leak_between_slots_and_a_missing_one_are_seen():
    def leak(model):
        model.block(0).feedforward.down.weight[:, :2] = 1.0  # whatever position 1 has goes everywhere

    table = FunctionTable.from_family("palindrome", 2, 4)
    ds = states(drawn("depth2", table, [[1, 0, 0, 1]], leak)[1])
    assert ds.wrong.values[0, 1].any()
    assert not ds.wrong.values[0, 0].any()

    def shut(model):
        model.block(1).attention.value.weight[0].zero_()  # the slot of position 1

    ds = states(drawn("depth2", table, [[1, 0, 0, 1]], shut)[1])
    assert ds.wrong.values[0].nonzero()[0].tolist() == [2]
    assert ds.known.values[0, 2, -1].tolist() == [0, 0, 0, 1]


def test_a_wrong_gathering_of_reals_is_seen():
    def scale(model):
        model.block(1).attention.value.values.mul_(1.01)

    _, _, _, tree = real(build_piecewise_linear, ABS, 3, spoil=scale)
    wrong = states(tree).wrong.values
    assert not wrong[:, :2].any()
    assert wrong[:, 2:, -1].any()


@pytest.mark.parametrize("kind", ["lookup", "bits", "depth2"])
@pytest.mark.parametrize("length", [1, 4])
def test_the_answer_is_the_row_of_the_table_that_fires(kind, length):
    values = np.random.default_rng(1).normal(size=(3**length, 2))
    table = FunctionTable(3, length, values, symbols=("a", "b", "c"))
    inputs = np.array([[2] * length, [0] * length])
    _, tree = drawn(kind, table, inputs)
    ds = tree["construction_terms"].to_dataset()
    assert ds.n_terms.values.tolist() == [1, 1]
    assert ds.member.values[:, 0].tolist() == ["c" * length, "a" * length]
    np.testing.assert_allclose(ds.contribution.values[:, 0], values[[-1, 0]], rtol=1e-12)
    np.testing.assert_array_equal(ds.answer.values, values[[-1, 0]])
    np.testing.assert_array_equal(ds.wanted.values, values[[-1, 0]])
    assert not ds.constant.values.any()


def test_a_row_whose_value_is_0_is_named_too():
    _, tree = drawn("lookup", FunctionTable.from_family("parity", 2, 3), [[1, 1, 0]])
    ds = tree["construction_terms"].to_dataset()
    assert ds.member.values.tolist() == [["110"]]
    assert ds.contribution.values.tolist() == [[[0.0]]]


def test_hats_are_those_of_the_triangulation():
    M, f = 5, formula("sin(3*x1)*x2")
    _, _certificate, _, tree = real(build_piecewise_linear, f, M, ("l1", 4.0))
    ds = tree["construction_terms"].to_dataset()
    nodes = np.stack([axis.ravel() for axis in np.meshgrid(*[np.arange(M + 1)] * 2, indexing="ij")], 1) / M
    heights = f(nodes)
    centre = (heights.min() + heights.max()) / 2
    for case in range(3):
        x = states(tree).known.values[case, -1, -1]
        u = M * (x - nodes)
        hats = np.maximum(0, 1 - np.maximum(0, u.max(1)) + np.minimum(0, u.min(1)))
        expected = sorted(((heights - centre) * hats)[hats > 1e-12], key=abs, reverse=True)
        found = ds.contribution.values[case, : len(expected), 0]
        np.testing.assert_allclose(sorted(found, key=abs, reverse=True), expected, atol=1e-12)
        assert float(ds.constant[case, 0]) == pytest.approx(centre)
        best = np.argmax(np.abs((heights - centre) * hats))
        assert str(ds.member.values[case, 0]) == f"({nodes[best, 0]:.3g}, {nodes[best, 1]:.3g})"


def test_cosines_are_those_of_the_amplitudes_and_all_terms_sum_to_the_answer():
    f, step = formula("cos(pi*x1)*cos(pi*x2)"), 0.05
    _, _, _, tree = real(build_fourier, f, 4, ("l1", 4.0), step=step)
    ds = tree["construction_terms"].to_dataset()
    total = ds.contribution.sum("rank") + ds.rest + ds.constant
    np.testing.assert_allclose(total, ds.answer, atol=1e-13)
    # cos a cos b = (cos(a + b) + cos(a - b))/2, damped by the two means' factor alike.
    assert sorted(ds.member.values[0, :2].tolist()) == ["cos π(x1 + x2)", "cos π(x1 − x2)"]
    p = np.pi / 6
    rho = (5 * np.cos(p) + np.sin(p) / np.tan(p)) / 6
    for case in range(3):
        x = states(tree).known.values[case, -1, -1]
        by_name = dict(zip(ds.member.values[case], ds.contribution.values[case, :, 0], strict=True))
        for name, phase in (("cos π(x1 + x2)", x[0] + x[1]), ("cos π(x1 − x2)", x[0] - x[1])):
            assert by_name[name] == pytest.approx(rho**2 / 2 * np.cos(np.pi * phase), abs=step**2 / 8)


def test_sizes_margins_and_passes_are_those_of_certificate_and_verification(tmp_path):
    table = FunctionTable.from_family("parity", 2, 5)
    model, certificate = build_lookup(table, weights="sparse")
    dense = build_lookup(table, weights="dense")[1]
    verification = verify(model, table, ["float64", "float16"])
    tree = draw_table(model, table, [(certificate, verification)])
    write_results(tree, tmp_path / "results.nc")
    tree = read_results(tmp_path / "results.nc")
    ds = tree["construction"].to_dataset()
    embedding = 2  # one weight per symbol
    assert int(ds.nonzeros.sum()) == certificate.sparse - certificate.readout - embedding
    assert int(ds.places.sum()) == dense.dense - (1 + dense.width) - 2 * (dense.width - 8)
    assert ds.hidden_units.values.tolist() == list(certificate.hidden)
    assert json.loads(ds.attrs["certificate"]) == json.loads(json.dumps(certificate.to_dict()))
    margins = tree["construction_margins"].to_dataset()
    assert margins.delivered.values.tolist() == [margin.delivered for margin in certificate.margins]
    assert margins.required.values.tolist() == [margin.required for margin in certificate.margins]
    checks = tree["construction_checks"].to_dataset()
    assert list(zip(checks.dtype_of.values, checks.order_of.values, checks.inputs.values, strict=True)) == [
        (check.dtype, check.order, 32) for check in verification.checks
    ]
    assert checks.errors.attrs["claim"] == "exact"
    assert (
        "all 32 inputs run in float64, float16, each in 2 orders of summation; no output is wrong"
        in tree.attrs["headline"]
    )


def test_models_built_for_other_dtypes_add_their_margins_and_passes():
    table = FunctionTable.from_family("max", 2, 3)
    built = [(build_depth2(table, name), name) for name in ("float64", "float16")]
    pairs = [(certificate, verify(model, table, [name], shuffles=0)) for (model, certificate), name in built]
    tree = draw_table(built[0][0][0], table, pairs)
    assert tree["construction_margins"].dtype_of.values.tolist() == ["float64", "float16"]
    assert tree["construction_checks"].dtype_of.values.tolist() == ["float64", "float16"]


def test_wrong_inputs_are_drawn_first_and_the_headline_says_so():
    table = FunctionTable.from_family("parity", 2, 4)
    model, certificate = build_bits(table)
    with torch.no_grad():
        model.block(2).feedforward.down.weight[:, 6] += 1.0  # the unit of 0110
    found = verify(model, table, shuffles=0)
    tree = draw_table(model, table, [(certificate, found)])
    assert states(tree).why.values.tolist()[:2] == ["wrong answer", "drawn at random among the inputs of its value"]
    assert states(tree).text.values[0].tolist() == ["0", "1", "1", "0"]
    assert "all 16 inputs run in float64; 1 output is WRONG" in tree.attrs["headline"]
    terms = tree["construction_terms"].to_dataset()
    assert (float(terms.answer[0, 0]), float(terms.wanted[0, 0])) == (1.0, 0.0)


def test_a_sample_says_that_it_is_one():
    table = FunctionTable.from_family("parity", 2, 6)
    model, certificate = build_lookup(table)
    tree = draw_table(model, table, [(certificate, verify(model, table, budget=2000))])
    assert "of 64 inputs run" in tree.attrs["headline"]
    assert "all" not in tree.attrs["headline"]
    assert tree["construction_checks"].errors.attrs["claim"] == "measured"


@pytest.mark.parametrize("build", [build_fourier, build_piecewise_linear])
def test_lines_and_map_hold_the_error_through_the_worst_point(build):
    f = formula("abs(x1 - x2) + x3/2")
    model, certificate, found, tree = real(build, f, 3, ("l1", 1.0))
    validate(tree)
    lines, surface = tree["construction_slices"].to_dataset(), tree["construction_surface"].to_dataset()
    assert lines.sizes == {"rank": 3, "position": 241}
    for axis in range(3):
        points = np.tile(found.point, (241, 1))
        points[:, axis] = lines.place.values[axis]
        assert sorted(lines.place.values[axis]) == lines.place.values[axis].tolist()
        np.testing.assert_allclose(lines.answer.values[axis], evaluate(model, points), rtol=1e-12)
        np.testing.assert_allclose(lines.wanted.values[axis], f(points), rtol=1e-12)
        assert lines.error.values[axis].max() >= found.value - 1e-15
        assert lines.error.values[axis].max() <= certificate.error_bound
    assert str(lines.along.values[1]) == f"x2 at x1 = {found.point[0]:.3g}, x3 = {found.point[2]:.3g}"
    for i, j in ((0, 0), (3, 40), (48, 7)):
        x = np.array([[surface.position.values[i], surface.position_2.values[j], found.point[2]]])
        assert float(surface.error[i, j]) == pytest.approx(float(abs(evaluate(model, x) - f(x))[0]), abs=1e-15)


def test_one_variable_has_a_line_and_no_map():
    _, _, _, tree = real(build_piecewise_linear, formula("x1**2"), 3, ("l1", 2.0))
    assert "construction_surface" not in tree.children
    assert tree["construction_slices"].along.values.tolist() == ["x1"]
    validate(tree)


def test_half_precision_is_drawn_as_it_runs():
    table = FunctionTable.from_family("majority", 3, 4)
    _, tree = drawn("lookup", table, [[2, 0, 2, 1]], dtype="float16")
    assert int(states(tree).wrong.sum()) == 0
    assert states(tree).attrs["dtype"] == "float16"


def test_what_is_no_input_is_refused():
    table = FunctionTable.from_family("parity", 2, 3)
    with pytest.raises(ArgumentError, match="symbols are 0 to 1"):
        drawn("lookup", table, [[0, 1, 2]])
    with pytest.raises(ArgumentError, match=r"expected whole numbers \(count, 3\)"):
        drawn("lookup", table, [[0, 1]])
    model, certificate = build_piecewise_linear(ABS, 2, 2, ("l1", 1.0))
    found = MeasuredError(0.0, (0.5, 0.5), 1)
    for points in ([[0.5, 1.5]], [[0.5]]):
        with pytest.raises(ArgumentError, match="give points of 2 numbers from 0 to 1"):
            draw_real(model, ABS, certificate, found, examples=points)


def test_an_unknown_construction_is_refused():
    model, _ = build_lookup(FunctionTable.from_family("parity", 2, 3))
    steps = walk(model, torch.tensor([[0, 1, 1]]))
    with pytest.raises(ArgumentError, match=r"construction='magic'.*choose from lookup, bits"):
        read_holdings("magic", steps, Sizes(2, 3, 1, 4))


def test_examples_cover_the_values():
    table = FunctionTable.from_family("max", 4, 3)
    model, certificate = build_bits(table)
    unrun = Verification("exhaustive", "exact", "max", 64, 1, 1.0, 1, 0, verify(model, table, shuffles=0).checks)
    tree = draw_table(model, table, [(certificate, dataclasses.replace(unrun))])
    assert sorted(tree["construction_terms"].wanted.values.ravel().tolist()) == [0.0, 1.0, 2.0, 3.0]
