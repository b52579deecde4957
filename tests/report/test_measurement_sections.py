"""What a page says of a measured model: every number in words computed again, for one layer, encoders, no attention, missing heads."""

import itertools
import json

import numpy as np
import pytest
import xarray as xr

import synthetic_measurements as invented
from oplens.figures.layers import estimate
from oplens.report import render
from oplens.report.attention import attention_sections
from oplens.report.blocks import Limits
from oplens.report.facts import data_rows, kinds, model_rows, notes
from oplens.report.heads import head_findings
from oplens.report.measurement import measurement_sections
from oplens.report.neural import neural_section
from oplens.report.representations import representations_section
from oplens.report.scores import scores_section
from oplens.results import write_results


def sections(tree):
    return {one.id: one for one in measurement_sections(tree, Limits())}


def section(tree, name, limits=None):
    """One of them alone: figures of heads cost more than all the rest."""
    alone = {"scores": scores_section, "representations": representations_section, "neural": neural_section}
    found = alone[name](tree) if name in alone else attention_sections(tree, limits or Limits())
    return next(one for one in found if one.id == name)


def said(tree, name):
    """Findings of a section; those about heads without their figures, which cost far more."""
    if name == "attention":
        return " ".join(head_findings(tree, tree["attention"].to_dataset()))
    return " ".join(section(tree, name).findings)


def three(value):
    """Three significant digits as people write them, for values between 0.001 and 9999; written on its own, not as the code does it."""
    rounded = float(f"{value:.2e}")
    decimals = next(d for d in range(7) if rounded >= 10 ** (2 - d) or d == 6)
    return f"{value:.{decimals}f}"


def ends(value, low, high):
    decimals = len(three(value).partition(".")[2])
    return f"{three(value)} [{low:.{decimals}f}, {high:.{decimals}f}]"


def spread(ds, name, head):
    return ends(*(float(ds[f"{name}{end}"].sel(layer=head[0], head=head[1])) for end in ("", "_low", "_high")))


def layer_mean(ds, layers):
    """Mean over layers of means over heads, and the mean half-width, by loops over what is there."""
    values, halves = [], []
    for layer in layers:
        one = ds.sel(layer=layer)
        there = [h for h in range(one.sizes["head"]) if np.isfinite(one.distance[h])]
        values.append(sum(float(one.distance[h]) for h in there) / len(there))
        halves.append(sum(float(one.distance_high[h] - one.distance_low[h]) / 2 for h in there) / len(there))
    value, half = np.mean(values), np.mean(halves)
    return value, value - half, value + half


def with_distance(distance, **more):
    layers, heads = np.shape(distance)
    return invented.measured(layers, heads, attention=invented.attention(layers, heads, distance, **more))


def test_other_results_have_no_such_section(two_class):
    assert measurement_sections(two_class, Limits()) == []
    assert kinds(two_class) == {"explanation"}


def test_early_and_late_layers_are_compared_with_their_intervals():
    tree = invented.measured(5, 8, missing=((1, 3), (5, 0), (5, 7)))
    ds = tree["attention"].to_dataset()
    words = said(tree, "attention")
    early, late = layer_mean(ds, (1, 2)), layer_mean(ds, (4, 5))
    assert (
        f"Early layers (1 to 2) look {ends(*early)} positions back on average, late ones (4 to 5) {ends(*late)}."
        in words
    )
    assert early[2] < late[1]
    assert "claim that early layers are local and late ones global holds for this model on these data" in words
    means = [layer_mean(ds, (layer,)) for layer in range(1, 6)]
    order = np.argsort([mean[0] for mean in means])
    assert (
        f"Nearest is layer {order[0] + 1}, {ends(*means[order[0]])}, farthest layer {order[-1] + 1}, {ends(*means[order[-1]])}."
        in words
    )


