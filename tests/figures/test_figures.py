"""Figures show the numbers of the result: every drawn value is recomputed here by plain indexing."""

import base64
import html
import json
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import xarray as xr

import synthetic_results
from oplens import figures
from oplens.errors import ArgumentError
from oplens.figures.contrast import frequency_units, part_labels
from oplens.figures.style import text

HOSTILE = '</script><img src=x onerror=alert(1)>%{x}<b>"&'


def as_json(figure: go.Figure) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(figure.to_json())
    return result


def numbers(value: Any) -> np.ndarray[Any, Any]:
    """What a browser decodes: plotly writes typed arrays as base64."""
    if isinstance(value, dict):
        flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]))
        return flat.reshape([int(n) for n in value["shape"].split(",")]) if "shape" in value else flat
    return np.asarray(value)


def group(tree: xr.DataTree, name: str) -> xr.Dataset:
    return tree[name].to_dataset(inherit=False)


def test_arrays_travel_as_float32(two_class: xr.DataTree) -> None:
    z = as_json(figures.share_map(group(two_class, "channels_bands")))["data"][0]["z"]
    assert z["dtype"] == "f4"


@pytest.mark.parametrize("order", ["sum", 1, 2, "full"])
def test_share_map_shows_class_differences_and_sizes(order: str | int, two_class: xr.DataTree) -> None:
    ds = group(two_class, "channels_bands")
    share, label = ds["share"].values, ds["label"].values
    values = {"sum": share[0] + share[1], 1: share[0], 2: share[1], "full": ds["full_share"].values}[order]
    first, second = values[label == "negativity"], values[label == "positivity"]
    drawn = as_json(figures.share_map(ds, order))["data"][0]
    np.testing.assert_allclose(numbers(drawn["z"]), first.mean(0) - second.mean(0), atol=1e-6)
    assert drawn["zmin"] == -drawn["zmax"]
    drawn = as_json(figures.share_map(ds, order, "magnitude"))["data"][0]
    np.testing.assert_allclose(numbers(drawn["z"]), abs(values).mean(0), atol=1e-6)
    assert drawn["zmin"] == 0


def test_share_map_of_one_class_compares_it_with_all_others(four_class: xr.DataTree) -> None:
    ds = group(four_class, "channels_bands")
    values = ds["share"].values.sum(0)[:, 2]
    own = ds["label"].values == "walking"
    drawn = as_json(figures.share_map(ds, toward="walking"))["data"][0]
    np.testing.assert_allclose(numbers(drawn["z"]), values[own].mean(0) - values[~own].mean(0), atol=1e-6)


def test_map_of_waves_and_channels_gathers_waves_without_loss(two_class: xr.DataTree) -> None:
    waves = group(two_class, "waves")
    product = waves.assign(
        share=waves["share"].expand_dims(channel=["C3", "C4"], axis=-1) * xr.DataArray([1.0, -0.5], dims="channel")
    )
    product = product.drop_vars("full_share")
    drawn = numbers(as_json(figures.share_map(product))["data"][0]["z"])
    label = waves["label"].values
    total = waves["share"].values.sum((0, 2, 3))
    gap = total[label == "negativity"].mean() - total[label == "positivity"].mean()
    channel_axis = 0 if drawn.shape[0] == 2 else 1
    np.testing.assert_allclose(drawn.sum(1 - channel_axis), [gap, -0.5 * gap], atol=1e-5)


def test_direction_of_a_margin_is_found_from_the_numbers(two_class: xr.DataTree) -> None:
    ds = group(two_class, "windows")
    (side,) = figures.directions(ds)
    assert (side.name, side.against) == ("negativity", "positivity")
    flipped = ds.assign(target=-ds["target"])
    (side,) = figures.directions(flipped)
    assert (side.name, side.against) == ("positivity", "negativity")
    assert side.toward.tolist() == (ds["label"].values == "positivity").tolist()


def test_without_labels_the_predicted_classes_are_compared(two_class: xr.DataTree) -> None:
    ds = group(two_class, "windows").drop_vars("label")
    (side,) = figures.directions(ds)
    assert side.sides == ("predicted negativity", "predicted positivity")
    assert side.toward.tolist() == (ds["predicted"].values == "negativity").tolist()
    (side,) = figures.directions(ds.drop_vars(["predicted", "logits"]))
    assert side.sides == ("cases with a positive target", "cases with a negative target")
    assert side.toward.tolist() == (ds["target"].values > 0).tolist()


