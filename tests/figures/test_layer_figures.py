"""Figures of layers draw the numbers of the result: every head with its interval, means of layers, dimensions, likeness, predictivity."""

import json
import re

import numpy as np
import pytest

from oplens.errors import ArgumentError
from oplens.figures.layers import estimate, head_map, heads_by_layer, layer_means
from oplens.figures.neural import predictivity_by_layer
from oplens.figures.representations import dimensions_by_layer, layer_similarity
from synthetic_measurements import attention, neural, numbers, representations, similarity


def traces(figure):
    return json.loads(figure.to_json())["data"]


def read(words):
    """(layer, head), value and interval of a hover text."""
    layer, head, value, low, high = re.fullmatch(
        r"layer (\d+), head (\d+): <b>(\S+)</b>(?: positions)? \[(\S+), (\S+)\]", words
    ).groups()
    return (int(layer), int(head)), float(value), float(low), float(high)


def test_every_head_is_a_dot_at_its_value_with_its_interval_and_its_own_place():
    ds = attention(4, 6, missing=((2, 5),))
    *dots, _ = traces(heads_by_layer(ds, "distance", marked={(1, 2), (4, 0)}))
    seen = {}
    for trace in dots:
        error = trace["error_y"]
        rows = zip(
            *(numbers(v) for v in (trace["x"], trace["y"], error["arrayminus"], error["array"])),
            trace["customdata"],
            strict=True,
        )
        for x, y, below, above, words in rows:
            (layer, head), value, low, high = read(words)
            assert y == ds.distance.sel(layer=layer, head=head)
            assert value == pytest.approx(y, rel=6e-3)
            assert y - below == pytest.approx(float(ds.distance_low.sel(layer=layer, head=head)))
            assert y + above == pytest.approx(float(ds.distance_high.sel(layer=layer, head=head)))
            assert (low, high) == pytest.approx((y - below, y + above), rel=2e-2)
            seen[layer, head] = x - layer
    assert set(seen) == {(a, h) for a in range(1, 5) for h in range(6)} - {(2, 5)}
    for head in range(6):
        places = {round(x, 5) for (_, h), x in seen.items() if h == head}
        assert len(places) == 1
    assert len({round(x, 5) for x in seen.values()}) == 6
    assert max(map(abs, seen.values())) < 0.5


def test_marked_heads_alone_have_another_colour():
    ds = attention(3, 4)
    plain, chosen, _ = traces(heads_by_layer(ds, "stable_rank", marked={(2, 1), (3, 3)}))
    assert [read(words)[0] for words in chosen["customdata"]] == [(2, 1), (3, 3)]
    assert len(plain["customdata"]) == 10
    assert plain["marker"]["color"] != chosen["marker"]["color"]
    assert len(traces(heads_by_layer(ds, "stable_rank"))) == 2


def test_the_line_is_the_mean_of_the_heads_that_are_there():
    ds = attention(4, 6, missing=((2, 5), (3, 0)))
    mean = traces(heads_by_layer(ds, "entropy"))[-1]
    np.testing.assert_allclose(numbers(mean["y"]), np.nanmean(ds.entropy.values, axis=1))
    assert mean["customdata"][1].startswith("layer 2, mean of 5 heads: ")


def test_the_interval_of_a_mean_has_the_mean_half_width_and_covers_it_however_heads_are_related():
    ds = attention(3, 5, missing=((2, 1),))
    means = layer_means(ds, "distance")
    there = np.isfinite(ds.distance.values)
    for k in range(3):
        half = (ds.distance_high.values - ds.distance_low.values)[k][there[k]] / 2
        assert float(means["high"][k] - means["low"][k]) / 2 == pytest.approx(half.mean())
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    for covariance in (root @ root.T, np.eye(5), np.ones((5, 5))):
        spread = np.sqrt(np.full(5, 1 / 5) @ covariance @ np.full(5, 1 / 5))
        assert spread <= np.sqrt(np.diag(covariance)).mean() + 1e-12


def test_a_head_without_interval_leaves_its_layer_without_one_and_a_layer_without_heads_is_nothing():
    ds = attention(3, 3, missing=((2, 0), (2, 1), (2, 2)))
    ds["distance_low"][0, 1] = np.nan
    means = layer_means(ds, "distance")
    assert np.isnan(means["low"].values).tolist() == [True, True, False]
    assert np.isnan(means["mean"].values).tolist() == [False, True, False]
    assert numbers(traces(heads_by_layer(ds, "distance"))[-1]["x"]).tolist() == [1, 3]