@pytest.mark.parametrize(
    ("middle", "verdict"),
    [
        ((2, 4, 8, 16), "holds for this model on these data: the mean grows with every layer"),
        (
            (2, 9, 7, 16),
            "for these two means, not layer by layer: from layer 2 to layer 3 the mean falls from 9.00 to 7.00",
        ),
        ((2, 2, 8, 16), "not layer by layer: from layer 1 to layer 2 the mean stays at 2.00."),
        ((16, 8, 4, 2), "does not hold for this model on these data: late layers look nearer"),
        (
            (8, 8, 8.1, 8),
            "Their intervals overlap: the paper's claim that early layers are local and late ones global is not shown",
        ),
    ],
)
def test_the_papers_claim_is_judged_by_the_data(middle, verdict):
    words = said(with_distance(np.array(middle)[:, None] * [1.0, 1.0, 1.0]), "attention")
    assert verdict in words
    assert sum(other in words for other in ("holds for", "does not hold", "not shown", "cannot be judged")) == 1


def test_layers_that_look_equally_far_have_no_nearest_one():
    assert "Nearest is layer 1" in said(with_distance(np.array([[2.0], [3.0], [4.0]]) * [1.0, 1.0]), "attention")
    assert "Nearest" not in said(with_distance(np.full((3, 2), 2.0)), "attention")


def test_one_case_has_no_intervals_and_judges_nothing():
    tree = with_distance([[2.0, 4.0], [8.0, 9.0]], intervals=False)
    words = said(tree, "attention")
    assert (
        "look 3.00 positions back on average, late ones (2) 8.50. Without intervals, which need two cases, the paper's"
        in words
    )
    assert "[" not in words


def test_the_share_of_layers_in_the_variance_of_distances():
    ds = invented.attention(4, 6, missing=((2, 1),))
    words = said(invented.measured(4, 6, attention=ds), "attention")
    flat = [(layer, float(v)) for layer in range(4) for v in ds.distance.values[layer] if np.isfinite(v)]
    mean = np.mean([v for _, v in flat])
    own = {layer: np.mean([v for k, v in flat if k == layer]) for layer in range(4)}
    share = sum((own[layer] - mean) ** 2 for layer, _ in flat) / sum((v - mean) ** 2 for _, v in flat)
    assert f"The layer accounts for {100 * share:.0f} % of the variance of distances between heads" in words
    widest = max(range(4), key=lambda layer: np.ptp([v for k, v in flat if k == layer]))
    low, high = (end(v for k, v in flat if k == widest) for end in (min, max))
    assert f"in layer {widest + 1} alone they range from {three(low)} to {three(high)}." in words


def percent(ds, name, head):
    value, low, high = (float(ds[name + end].sel(layer=head[0], head=head[1])) for end in ("", "_low", "_high"))
    return f"{100 * value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


PLACES = {
    "previous_mass": ((2, 0), "looks at the previous token", "look at the previous token"),
    "first_mass": ((5, 1), "rests on the first position", "rest on the first position"),
}


@pytest.mark.parametrize("name", PLACES)
def test_heads_with_most_weight_on_one_place_are_named_by_the_lower_end_of_their_interval(name):
    head, one, many = PLACES[name]
    tree = invented.measured(5, 8)
    ds = tree["attention"].to_dataset()
    alone = f"One head {one}, with more than half of the weight: layer {head[0]}, head {head[1]}, {percent(ds, name, head)}."
    assert alone in said(tree, "attention")
    unsure = ds.copy(deep=True)
    for end, value in (("", 0.51), ("_low", 0.49), ("_high", 0.53)):
        unsure[f"{name}{end}"].loc[{"layer": head[0], "head": head[1]}] = value
    words = said(invented.measured(5, 8, attention=unsure), "attention")
    assert f"No head {one}: the most weight there is 51 % [49, 53], of layer {head[0]}, head {head[1]}." in words
    for end in ("_low", "_high"):
        unsure[f"{name}{end}"].loc[{"layer": head[0], "head": head[1]}] = np.nan
    words = said(invented.measured(5, 8, attention=unsure), "attention")
    assert f"One head {one}, with more than half of the weight: layer {head[0]}, head {head[1]}, 51 %." in words
    crowd = ds.copy(deep=True)
    for k in range(5):
        for end in ("", "_low", "_high"):
            crowd[f"{name}{end}"].loc[{"layer": 3, "head": k}] = 0.94 + 0.01 * k
    words = said(invented.measured(5, 8, attention=crowd), "attention")
    assert (
        f"6 heads {many}, with more than half of the weight: layer 3, head 4, 98 % [98, 98]; layer 3, head 3, 97 % [97, 97]; layer 3, head 2, "
        "96 % [96, 96]; and 3 more." in words
    )
    assert one not in said(invented.measured(5, 8, attention=ds.drop_vars(name)), "attention")


