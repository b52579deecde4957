"""Figures of constructions draw the numbers of their groups."""

import numpy as np
import pytest
import torch

from oplens.construction import FunctionTable, build_bits, build_lookup, build_piecewise_linear, verify
from oplens.construction.drawing import draw_real, draw_table
from oplens.construction.formulas import formula
from oplens.construction.real_functions import sup_error
from oplens.errors import ArgumentError
from oplens.figures.construction import answer_terms, attention_by_layer, construction_flow
from oplens.figures.construction_proof import (
    construction_margins,
    error_parts,
    error_surface,
    function_section,
    layer_weights,
)
from oplens.figures.style import AWAY, NEUTRAL, TOWARD


def table_tree(build=build_lookup, spoil=None, symbols=None, first=(1, 0, 1, 1, 0, 1)):
    length = len(first)
    table = FunctionTable.from_family("parity", 2, length)
    table = FunctionTable(2, length, table.values, symbols=symbols)
    model, certificate = build(table)
    found = verify(model, table, shuffles=0)
    if spoil is not None:
        with torch.no_grad():
            spoil(model)
    return draw_table(model, table, [(certificate, found)], [first, [0] * length])


@pytest.fixture(scope="module")
def lookup():
    return table_tree()


@pytest.fixture(scope="module")
def reals():
    f = formula("sin(3*x1)*x2")
    model, certificate = build_piecewise_linear(f, 2, 4, ("l1", 4.0))
    return draw_real(model, f, certificate, sup_error(model, f, points=300))


def groups(tree, *names):
    return [tree[f"construction_{name}"].to_dataset() for name in names]


def flow(tree, case=0):
    return construction_flow(*groups(tree, "states", "maps", "terms"), case)


def cells(figure):
    """Text by (row of boxes from the top, position), without the breaks."""
    labels = next(trace for trace in figure.data if trace.mode == "text")
    rows = {y: k for k, y in enumerate(figure.layout.yaxis.tickvals)}
    return {
        (rows[y], x): (words.replace("<br>", ""), colour)
        for x, y, words, colour in zip(labels.x, labels.y, labels.text, labels.textfont.color, strict=True)
    }


def test_strings_grow_down_the_rows_and_boxes_are_what_the_answer_uses(lookup):
    figure = flow(lookup)
    found = cells(figure)
    assert [found[0, i][0] for i in range(6)] == list("101101")
    assert (found[1, 5][0], found[2, 5][0], found[3, 5][0], found[2, 2][0]) == ("01", "101", "101101", "101")
    boxes = [((s.x0 + s.x1) / 2, (s.y0 + s.y1) / 2, s.line.color) for s in figure.layout.shapes]
    rows = list(figure.layout.yaxis.tickvals)
    drawn = {(rows.index(y), round(x)) for x, y, _ in boxes}
    assert drawn == {*((0, i) for i in range(6)), (1, 1), (1, 2), (1, 4), (1, 5), (2, 2), (2, 5), (3, 5), (4, 5)}
    assert {colour for _, _, colour in boxes} == {AWAY}
    assert found[1, 0][1] == NEUTRAL, "held but not used"
    assert list(figure.layout.yaxis.ticktext) == ["input", "layer 1", "layer 2", "layer 3", "answer"]
    assert [note.text for note in figure.layout.annotations] == ["<b>0</b>", "function: 0 ✓"]


def test_lines_lead_to_where_it_was_looked_up(lookup):
    figure = flow(lookup)
    lines = next(trace for trace in figure.data if trace.mode == "lines")
    rows, pairs = list(figure.layout.yaxis.tickvals), set()
    for k in range(0, len(lines.x), 3):
        above = max(r for r, y in enumerate(rows) if y < lines.y[k])
        pairs.add((above, int(lines.x[k]), int(lines.x[k + 1])))
        assert lines.y[k] < lines.y[k + 1]
    assert pairs == {
        *((0, j, i) for i in (1, 2, 4, 5) for j in (i - 1, i)),
        *((1, j, i) for i in (2, 5) for j in (i - 1, i)),
        *((2, j, 5) for j in (2, 5)),
        (3, 5, 5),
    }