def test_the_axis_holds_all_ends_and_the_reference_or_is_the_one_asked_for():
    ds = attention(3, 4)
    top = float(ds.distance_high.max())
    assert heads_by_layer(ds, "distance").layout.yaxis.range[1] == pytest.approx(1.06 * top)
    figure = heads_by_layer(ds, "distance", reference=(90.0, "uniform attention"))
    assert figure.layout.yaxis.range[1] > 90
    assert [note.text for note in figure.layout.annotations] == ["uniform attention: 90"]
    assert figure.layout.shapes[0].y0 == 90
    assert heads_by_layer(ds, "distance", highest=33.0).layout.yaxis.range[1] == 33
    assert heads_by_layer(ds, "normalised_entropy").layout.yaxis.range[1] == 1
    ds["first_mass"].values[:] = 0.01
    ds["first_mass_high"].values[:] = 0.02
    assert heads_by_layer(ds, "first_mass").layout.yaxis.range[1] == pytest.approx(0.0212)


def test_panels_share_margins_and_layers():
    ds = attention(24, 16)
    figures = [draw(ds, name) for draw in (heads_by_layer, head_map) for name in ("distance", "effective_rank")]
    assert (
        len({(f.layout.margin.l, f.layout.margin.r, tuple(f.layout.xaxis.range), f.layout.height) for f in figures})
        == 1
    )
    assert all(f.layout.yaxis.automargin is False for f in figures)
    assert len(figures[0].layout.xaxis.tickvals) <= 13


def test_the_map_has_heads_as_rows_and_layers_as_columns():
    ds = attention(3, 4, missing=((2, 3),))
    figure = head_map(ds, "distance", marked={(3, 1)}, highest=50.0)
    (trace,) = traces(figure)
    np.testing.assert_allclose(numbers(trace["z"]), ds.distance.values.T, rtol=1e-6)
    assert trace["zmax"] == 50
    assert trace["customdata"][3][1] == ""
    assert trace["text"][3][1] == ""
    assert read(trace["customdata"][1][2])[0] == (3, 1)
    (frame,) = figure.layout.shapes
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (2.5, 3.5, 0.5, 1.5)


def test_dimensions_are_those_of_every_layer_and_intervals_belong_to_the_likelihood():
    ds = representations(4)
    ds["participation_ratio_corrected"][2] = np.nan
    ds["mle"][1] = 0.0
    drawn = {trace["name"]: trace for trace in traces(dimensions_by_layer(ds))}
    names = {
        **{
            "effective rank": "effective_rank",
            "d_int of the paper": "d_int",
            "participation ratio": "participation_ratio_corrected",
        },
        **{"the same, not corrected": "participation_ratio", "MLE": "mle", "TwoNN": "two_nn_likelihood"},
    }
    assert set(drawn) == set(names)
    for words, name in names.items():
        expected = ds[name].where(ds[name] > 0).values
        np.testing.assert_allclose(numbers(drawn[words]["y"]).astype(float), expected)
    error = drawn["TwoNN"]["error_y"]
    np.testing.assert_allclose(numbers(drawn["TwoNN"]["y"]) + numbers(error["array"]), ds.two_nn_high)
    np.testing.assert_allclose(numbers(drawn["TwoNN"]["y"]) - numbers(error["arrayminus"]), ds.two_nn_low)
    assert numbers(drawn["MLE"]["error_y"]["array"])[2] == pytest.approx(0.1)
    assert drawn["TwoNN"]["customdata"][0].startswith("TwoNN, embedding: <b>3.00</b> [2.60, 3.40]")


def test_the_logarithmic_axis_holds_everything_with_round_numbers():
    figure = dimensions_by_layer(representations(4))
    low, high = figure.layout.yaxis.range
    drawn = np.concatenate([numbers(trace["y"]) for trace in traces(figure)])
    assert 10**low < drawn.min()
    assert drawn.max() < 10**high
    assert set(figure.layout.yaxis.ticktext) <= {"1", "2", "5", "10", "20", "50", "100", "200"}
    assert len(figure.layout.yaxis.tickvals) >= 3


def test_likeness_is_drawn_as_it_is_stored_and_negative_values_are_in_the_scale():
    ds = similarity(3)
    ds["cka_unbiased"][0, 3] = -0.02
    (trace,) = traces(layer_similarity(ds, "cka_unbiased"))
    np.testing.assert_allclose(numbers(trace["z"]), ds.cka_unbiased.values, rtol=1e-6)
    assert (trace["zmin"], trace["zmax"]) == (-0.02, 1.0)
    assert trace["customdata"][0][1] == f"embedding and layer 1: <b>{float(ds.cka_unbiased[0, 1]):.3f}</b>"
    assert traces(layer_similarity(ds, "cka"))[0]["zmin"] == 0