def test_low_entropy_is_not_called_local_where_such_a_head_looks_far():
    tree = invented.measured(5, 8)
    ds = tree["attention"].to_dataset()
    flat = [
        (float(ds.normalised_entropy[a, h]), float(ds.distance[a, h]), a + 1, h)
        for a, h in itertools.product(range(5), range(8))
    ]
    quarter = [row for row in flat if row[0] <= np.quantile([r[0] for r in flat], 0.25)]
    entropy, _, layer, head = max(quarter, key=lambda row: row[1])
    middle = np.median([row[1] for row in flat])
    assert (layer, head) == (5, 1)
    assert (
        f"Low entropy does not mean local: layer 5, head 1 is among the {len(quarter)} heads of lowest entropy ({100 * entropy:.0f} % of its "
        f"largest), yet looks {spread(ds, 'distance', (5, 1))} positions back, with 91 % of its weight on the first position; the median head "
        f"looks {three(middle)}." in said(tree, "attention")
    )
    near = ds.assign(normalised_entropy=ds.normalised_entropy.copy(data=0.01 * ds.distance.values))
    words = said(invented.measured(5, 8, attention=near), "attention")
    assert (
        f"of the 10 heads of lowest entropy none looks farther than the median head ({three(middle)} positions)"
        in words
    )
    assert "does not mean local" not in words


def test_r_eff_of_the_paper_stands_beside_singular_values():
    tree = invented.measured(4, 6)
    ds = tree["attention"].to_dataset()
    ratio = ds.eigenvalue_effective_rank.values / ds.effective_rank.values
    layer, head = np.unravel_index(np.abs(np.log(ratio)).argmax(), ratio.shape)
    assert (
        "The paper's r_eff is no rank (the eigenvalues of a causal matrix are its diagonal, each token's weight on itself): over all heads it "
        f"is {three(ratio.min())} to {three(ratio.max())} times the effective rank from singular values; for layer {layer + 1}, head {head} "
        f"it gives {three(ds.eigenvalue_effective_rank.values[layer, head])} where singular values give "
        f"{three(ds.effective_rank.values[layer, head])}." in said(tree, "attention")
    )
    ds["undefined"].values[:2] = 0.5
    both = said(invented.measured(4, 6, causal=False, attention=ds), "attention")
    assert "In 25 % of the cases it is undefined, and moduli stand in." in both
    assert "diagonal" not in both


def test_encoders_look_away_and_not_back():
    tree = invented.measured(3, 4, causal=False)
    words = said(tree, "attention")
    assert "back" not in words
    assert "positions away on average" in words
    assert "blank" not in said(tree, "attention-maps")
    assert "What a causal model hides is blank." in said(invented.measured(3, 4), "attention-maps")