def test_what_is_wrong_is_orange_and_the_answer_is_held_against_the_function():
    def spoil(model):
        model.block(1).attention.output.weight.zero_()

    figure = flow(table_tree(build_bits, spoil, first=(0, 0, 1, 1, 0, 1)))
    found = cells(figure)
    assert found[2, 5] == ("001", TOWARD), "the third symbol from the end was never fetched"
    assert found[1, 5][1] != TOWARD
    boxes = {(s.x0, s.y0): s.line.color for s in figure.layout.shapes}
    assert set(boxes.values()) == {AWAY, TOWARD}
    assert figure.layout.annotations[1].text == "function: 1 ✗"
    assert figure.layout.annotations[1].font.color == TOWARD
    assert figure.layout.shapes[-1].line.color == TOWARD


def test_an_answer_near_the_function_is_not_called_it(reals):
    terms = reals["construction_terms"].to_dataset()
    answer, wanted = (float(terms[name].sel(case=0).squeeze()) for name in ("answer", "wanted"))
    assert 1e-3 < abs(answer - wanted) < float(reals["construction/error_bound"]), (
        "the case is one with an error to show"
    )
    shown = flow(reals).layout.annotations[1].text
    assert shown.startswith("function: ")
    assert shown.endswith(", within the bound ✓")


def test_what_should_be_there_and_cannot_be_read_is_a_question_mark():
    def spoil(model):
        model.block(1).feedforward.down.weight.zero_()

    found = cells(flow(table_tree(build_lookup, spoil)))
    assert found[2, 5] == ("???", TOWARD)


def test_a_case_is_chosen_and_others_are_refused(lookup):
    assert cells(flow(lookup, 1))[3, 5][0] == "000000"
    for case in (2, -1, True):
        with pytest.raises(ArgumentError, match=r"construction_flow\(case=.*holds inputs 0 to 1"):
            flow(lookup, case)


def test_names_are_shown_letter_by_letter():
    figure = flow(table_tree(symbols=("<i>", "b")))
    assert cells(figure)[0, 0][0] == "b"
    assert cells(figure)[0, 1][0] == "&lt;i&gt;"
    maps = attention_by_layer(*groups(table_tree(symbols=("<i>", "b")), "maps", "states"))
    assert {"&lt;i&gt;", "b"} == set(maps.layout.xaxis.ticktext) == set(maps.layout.yaxis.ticktext)
    assert not any("<i>" in words for trace in maps.data for row in trace.customdata for words in row)


def test_every_layer_that_attends_is_a_map(lookup):
    figure = attention_by_layer(*groups(lookup, "maps", "states"))
    weight = lookup["construction_maps"].weight.values[0]
    assert len(figure.data) == 3
    for layer, trace in enumerate(figure.data):
        np.testing.assert_array_equal(trace.z, weight[layer, 0])
    assert [note.text for note in figure.layout.annotations] == ["layer 1", "layer 2", "layer 3"]
    assert "used by the answer" in figure.data[0].customdata[5][4]
    assert "used by the answer" not in figure.data[0].customdata[0][4]
    domains = [figure.layout[f"xaxis{k}"].domain for k in ("", "2", "3")]
    assert domains[0][1] < domains[1][0]
    assert domains[0] == domains[2]
    (bits,) = (attention_by_layer(*groups(table_tree(build_bits), "maps", "states")),)
    assert len(bits.data) == 3, "the last layer of bits has no attention"