def test_course_shows_mean_and_middle_of_each_class(two_class: xr.DataTree) -> None:
    ds = group(two_class, "windows")
    traces = as_json(figures.share_course(ds, "full"))["data"]
    values = ds["full_share"].values
    for k, name in enumerate(("negativity", "positivity")):
        chosen = values[ds["label"].values == name]
        low, high, mean = traces[3 * k : 3 * k + 3]
        np.testing.assert_allclose(numbers(low["y"])[::2], np.quantile(chosen, 0.1, axis=0), atol=1e-6)
        np.testing.assert_allclose(numbers(high["y"])[1::2], np.quantile(chosen, 0.9, axis=0), atol=1e-6)
        np.testing.assert_allclose(numbers(mean["y"])[::2], chosen.mean(0), atol=1e-6)
        assert mean["name"] == name
    np.testing.assert_allclose(numbers(mean["x"])[[0, 1, 2, -1]], [0, 12.5, 12.5, 100])


def test_bars_keep_the_largest_parts_in_their_order(two_class: xr.DataTree) -> None:
    ds = group(two_class, "channels_bands")
    channels = ds[["target", "logits"]].assign(share=ds["share"].sum("band"))
    figure = as_json(figures.share_bars(channels, top=3))
    size = abs(channels["share"].sum("order")).mean("case").values
    keep = np.sort(np.argsort(-size)[:3])
    assert figure["layout"]["yaxis"]["ticktext"] == [str(ds["channel"].values[k]) for k in keep]
    values = channels["share"].values.sum(0)[ds["label"].values == "positivity"][:, keep]
    np.testing.assert_allclose(numbers(figure["data"][1]["x"]), values.mean(0), atol=1e-6)


def test_wave_scatter_places_colours_and_marks_waves(two_class: xr.DataTree) -> None:
    ds = group(two_class, "waves")
    traces = {t["name"]: t for t in as_json(figures.wave_scatter(ds, 1))["data"]}
    aliased = int(ds["aliased"].values.sum())
    assert len(numbers(traces["aliased wave"]["x"])) == aliased
    assert len(numbers(traces["wave"]["x"])) == ds["aliased"].size - aliased
    assert traces["wave"]["marker"]["symbol"] != traces["aliased wave"]["marker"]["symbol"]
    values, label = ds["share"].values[0], ds["label"].values
    gap = values[label == "negativity"].mean(0) - values[label == "positivity"].mean(0)
    size = abs(values).mean(0)
    plain = ~ds["aliased"].values
    rank = np.argsort(-size[plain])
    np.testing.assert_allclose(numbers(traces["wave"]["marker"]["color"]), gap[plain][rank], atol=1e-6)
    frequency, decay = ds["frequency"].values[plain][rank], ds["decay_time"].values[plain][rank]
    positive = frequency > 1e-3
    np.testing.assert_allclose(10.0 ** numbers(traces["wave"]["x"])[positive], frequency[positive], rtol=1e-5)
    np.testing.assert_allclose(10.0 ** numbers(traces["wave"]["y"]), decay, rtol=1e-5)
    # Zero has no logarithm: it sits left of everything, at a tick of its own.
    assert numbers(traces["wave"]["x"])[~positive].max() < numbers(traces["wave"]["x"])[positive].min()


def test_wave_scatter_shows_only_the_largest_when_there_are_many(two_class: xr.DataTree) -> None:
    ds = group(two_class, "waves")
    traces = as_json(figures.wave_scatter(ds, top=10))["data"]
    assert sum(len(numbers(t["x"])) for t in traces) == 10
    table = figures.wave_table(ds)
    size = abs(ds["share"].values.sum(0)).mean(0)
    assert table["size"].tolist() == sorted(size.ravel().tolist(), reverse=True)
    best = np.unravel_index(size.argmax(), size.shape)
    assert table["name"][0] == f"feature {best[0]}, wave {best[1]}"


def test_pair_map_of_channels_is_the_class_difference(two_class: xr.DataTree) -> None:
    ds = group(two_class, "pairs_channels")
    values, label = ds["pair_share"].values[0], ds["label"].values
    expected = values[label == "negativity"].mean(0) - values[label == "positivity"].mean(0)
    drawn = numbers(as_json(figures.pair_map(ds))["data"][0]["z"])
    np.testing.assert_allclose(drawn, expected, atol=1e-6)
    drawn = numbers(as_json(figures.pair_map(ds, measure="magnitude"))["data"][0]["z"])
    np.testing.assert_allclose(drawn, abs(values).mean(0), atol=1e-6)