@pytest.mark.parametrize(("causal", "uniform"), [(True, 63 / 4), (False, (64**2 - 1) / (3 * 64))])
def test_uniform_attention_is_drawn_beside_distances_of_cases_of_one_length(causal, uniform):
    tree = invented.measured(3, 4, causal=causal)
    picture = next(p for p in section(tree, "attention").pictures if p.id == "attention-distance")
    (note,) = picture.variants["dots"].layout.annotations
    rows = [np.mean([abs(i - j) for j in (range(i + 1) if causal else range(64))]) for i in range(64)]
    assert float(note.text.removeprefix("uniform attention: ")) == pytest.approx(np.mean(rows), abs=0.0501)
    assert np.mean(rows) == pytest.approx(uniform)
    tree.attrs["data"] = json.dumps({"name": "x", "length": [10, 64]})
    picture = next(p for p in section(tree, "attention").pictures if p.id == "attention-distance")
    assert not picture.variants["dots"].layout.annotations


def test_one_layer_with_one_head_is_described_without_comparisons():
    tree = invented.measured(1, 1)
    ds = tree["attention"].to_dataset()
    words = said(tree, "attention")
    assert (
        f"Heads look {spread(ds, 'distance', (1, 0))} positions back on average. Only one layer has attention" in words
    )
    assert "variance" not in words
    assert "Low entropy" not in words
    assert "over all heads" not in words
    found = section(tree, "representations")
    assert "The embedding and layer 1 have a likeness of" in " ".join(found.findings)


def test_the_table_gives_means_and_half_widths_of_every_layer():
    ds = invented.attention(3, 4, missing=((2, 3),))
    (table,) = section(invented.measured(3, 4, attention=ds), "attention").tables
    assert table.header[:2] == ["layer", "heads"]
    assert [row[:2] for row in table.rows] == [["1", "4"], ["2", "3"], ["3", "4"]]
    column = table.header.index("distance (positions)")
    for row, layer in zip(table.rows, (1, 2, 3), strict=True):
        value, low, high = layer_mean(ds, (layer,))
        shown, half = row[column].split(" ± ")
        assert shown == three(value)
        assert float(half) == pytest.approx((high - low) / 2, rel=0.05, abs=0.0051)
    share = float(ds.previous_mass.sel(layer=2).mean())
    assert table.rows[1][table.header.index("on the previous token (%)")].split(" ± ")[0] == three(100 * share)
    assert "heads" not in section(invented.measured(3, 4), "attention").tables[0].header


def test_many_heads_are_shown_as_a_map_first_and_panels_of_ranks_share_their_scale():
    for heads, first in ((8, "dots"), (16, "map")):
        found = section(invented.measured(2, heads), "attention")
        assert next(iter(found.switch.choices[0].options)) == first
        assert all(set(p.variants) == {"dots", "map"} for p in found.pictures)
        ranks = [
            p for p in found.pictures if p.id in ("attention-effective_rank", "attention-eigenvalue_effective_rank")
        ]
        assert len({p.variants["dots"].layout.yaxis.range[1] for p in ranks}) == 1
        assert len({p.variants["map"].data[0].zmax for p in ranks}) == 1


def test_maps_say_why_they_are_drawn_and_what_their_heads_do_over_all_cases():
    tree = invented.measured(3, 4)
    ds, maps = tree["attention"].to_dataset(), tree["attention_maps"].to_dataset()
    found = section(tree, "attention-maps")
    assert len(found.pictures) == 6
    for k, picture in enumerate(found.pictures):
        layer, head = int(maps.layer_of[k]), int(maps.head_of[k])
        assert picture.title == f"Layer {layer}, head {head}: {maps.why.values[k]}"
        one = ds.sel(layer=layer, head=head)
        assert picture.caption == (
            f"distance {three(float(one.distance))}, first position {100 * float(one.first_mass):.0f} %, previous token "
            f"{100 * float(one.previous_mass):.0f} %, entropy {100 * float(one.normalised_entropy):.0f} % of its largest"
        )
    fewer = section(tree, "attention-maps", Limits(cases=4))
    assert len(fewer.pictures) == 4
    assert "2 more heads are in the file" in fewer.findings[0]