def test_predictivity_shows_neurons_means_ceiling_and_chance_and_fills_layers_above_it():
    ds = neural(4, 6)
    drawn = {trace["name"]: trace for trace in traces(predictivity_by_layer(ds))}
    assert numbers(drawn["mean noise ceiling"]["y"]) == pytest.approx(float(ds.noise_ceiling.mean()))
    np.testing.assert_allclose(numbers(drawn["one neuron"]["y"]), ds.predictivity.values.ravel())
    np.testing.assert_allclose(numbers(drawn["permuted responses"]["y"]), ds.null_mean)
    mean = drawn["mean (filled: p < 0.05)"]
    np.testing.assert_allclose(numbers(mean["y"]), ds.predictivity.mean("neuron"))
    filled = [colour != "#ffffff" for colour in mean["marker"]["color"]]
    assert filled == (ds.p_value.values < 0.05).tolist()
    assert 0 < sum(filled) < 5
    corrected = ds.assign(p_value_corrected=("layer", [0.9, 0.9, 0.01, 0.9, 0.9]))
    mean = traces(predictivity_by_layer(corrected))[-1]
    assert [colour != "#ffffff" for colour in mean["marker"]["color"]] == [False, False, True, False, False]


def test_means_have_whiskers_and_layers_that_may_be_the_best_are_diamonds():
    ds = neural(4, 6, rivals=(1, 2))
    shown = predictivity_by_layer(ds.assign(mean_predictivity_high=ds.mean_predictivity_high + 1))
    mean = traces(shown)[-1]
    assert mean["name"] == "mean (filled: p < 0.05, diamond: may be best)"
    assert list(mean["marker"]["symbol"]) == ["circle", "diamond", "diamond", "circle", "circle"]
    np.testing.assert_allclose(numbers(mean["error_y"]["array"]), np.full(5, 1.04))
    np.testing.assert_allclose(numbers(mean["error_y"]["arrayminus"]), np.full(5, 0.05))
    assert shown.layout.yaxis.range[1] > 1 + float(ds.mean_predictivity.max())
    value, apart = float(ds.mean_predictivity[3]), float(ds.difference_to_best[3])
    words = mean["customdata"][3]
    assert words.startswith(f"layer 3, mean: <b>{value:.3f}</b> [{value - 0.05:.3f}, {value + 1.04:.3f}]")
    assert f"<br>less than the best: {estimate(apart, apart - 0.05, apart / 2)}" in words


def test_neurons_have_their_labels_letter_by_letter():
    ds = neural(1, 3).assign_coords(label=("neuron", ["V4 <b>1</b>", "IT", "PFC"]))
    dots = next(trace for trace in traces(predictivity_by_layer(ds)) if trace["name"] == "one neuron")
    value = estimate(float(ds.predictivity[1, 0]))
    assert dots["customdata"][3] == f"layer 1, neuron V4 &lt;b&gt;1&lt;/b&gt;: <b>{value}</b>"


def test_without_repeats_or_permutations_there_is_no_ceiling_and_no_chance():
    drawn = [trace["name"] for trace in traces(predictivity_by_layer(neural(2, 4, repeats=False, permutations=0)))]
    assert drawn == ["one neuron", "mean"]


def test_a_model_of_one_layer_and_one_head_is_drawn():
    ds = attention(1, 1)
    dot, mean = traces(heads_by_layer(ds, "distance"))
    assert numbers(dot["x"]).tolist() == [1]
    assert numbers(mean["y"]) == numbers(dot["y"])
    assert numbers(traces(head_map(ds, "distance"))[0]["z"]).shape == (1, 1)


@pytest.mark.parametrize(
    ("value", "low", "high", "words"),
    [
        (11.62, 11.3, 12.04, "11.6 [11.3, 12.0]"),
        (305.4, 299.9, 310.2, "305 [300, 310]"),
        (0.0917, 0.0881, 0.0953, "0.0917 [0.0881, 0.0953]"),
        (9.996, 9.0, 11.0, "10.0 [9.0, 11.0]"),
        (-0.5, -0.75, -0.25, "−0.500 [−0.750, −0.250]"),
        (0.0, 0.0, 0.0, "0.00 [0.00, 0.00]"),
        (2.0, np.nan, np.nan, "2.00"),
    ],
)
def test_numbers_and_their_intervals_have_the_same_decimals(value, low, high, words):
    assert estimate(value, low, high) == words


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: heads_by_layer(attention(2, 2), "absent"), "measure='absent'"),
        (lambda: head_map(attention(1, 1, missing=((1, 1 - 1),)), "distance"), "no such number of any head"),
        (lambda: dimensions_by_layer(representations(1)[["n_points"]]), "no dimension of any layer"),
        (lambda: layer_similarity(similarity(1), "cosine"), "measure='cosine'"),
        (lambda: predictivity_by_layer(neural(1).drop_vars("predictivity")), "no predictivity of any neuron"),
    ],
)
def test_what_a_result_does_not_hold_is_a_sentence(draw, words):
    with pytest.raises(ArgumentError, match=re.escape(words)):
        draw()