def test_pair_map_of_waves_adds_every_pair_into_one_bin(two_class: xr.DataTree) -> None:
    ds = group(two_class, "pairs_waves")
    drawn = numbers(as_json(figures.pair_map(ds))["data"][0]["z"])
    means = ds["pair_share"].values[0]
    np.testing.assert_allclose(drawn, drawn.T, atol=1e-6)
    np.testing.assert_allclose(drawn.sum(), means[0].sum() - means[1].sum(), atol=1e-5)
    labels = as_json(figures.pair_map(ds))["layout"]["xaxis"]["ticktext"]
    assert labels == ["&lt;4", "4–8", "8–16", "16–32", "32–64", "64–128"]
    slow = ds["frequency"].values < 4.0
    expected = sum((means[0] - means[1])[f][np.ix_(slow[f], slow[f])].sum() for f in range(slow.shape[0]))
    np.testing.assert_allclose(drawn[0, 0], expected, atol=1e-6)


def test_pair_map_of_waves_with_channels_adds_the_channels_up(two_class: xr.DataTree) -> None:
    ds = group(two_class, "pairs_waves")
    parts = xr.DataArray([[0.5, 0.25], [0.25, 0.0]], dims=("channel", "channel_2"))
    split = ds.assign(pair_share=(ds["pair_share"] * parts).assign_attrs(ds["pair_share"].attrs))
    whole, summed = (as_json(figures.pair_map(d))["data"][0] for d in (ds, split))
    np.testing.assert_allclose(numbers(summed["z"]), numbers(whole["z"]), rtol=1e-6)


def test_pairs_without_target_or_margin_are_not_guessed(two_class: xr.DataTree) -> None:
    ds = group(two_class, "pairs_channels").assign_attrs(target="a weighted sum")
    with pytest.raises(ArgumentError, match="names no margin"):
        figures.pair_map(ds)
    (side,) = figures.directions(group(two_class, "windows"))
    np.testing.assert_allclose(
        numbers(as_json(figures.pair_map(ds, side=side))["data"][0]["z"]),
        numbers(as_json(figures.pair_map(group(two_class, "pairs_channels")))["data"][0]["z"]),
    )


def test_pair_ranking_counts_unordered_pairs() -> None:
    members = np.array([["a", "b"], ["b", "a"], ["c", "c"]]).T
    ds = xr.Dataset(
        {"pair_share": (("case", "rank"), [[3.0, -1.0, 5.0]])},
        coords={"member": (("case", "rank"), members[:1]), "member_2": (("case", "rank"), members[1:])},
    )
    table = figures.pair_ranking(ds)
    assert table.to_numpy().tolist() == [["c × c", 1, 5.0, 5.0], ["a × b", 2, 1.0, 2.0]]


@pytest.mark.parametrize("name", ["channels_bands", "windows", "waves"])
@pytest.mark.parametrize("case", [0, 7])
def test_waterfall_ends_where_the_target_is(name: str, case: int, two_class: xr.DataTree) -> None:
    ds = group(two_class, name)
    bars = as_json(figures.waterfall(ds, case))["data"][0]
    x, base = numbers(bars["x"]), numbers(bars["base"])
    target = float(ds["target"][case])
    np.testing.assert_allclose(x[-1], target, rtol=1e-6)
    np.testing.assert_allclose(x[:-1].sum(), target, atol=1e-5)
    np.testing.assert_allclose(base[1:-1], np.cumsum(x[:-2]), atol=1e-5)
    assert (base[0], base[-1]) == (0, 0)


def test_waterfall_lines_are_those_of_the_file(two_class: xr.DataTree) -> None:
    ds = group(two_class, "channels_bands")
    figure = as_json(figures.waterfall(ds, 5, top=2))
    labels, x = figure["layout"]["yaxis"]["ticktext"], numbers(figure["data"][0]["x"])
    lines = dict(zip(labels, x, strict=True))
    share = ds["share"].values[:, 5].sum(0)
    largest = np.argsort(-abs(share).ravel())[:2]
    np.testing.assert_allclose(lines["order 0"], ds["order_0"].values[5], rtol=1e-6)
    np.testing.assert_allclose(lines["bias"], ds["source_share"].values[:, 5, 0].sum(), rtol=1e-6)
    np.testing.assert_allclose(lines["remainder"], ds["remainder"].values[5], rtol=1e-6)
    np.testing.assert_allclose(x[2:4], share.ravel()[largest], rtol=1e-6)
    np.testing.assert_allclose(lines["other 34 parts"], share.sum() - share.ravel()[largest].sum(), atol=1e-5)