def test_ranks_of_fewer_cases_are_said():
    ds = invented.attention(2, 2).assign_attrs(ranked_cases=5)
    assert "Ranks are of the first 5 of 32 cases" in " ".join(
        section(invented.measured(2, 2, attention=ds), "attention").notes
    )
    ds.attrs["ranked_cases"] = 32
    assert "Ranks are" not in " ".join(section(invented.measured(2, 2, attention=ds), "attention").notes)


def test_the_section_of_heads_says_what_was_found():
    tree = invented.measured(3, 4)
    assert " ".join(section(tree, "attention").findings) == said(tree, "attention")


def test_statistics_that_no_head_has_leave_no_panel_and_no_sentence():
    ds = invented.attention(3, 4)
    for name in ("effective_rank", "first_mass", "normalised_entropy"):
        ds[name].values[:] = np.nan
    found = section(invented.measured(3, 4, attention=ds), "attention")
    assert [p.id for p in found.pictures] == [
        "attention-distance",
        "attention-previous_mass",
        "attention-eigenvalue_effective_rank",
    ]
    assert not any(word in " ".join(found.findings) for word in ("r_eff", "rests", "entropy", "nan"))


def test_scores_are_tiles_with_their_intervals_and_perplexity_has_the_digits_it_is_compared_by():
    found = section(invented.measured(errors=invented.errors()), "scores")
    tiles = {tile.words: tile for tile in found.tiles}
    assert (tiles["perplexity"].value, tiles["perplexity"].more) == ("3.6555", "[3.50, 3.80]")
    assert (tiles["bits per byte of text"].value, tiles["bits per byte of text"].more) == (
        "0.81230",
        "± 0.011 (standard error), 150,000 bytes",
    )
    assert tiles["predictions counted"].value == "65,280"
    assert (tiles["mean error (the paper's EAM)"].value, tiles["mean error (the paper's EAM)"].more) == (
        "0.125",
        "[0.105, 0.145]",
    )
    assert (tiles["largest error seen"].value, tiles["largest error seen"].more) == (
        "0.750",
        "a lower bound of the supremum",
    )
    words = " ".join(found.findings)
    assert "Perplexity 3.6555 [3.50, 3.80], over 65,280 predictions" in words
    assert "A byte of text costs it 0.812 bits" in words
    assert (
        "The model misses its target by 0.125 [0.105, 0.145] on average. The largest error seen, 0.750, is a lower bound"
        in words
    )
    assert "At most 1.49 % of inputs of this kind have a larger one (95 % confidence)" in words


def test_an_exact_largest_error_is_called_so():
    exact = invented.errors(exhaustive=True).assign_attrs(
        target="teacher", scope="all 8 sequences of 3 symbols out of 2"
    )
    exact = exact.assign(target_size=0.5, largest_case=3, agreement=0.975)
    found = section(invented.measured(errors=exact), "scores")
    tiles = {tile.words: tile for tile in found.tiles}
    assert tiles["largest error, exact"].more == "over all inputs"
    assert tiles["mean error (the paper's EAM)"].more == "over all inputs, exact"
    assert (
        "The model misses teacher by 0.125 on average, 25 % of the mean size of its values, and by 0.750 (case 3) at most: exact, over all 8 "
        "sequences of 3 symbols out of 2. Both put the same token first at 97.5 % of the positions."
        in " ".join(found.findings)
    )
    assert "lower bound" not in " ".join(found.findings)


def test_accuracy_and_infinite_perplexity():
    found = section(invented.measured(attends=False, scores=invented.classified()), "scores")
    assert [(tile.value, tile.words, tile.more) for tile in found.tiles] == [
        ("85.0 %", "of cases decided rightly", "[71.0, 93.0] %"),
        ("40", "cases", ""),
    ]
    endless = invented.predictions(n_bytes=False)
    for name in ("perplexity", "perplexity_high", "loss"):
        endless[name] = endless[name].copy(data=np.inf)
    found = section(invented.measured(scores=endless), "scores")
    assert found.tiles[0].value == "∞"
    assert "called a token impossible that came" in found.findings[0]