def test_terms_add_up_to_the_answer(reals):
    (terms,) = groups(reals, "terms")
    for case in range(3):
        figure = answer_terms(terms, case)
        values = figure.data[0].x
        assert values[:-1].sum() == pytest.approx(values[-1], abs=1e-6)
        assert values[-1] == pytest.approx(float(terms.answer[case, 0]), abs=1e-6)
        assert figure.layout.yaxis.ticktext[0] == "constant"
        assert figure.layout.yaxis.ticktext[1] == str(terms.member.values[case, 0])
        colours = figure.data[0].marker.color
        assert [c == TOWARD for c in colours[1:-1]] == [v > 0 for v in values[1:-1]]
    many = terms.assign(n_terms=terms.n_terms + 5, rest=terms.rest + 0.25)
    assert answer_terms(many).layout.yaxis.ticktext[-2] == "5 smaller terms"
    assert answer_terms(many).data[0].x[-2] == 0.25


def test_margins_are_bars_with_their_needs(lookup):
    (margins,) = groups(lookup, "margins")
    figure = construction_margins(margins)
    np.testing.assert_allclose(figure.data[0].x, margins.delivered, rtol=1e-6)
    np.testing.assert_allclose(figure.data[1].x, margins.required, rtol=1e-6)
    assert set(figure.data[0].marker.color) == {AWAY}
    worse = margins.assign(delivered=("rank", [50.0, 1.0, -np.inf, 50.0]))
    assert list(construction_margins(worse).data[0].marker.color) == [AWAY, TOWARD, TOWARD, AWAY]
    assert construction_margins(worse).data[0].x[2] == 0
    assert construction_margins(worse).data[0].text[2].startswith("−∞, ")


def test_sizes_are_drawn_by_layer(lookup):
    ds = lookup["construction"].to_dataset()
    figure = layer_weights(ds)
    for trace, name in zip(figure.data, ("hidden_units", "nonzeros", "places"), strict=True):
        np.testing.assert_array_equal(trace.x, ds[name])


def test_error_parts_end_with_bound_and_error(reals):
    ds, (checks,) = reals["construction"].to_dataset(), groups(reals, "checks")
    figure = error_parts(ds, checks)
    np.testing.assert_allclose(figure.data[0].x[:-2], ds.error_part, rtol=1e-6)
    np.testing.assert_allclose(
        figure.data[0].x[-2:], [float(ds.error_bound), float(checks.largest_error[0])], rtol=1e-6
    )
    assert list(figure.layout.yaxis.ticktext[-2:]) == ["certified bound", "largest error found"]


def test_a_line_shows_both_values_and_the_error_under_the_bound(reals):
    (slices,) = groups(reals, "slices")
    figure = function_section(slices, 0.5, 1)
    wanted, answer, error, mark = figure.data
    np.testing.assert_allclose(wanted.y, slices.wanted[1], rtol=1e-6)
    np.testing.assert_allclose(answer.y, slices.answer[1], rtol=1e-6)
    np.testing.assert_allclose(error.y, slices.error[1], atol=1e-8)
    assert (error.yaxis, mark.yaxis) == ("y2", "y2")
    assert mark.y[0] == pytest.approx(float(slices.largest_error), rel=1e-6)
    assert (figure.layout.shapes[0].y0, figure.layout.shapes[0].yref) == (0.5, "y2")
    with pytest.raises(ArgumentError, match="holds lines 0 to 1"):
        function_section(slices, 0.5, 2)


def test_the_map_of_errors_has_x1_across_and_the_worst_point_circled(reals):
    (surface,) = groups(reals, "surface")
    figure = error_surface(surface, 0.5)
    np.testing.assert_allclose(figure.data[0].z, surface.error.values.T, atol=1e-8)
    assert (figure.data[0].zmin, figure.data[0].zmax) == (0, 0.5)
    point = surface.attrs["point"]
    assert (figure.data[1].x[0], figure.data[1].y[0]) == (point[0], point[1])
    assert "x3" not in figure.layout.xaxis.title.text
    more = surface.assign_attrs(point=np.array([0.5, 0.5, 0.125]))
    assert "x3 = 0.125" in error_surface(more, 0.5).layout.xaxis.title.text