def test_waterfall_never_hides_a_gap(two_class: xr.DataTree) -> None:
    ds = group(two_class, "windows")
    broken = ds.assign(target=ds["target"] + 0.5)
    figure = as_json(figures.waterfall(broken, 3))
    lines = dict(zip(figure["layout"]["yaxis"]["ticktext"], numbers(figure["data"][0]["x"]), strict=True))
    np.testing.assert_allclose(lines["NOT EXPLAINED"], 0.5, atol=1e-6)
    assert "NOT EXPLAINED" not in as_json(figures.waterfall(ds, 3))["layout"]["yaxis"]["ticktext"]


def test_waterfall_and_bars_of_a_stack_show_its_layers(deep: xr.DataTree) -> None:
    ds = group(deep, "waves")
    bars = numbers(as_json(figures.waterfall(ds, 4))["data"][0]["x"])
    np.testing.assert_allclose(bars[:-1].sum(), bars[-1], atol=1e-4)
    figure = as_json(figures.layer_account(ds))
    lines = dict(zip(figure["layout"]["yaxis"]["ticktext"], numbers(figure["data"][0]["x"]), strict=True))
    np.testing.assert_allclose(
        lines["layer 3: waves"], abs(ds["layer_share"].values[:, 2].sum((1, 2))).mean(), rtol=1e-6
    )
    np.testing.assert_allclose(
        lines["encoder&#x27;s residual stream"], abs(ds["residual_share"].values).mean(), rtol=1e-6
    )
    assert next(iter(lines)) == "encoder&#x27;s residual stream"
    signed = as_json(figures.layer_account(ds, "difference"))
    lines = dict(zip(signed["layout"]["yaxis"]["ticktext"], numbers(signed["data"][0]["x"]), strict=True))
    skip, label = ds["layer_skip_share"].values[:, 0].sum(1), ds["label"].values
    np.testing.assert_allclose(
        lines["layer 1: skip"], skip[label == "negativity"].mean() - skip[label == "positivity"].mean(), atol=1e-6
    )


def test_accuracies_stand_beside_baselines(two_class: xr.DataTree) -> None:
    summary, baselines = group(two_class, "summary"), group(two_class, "baselines")
    names, dots = as_json(figures.accuracy_by_order(summary, baselines))["data"]
    model = float(summary["model_accuracy"])
    expected = [*summary["accuracy"].values, model, 0.94, 0.86, 0.85, 0.78, 0.5]
    np.testing.assert_allclose(numbers(dots["x"]), expected, atol=1e-6)
    assert names["text"][0] == f"order 1 · {100 * float(summary['relative_accuracy'][0]):.0f} % of the model"
    assert names["text"][3] == "best two channel means (hindsight)"
    assert [colour == "#ffffff" for colour in dots["marker"]["color"]] == [k == 3 for k in range(8)]


def test_without_labels_agreement_is_drawn(two_class: xr.DataTree) -> None:
    summary = group(two_class, "summary")[["agreement"]]
    figure = as_json(figures.accuracy_by_order(summary))
    np.testing.assert_allclose(numbers(figure["data"][1]["x"]), summary["agreement"].values, atol=1e-6)
    assert figure["layout"]["xaxis"]["title"]["text"] == "agreement with the model"


def test_signals_keep_peaks_and_leave_out_padding(two_class: xr.DataTree) -> None:
    inputs = group(two_class, "inputs")
    case = int(inputs["case"].values[3])
    drawn = as_json(figures.signals(inputs, case))["data"]
    assert len(drawn) == 6
    assert len(numbers(drawn[0]["y"])) == 896 * 3 // 4
    long = np.random.default_rng(0).normal(size=(1, 1, 5000))
    long[0, 0, 1234] = 99.0
    dataset = xr.Dataset({"signal": (("case", "channel", "time"), long, {"units": "V"})}, coords={"case": [4]})
    trace = as_json(figures.signals(dataset, 4))["data"][0]
    peak = int(np.argmax(numbers(trace["y"])))
    assert numbers(trace["x"])[peak] == 1234
    assert len(numbers(trace["x"])) <= 800


@pytest.mark.parametrize(
    ("units", "rate", "signal", "words"),
    [
        ("s", 4.0, "uV", r"time \(s\) · rows [\d.]+ uV apart"),
        ("steps", "unknown", "as in the data", r"time \(steps\) · rows [\d.]+ apart"),
    ],
)
def test_signals_have_the_units_that_the_file_states(units: str, rate: object, signal: str, words: str) -> None:
    values = np.random.default_rng(0).normal(size=(1, 2, 9))
    dataset = xr.Dataset(
        {"signal": (("case", "channel", "time"), values, {"units": signal})},
        coords={"case": [0], "time": ("time", np.arange(9.0), {"units": units})},
        attrs={"sampling_rate": rate},
    )
    title = as_json(figures.signals(dataset, 0))["layout"]["xaxis"]["title"]["text"]
    assert re.fullmatch(words, title), title