def test_representations_are_said_with_the_interval_of_the_likelihood():
    tree = invented.measured(5)
    ds = tree["representations"].to_dataset()
    words = said(tree, "representations")
    ratio = ds.participation_ratio_corrected.values
    assert (
        f"In the embedding the states spread over {three(ratio[0])} directions, after layer 5 over {three(ratio[-1])} (participation ratio)"
        in words
    )
    for name, at in (("widest", ratio.argmax()), ("narrowest", ratio.argmin())):
        assert (f"{name} after layer {at} ({three(ratio[at])})" in words) == (at not in (0, 5))
    assert "The paper's d_int is 1.60 times that" in words
    assert (
        "TwoNN): 3.00 [2.60, 3.40] in the embedding, 6.00 [5.60, 6.40] after layer 5, below the participation ratio throughout"
        in words
    )
    notes_ = " ".join(section(tree, "representations").notes)
    assert "2,048 points a layer" in notes_
    assert "in the embedding 850 of 1,000 sampled points repeat others" in notes_


def test_dimensions_from_distances_are_counted_against_linear_ones():
    ds = invented.representations(3)
    ratio = [10.0, 10.0, 10.0, 10.0]
    value, half = np.array([3.0, 9.9, 10.2, 20.0]), 0.5
    for name, v in (
        ("participation_ratio_corrected", ratio),
        ("two_nn_likelihood", value),
        ("two_nn_low", value - half),
        ("two_nn_high", value + half),
    ):
        ds[name] = ds[name].copy(data=np.array(v))
    words = said(invented.measured(3, representations=ds), "representations")
    assert "below the participation ratio at 1, above it at 1, not told apart at 2 of 4 layers" in words
    for name in ("two_nn_low", "two_nn_high", "two_nn_likelihood"):
        ds[name] = ds[name] + 100
    assert "above the participation ratio throughout" in said(
        invented.measured(3, representations=ds), "representations"
    )
    ds["participation_ratio_corrected"][1] = np.nan
    assert "above the participation ratio throughout" in said(
        invented.measured(3, representations=ds), "representations"
    )


def test_layers_without_a_dimension_are_dashes_and_the_file_says_why():
    ds = invented.representations(2)
    for name in ("two_nn", "two_nn_likelihood", "two_nn_low", "two_nn_high", "mle", "participation_ratio_corrected"):
        ds[name][0] = np.nan
    ds.attrs["undefined"] = ["layer 0, TwoNN: 2 different points"]
    found = section(invented.measured(2, representations=ds), "representations")
    (table,) = found.tables
    assert table.rows[0][:2] == ["the embedding", "–"]
    assert table.rows[0][table.header.index("TwoNN, likelihood")] == "–"
    assert "No value: layer 0, TwoNN: 2 different points" in found.notes
    assert "nan" not in " ".join(found.findings)
    assert found.findings[0].startswith("After layer 1 the states spread over")


def test_likeness_names_the_largest_and_smallest_step_of_the_kind_shown_first():
    tree = invented.measured(4)
    value = tree["similarity"].cka_unbiased.values
    steps = [value[k, k + 1] for k in range(4)]
    least, most = int(np.argmin(steps)), int(np.argmax(steps))
    name = lambda k: "the embedding" if k == 0 else f"layer {k}"  # noqa: E731
    assert (
        f"The largest change is from {name(least)} to {name(least + 1)}, with a likeness of {steps[least]:.2f} (linear CKA, unbiased), the "
        f"smallest from {name(most)} to {name(most + 1)}, with {steps[most]:.2f}. The first and the last have {value[0, 4]:.2f}."
        in said(tree, "representations")
    )
    nothing = tree["similarity"].to_dataset()
    nothing["cka_unbiased"] = nothing["cka_unbiased"] * np.nan
    found = section(invented.measured(4, similarity=nothing), "representations")
    assert found.switch is None
    assert f"a likeness of {nothing.cka.values[0, 1]:.2f} (linear CKA)" in " ".join(found.findings)
    assert "similarity" not in [
        p.id for p in section(invented.measured(4, similarity=None), "representations").pictures
    ]


def test_the_best_layer_for_neurons_is_judged_as_the_best_of_many():
    ds = invented.neural(5, 20)
    mean, best = ds.predictivity.mean("neuron").values, int(ds.predictivity.mean("neuron").values.argmax())
    words = said(invented.measured(neural=ds), "neural")
    assert (
        f"Of 6 layers, layer {best} predicts the 20 neurons best, with a mean correlation of {mean[best]:.2f}, where noise allows "
        f"{float(ds.noise_ceiling.mean()):.2f}; the median neuron reaches {100 * float(ds.median_normalised_predictivity[best]):.0f} % of "
        "its ceiling." in words
    )
    above = int((ds.p_value < 0.05).sum())
    assert "On its own it has p = 0.00498 (200 permutations allow no less than 0.00498)" in words
    assert f"each tested on its own, {above} of 6 layers are above chance" in words
    corrected = ds.assign(p_value_corrected=("layer", np.where(np.arange(6) == best, 0.0123, 0.5)))
    words = said(invented.measured(neural=corrected), "neural")
    assert "As the best of 6 layers it has p = 0.0123, against any layer on permuted responses" in words
    assert "1 of 6 layers are above chance at p < 0.05 by that measure" in words
    (table,) = section(invented.measured(neural=corrected), "neural").tables
    assert table.header[-1] == "p as the best of all layers"
    assert [row[1] for row in table.rows] == [f"{v:.3f}" for v in mean]


@pytest.mark.parametrize(
    ("rivals", "words"),
    [
        (
            (2,),
            "Of 6 layers, layer 2 predicts the 20 neurons best, with a mean correlation of 0.42 [0.37, 0.46], where",
        ),
        (
            (2, 4),
            "Of 6 layers, layers 2 and 4 predict the 20 neurons best and cannot be told apart; layer 2 has the largest mean ",
        ),
        ((0, 2), "Of 6 layers, the embedding and layer 2 predict the 20"),
        ((0, 2, 3, 4), "Of 6 layers, the embedding and layers 2 to 4 predict the 20"),
        ((1, 2, 3, 5), "Of 6 layers, layers 1 to 3 and 5 predict the 20"),
        ((1, 2, 4), "Of 6 layers, layers 1, 2 and 4 predict the 20"),
        (
            range(6),
            "Any of 6 layers may predict the 20 neurons best: they cannot be told apart; layer 2 has the largest mean ",
        ),
    ],
)
def test_layers_that_cannot_be_told_apart_are_named(rivals, words):
    ds = invented.neural(5, 20, rivals=rivals)
    assert round(float(ds.mean_predictivity[2]), 2) == 0.42
    found = said(invented.measured(neural=ds), "neural")
    assert words in found
    others = [k for k in range(6) if k not in rivals]
    assert (f"The other {len(others)} layers are behind the best; " in found) == bool(others)
    if others:
        nearest = max(others, key=lambda k: float(ds.difference_to_best[k]))
        apart = -float(ds.difference_to_best[nearest])
        name = f"layer {nearest}" if nearest else "the embedding"
        assert f"{name} comes closest, by {estimate(apart, apart / 2, apart + 0.05)}." in found


def test_intervals_of_layers_stand_in_the_table_and_the_caption():
    ds = invented.neural(5, 20, rivals=(1, 2, 3, 4, 5)).assign_attrs(level=0.9)
    found = section(invented.measured(neural=ds), "neural")
    assert "Whiskers: intervals at 90 % over stimuli" in found.pictures[0].caption
    apart = float(ds.difference_to_best[0])
    words = f"The other layer is behind the best by {estimate(-apart, -apart / 2, -apart + 0.05)}."
    assert words in found.findings
    (table,) = found.tables
    assert table.header[:3] == ["layer", "mean correlation", "difference to the best"]
    mean = float(ds.mean_predictivity[0])
    assert table.rows[0][1] == f"{mean:.3f} [{mean - 0.05:.3f}, {mean + 0.04:.3f}]"
    assert table.rows[0][2] == f"\u2212{-apart:.3f} [\u2212{0.05 - apart:.3f}, \u2212{-apart / 2:.3f}]"
    assert table.rows[2][2] == "0.000 [\u22120.050, 0.000]"
    without = section(invented.measured(neural=invented.neural(5, 20)), "neural")
    assert "Whiskers" not in without.pictures[0].caption
    assert not any("told apart" in words or "behind" in words for words in without.findings)