def test_frequencies_of_an_unknown_rate_are_not_called_hertz() -> None:
    bare = {"band": [0, 1]}
    assert frequency_units(xr.Dataset(coords=bare, attrs={"sampling_rate": "unknown"})) == "cycles per step"
    assert frequency_units(xr.Dataset(coords=bare, attrs={"sampling_rate": 128.0})) == "Hz"


def test_text_uses_only_entities_that_plotly_decodes() -> None:
    # svg_text_utils of plotly.js: these by name, all others by number
    named = {"amp", "lt", "gt", "nbsp", "times", "plusmn", "deg", "mu"}
    escaped = text(HOSTILE + "'")
    assert set(re.findall(r"&([a-z]+);", escaped)) <= named
    assert html.unescape(escaped) == HOSTILE + "'"


def test_windows_keep_the_half_percent_that_tells_eighths_apart() -> None:
    edges = np.linspace(0, 1, 9)
    coords = {"window_start": ("window", edges[:-1]), "window_stop": ("window", edges[1:])}
    labels = part_labels(xr.Dataset(coords={"window": range(8), **coords}), "window")
    assert labels[:2] == ["0–12.5 %", "12.5–25 %"]
    assert labels[-1] == "87.5–100 %"


def test_names_become_text_in_every_figure() -> None:
    tree = synthetic_results.two_class(
        channels=[f"{HOSTILE}{k}" for k in range(6)], classes=(HOSTILE, HOSTILE + "2"), n_cases=20
    )
    waves, inputs = group(tree, "waves"), group(tree, "inputs")
    baselines = group(tree, "baselines")
    baselines = baselines.assign_coords(baseline=[HOSTILE + str(k) for k in range(5)])
    drawn = [
        figures.accuracy_by_order(group(tree, "summary"), baselines),
        figures.share_map(group(tree, "channels_bands")),
        figures.share_course(group(tree, "windows")),
        figures.share_bars(
            group(tree, "channels_bands")[["target", "logits"]].assign(
                share=group(tree, "channels_bands")["share"].sum("band")
            )
        ),
        figures.wave_scatter(waves),
        figures.pair_map(group(tree, "pairs_channels")),
        figures.signals(inputs, int(inputs["case"][0])),
        figures.waterfall(group(tree, "channels_bands"), 0),
    ]
    for figure in drawn:
        content = json.dumps(as_json(figure))
        assert not re.search(r"<(?!br>|b>|/b>|extra>|/extra>)", content), figure.data[0].type
        # A template must hold no name: Plotly would replace %{...} inside it.
        for trace in as_json(figure)["data"]:
            assert "img" not in trace.get("hovertemplate", "") + trace.get("texttemplate", "")
    shown = json.dumps(as_json(drawn[1]))
    assert "&lt;/script&gt;&lt;img src=x onerror" in shown


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: figures.share_map(group(t, "channels_bands"), 3), "order=3: this result holds sum, 1, 2, full"),
        (
            lambda t: figures.share_map(group(t, "channels_bands"), measure="median"),
            "measure='median': choose one of difference",
        ),
        (lambda t: figures.share_map(group(t, "windows")), r"parts along \(window\); two dimensions"),
        (lambda t: figures.share_course(group(t, "waves")), r"parts along \(feature, wave\); one dimension"),
        (lambda t: figures.share_map(group(t, "channels_bands"), toward="nobody"), "toward='nobody'"),
        (lambda t: figures.waterfall(group(t, "windows"), 10_000), "case=10000: this result does not hold it"),
        (lambda t: figures.pair_ranking(group(t, "pairs_channels")), "use pair_map"),
        (lambda t: figures.accuracy_by_order(xr.Dataset()), "neither accuracies nor agreement"),
    ],
)
def test_impossible_requests_get_a_sentence(call: Any, words: str, two_class: xr.DataTree) -> None:
    with pytest.raises(ArgumentError, match=words):
        call(two_class)


def test_a_ranking_cannot_be_drawn_as_a_map(four_class: xr.DataTree) -> None:
    with pytest.raises(ArgumentError, match="use pair_ranking"):
        figures.pair_map(group(four_class, "pairs_channels_bands"))