def test_neurons_without_repeats_or_permutations_have_no_ceiling_and_no_p():
    words = said(invented.measured(neural=invented.neural(2, 4, repeats=False, permutations=0)), "neural")
    assert "noise" not in words
    assert "p =" not in words


def test_a_model_without_attention_is_measured_without_heads():
    tree = invented.measured(3, attends=False)
    assert set(sections(tree)) == {"scores", "representations"}


def test_facts_of_the_model_and_the_data_are_said_in_words():
    tree = invented.measured(5, 8)
    rows = dict(data_rows(tree))
    assert rows == {"name": "tiny", "cases": "32", "length": "64 tokens", "tokens in all": "2,048"}
    rows = dict(model_rows(tree))
    assert rows["parameters, tied ones once"] == "260,032"
    assert rows["sees the past only"] == "yes"
    assert rows["attention heads a layer"] == "8"
    assert notes(tree) == ["Eager attention was forced: the default implementation returns no weights."]
    assert kinds(tree) == {"measurement"}
    tree.attrs["model"] = json.dumps({"n_heads": [4, 0, 2], "causal": False})
    assert dict(model_rows(tree)) == {"attention heads a layer": "4, 0, 2", "sees the past only": "no"}
    series = {
        "name": "x",
        "cases": 4,
        "steps": 400,
        "channels": ["a", "b"],
        "sampling_rate": 50.0,
        "class_counts": {},
        "length": [90, 100],
    }
    tree.attrs["data"] = json.dumps(series)
    assert dict(data_rows(tree)) == {
        **{"name": "x", "cases": "4", "channels": "2: a, b", "length": "90 to 100 steps", "steps in all": "400"},
        "sampling rate": "50 Hz",
    }


@pytest.mark.parametrize(
    "tree",
    [
        invented.measured(),
        invented.measured(24, 16, missing=((3, 2),), tokens=64, errors=invented.errors(), neural=invented.neural(24)),
        invented.measured(1, 1),
        invented.measured(attends=False, scores=invented.classified()),
        invented.measured(3, 4, causal=False),
    ],
    ids=["usual", "large", "one head", "no attention", "encoder"],
)
def test_every_measurement_is_a_small_page_without_words_of_other_results(tree, tmp_path):
    path = write_results(tree, tmp_path / "m.nc")
    page = render(path, tmp_path / "m.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 8_000_000
    body = page[page.index("<main>") : page.index('<script type="application/json"')]
    assert ">nan<" not in body
    assert " nan" not in body
    assert "<p>Eager attention was forced: the default implementation returns no weights.</p>" in body
    assert [f'<section id="{name}">' in body for name in sections(tree)] == [True] * len(sections(tree))
    assert body.index('id="scores"') < body.index('id="representations"')
    for other in ("Checked", "sampling rate", "Shares of opposite sign"):
        assert other not in body
    assert "A <em>head</em> of attention" in body


def test_a_file_that_holds_both_keeps_the_check_of_its_shares(two_class, tmp_path):
    both = two_class.copy()
    both["attention"] = xr.DataTree(invented.attention(2, 2))
    page = render(both, tmp_path / "b.html").read_text(encoding="utf-8")
    assert "adds up" in page
    assert "A <em>head</em> of attention" in page
    assert "Shares of opposite sign" in page
    assert kinds(both) == {"explanation", "measurement"}
