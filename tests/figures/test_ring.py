"""Ring figures show the numbers of the group: frames, paths and panels recomputed from invented rings by plain formulas."""

import base64
import json
import math

import numpy as np
import pytest
import xarray as xr

from oplens.errors import ArgumentError
from oplens.figures.ring import COLUMNS, FRAMES, ring_animation, space_time
from oplens.figures.ring_waves import coupling_profile, dispersion
from synthetic_rings import invented_ring


def as_json(figure):
    return json.loads(figure.to_json())


def numbers(value):
    """What a browser decodes: plotly writes typed arrays as base64."""
    if isinstance(value, dict):
        flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]))
        return flat.reshape([int(n) for n in value["shape"].split(",")]) if "shape" in value else flat
    return np.asarray(value, dtype=float)


def passing(ds, feature):
    """Sites in the order of passing: 0, N - 1, N - 2, ... where the speed is negative."""
    N = ds.sizes["site"]
    forward = float(ds["velocity"].sel(feature=feature)) > 0
    return [j if forward else (N - j) % N for j in range(N)]


def test_frames_are_the_envelope_at_their_time():
    ds = invented_ring()
    for case, feature in ((7, 2), (3, 5)):
        figure = as_json(ring_animation(ds, case, feature))
        envelope = ds["envelope"].sel(case=case, feature=feature).values[passing(ds, feature)]
        time = ds["time"].values
        valid = np.isfinite(envelope).all(0).sum()
        stop = min(valid, math.ceil(round(4 * float(ds["revolution"].sel(feature=feature)) / time[1], 9)))
        stride = math.ceil(stop / FRAMES)
        steps = range(0, stop, stride)
        assert len(figure["frames"]) == len(steps) <= FRAMES
        largest = envelope[:, steps].max()
        for frame, step in zip(figure["frames"], steps, strict=True):
            assert frame["traces"] == [1, 2, 4, 5]
            sites, _, cursor, words = frame["data"]
            np.testing.assert_allclose(sites["marker"]["color"], 100 * envelope[:, step] / largest, atol=0.5)
            sizes = np.array(sites["marker"]["size"], dtype=float)
            np.testing.assert_allclose(sizes, 4 + 13 * envelope[:, step] / largest, atol=0.57)
            np.testing.assert_allclose(cursor["x"], [time[step]] * 2, atol=1e-5)
            assert words["text"] == [frame["name"]]
            assert float(frame["name"].split()[0]) == pytest.approx(time[step], abs=time[1] / 2)
        assert len({frame["name"] for frame in figure["frames"]}) == len(steps)
        start = figure["layout"]["meta"]["frame"]
        assert start == np.argmax([np.sum(np.square(f["data"][0]["marker"]["color"])) for f in figure["frames"]])
        first = figure["data"]
        assert first[1]["marker"]["color"] == figure["frames"][start]["data"][0]["marker"]["color"]
        assert first[5]["text"] == [figure["frames"][start]["name"]]
        angle = 2 * np.pi * np.arange(8) / 8  # clockwise from the top, in the order of passing
        np.testing.assert_allclose(numbers(first[1]["x"]), np.sin(angle), atol=1e-6)
        np.testing.assert_allclose(numbers(first[1]["y"]), np.cos(angle), atol=1e-6)


def test_the_triangle_and_the_dashed_path_go_at_the_group_velocity():
    ds = invented_ring()
    speed = 8 / float(ds["revolution"].sel(feature=2))  # sites per second
    for frame in as_json(ring_animation(ds, 7, 2))["frames"]:
        time = frame["data"][2]["x"][0]
        place = frame["data"][1]
        turned = math.atan2(place["x"][0], place["y"][0]) % (2 * np.pi)
        gap = (turned - 2 * np.pi * speed * time / 8 + np.pi) % (2 * np.pi) - np.pi
        assert abs(gap) < 2e-3
        assert abs((place["marker"]["angle"] - math.degrees(turned) + 180) % 360 - 180) < 1
    path = as_json(space_time(ds, 7, 2))["data"][1]
    last = float(ds["time"][39])  # four revolutions of ten steps
    turns = math.ceil(last * speed / 8)
    assert len(path["x"]) == 3 * turns > 6
    for turn in range(turns):
        (x0, x1, gap), (y0, y1, _) = (path[name][3 * turn : 3 * turn + 3] for name in ("x", "y"))
        assert gap is None
        assert (x0, y0) == (pytest.approx(turn * 8 / speed), 0)
        assert x1 == pytest.approx(min((turn + 1) * 8 / speed, last))
        assert y1 == pytest.approx((x1 - x0) * speed)


def test_the_input_keeps_its_peaks_and_stays_short():
    ds = invented_ring(steps=2000, revolution=1e3)
    ds["drive"].values[0, 0, 777] = 50.0
    line = as_json(ring_animation(ds, 7, 2))["data"][3]
    x, y = numbers(line["x"]), numbers(line["y"])
    shown = ds["drive"].values[0, 0]
    assert (y.max(), y.min()) == (pytest.approx(shown.max(), abs=1e-5), pytest.approx(shown.min(), abs=1e-5))
    assert len(x) <= COLUMNS
    for time, value in zip(x, y, strict=True):
        assert value == pytest.approx(shown[round(time / float(ds["time"][1]))], abs=1e-5)


@pytest.mark.parametrize("steps", [60, 900])
def test_the_space_time_picture_is_the_envelope_in_percent(steps):
    ds = invented_ring(steps=steps, revolution=1e3)
    figure = as_json(space_time(ds, 3, 5))
    envelope = ds["envelope"].sel(case=3, feature=5).values[passing(ds, 5)]
    kept = np.arange(0, np.isfinite(envelope).all(0).sum(), math.ceil(np.isfinite(envelope).all(0).sum() / COLUMNS))
    z = numbers(figure["data"][0]["z"])
    assert figure["data"][0]["z"]["dtype"] == "u1"
    np.testing.assert_allclose(z, 100 * envelope[:, kept] / envelope[:, kept].max(), atol=0.5 + 1e-9)
    np.testing.assert_allclose(numbers(figure["data"][0]["x"]), ds["time"].values[kept], rtol=1e-6)
    axis = figure["layout"]["yaxis"]
    order = passing(ds, 5)
    assert axis["ticktext"] == [str(order[k]) for k in axis["tickvals"]]
    said = figure["layout"]["xaxis"]["title"]["text"]
    assert ("one step in" in said) == (steps > COLUMNS)
    assert "0.5 sites per step" in figure["layout"]["title"]["text"]


def test_where_nothing_travels_no_path_and_no_triangle_are_drawn():
    ds = invented_ring(revolution=float("nan"))
    assert [trace["type"] for trace in as_json(space_time(ds, 7, 2))["data"]] == ["heatmap"]
    figure = as_json(ring_animation(ds, 7, 2))
    assert all(frame["data"][1]["x"] == [] for frame in figure["frames"])
    assert len(figure["frames"]) == 60  # the whole case


def test_a_silent_ring_and_a_single_step_are_drawn():
    ds = invented_ring(steps=1)
    ds["envelope"].values[:] = 0
    ds["drive"].values[:] = 0
    assert numbers(as_json(space_time(ds, 7, 2))["data"][0]["z"]).tolist() == [[0]] * 8
    assert len(as_json(ring_animation(ds, 7, 2))["frames"]) == 1


def test_notebooks_get_controls_and_pages_bring_their_own():
    ds = invented_ring()
    own = as_json(ring_animation(ds, 7, 2))
    names = [frame["name"] for frame in own["frames"]]
    (slider,) = own["layout"]["sliders"]
    assert [step["args"][0] for step in slider["steps"]] == [[name] for name in names]
    assert slider["active"] == own["layout"]["meta"]["frame"] > 0
    assert [button["label"] for button in own["layout"]["updatemenus"][0]["buttons"]] == ["Play", "Pause"]
    bare = as_json(ring_animation(ds, 7, 2, controls=False))
    assert not {"sliders", "updatemenus"} & bare["layout"].keys()
    assert bare["frames"] == own["frames"]


def test_dispersion_shows_both_frequencies_their_difference_and_decay_times():
    ds = invented_ring()
    figure = as_json(dispersion(ds, 5))
    one = ds.sel(feature=5)
    per = float(one["dt"]) * 50.0
    before, after, change, decay_before, decay = figure["data"]
    hertz = {suffix: one["frequency" + suffix].values * per / (2 * np.pi) for suffix in ("", "_before")}
    np.testing.assert_allclose(numbers(before["y"]), hertz["_before"], rtol=1e-6)
    np.testing.assert_allclose(numbers(after["y"]), hertz[""], rtol=1e-6)
    np.testing.assert_allclose(numbers(change["y"]), one["frequency_change"].values * per / (2 * np.pi), atol=1e-5)
    np.testing.assert_allclose(numbers(decay_before["y"]), 1 / (one["decay_before"].values * per), rtol=1e-6)
    expected = 1 / (one["decay"].values * per)
    expected[1] = np.nan  # a wave that does not decay has no such time
    np.testing.assert_allclose(numbers(decay["y"]), expected, rtol=1e-6)
    assert after["marker"]["symbol"] == ["circle", "circle", "circle", "diamond-tall"]
    assert [shape["y0"] for shape in figure["layout"]["shapes"]] == [25.0]
    assert "stored mode 2, conjugate" in after["customdata"][1]
    assert figure["layout"]["yaxis"]["title"]["text"] == "frequency (Hz)"
    unknown = ds.assign_attrs(sampling_rate="unknown")
    assert as_json(dispersion(unknown, 5))["layout"]["yaxis"]["title"]["text"] == "frequency (cycles/step)"
    np.testing.assert_allclose(numbers(as_json(dispersion(unknown, 5))["data"][1]["y"]), hertz[""] / 50, rtol=1e-6)


def test_coupling_shows_weights_against_displacement():
    ds = invented_ring()
    after, before, change = as_json(coupling_profile(ds, 2))["data"]
    for trace, expected in (
        (after, ds["coupling"].values[0]),
        (before, ds["coupling_before"].values[0]),
        (change, ds["coupling"].values[0] - ds["coupling_before"].values[0]),
    ):
        assert numbers(trace["x"]).tolist() == list(range(-4, 4))
        np.testing.assert_allclose(numbers(trace["y"]), expected, atol=1e-6)


def test_what_the_ring_does_not_hold_is_refused():
    ds = invented_ring()
    for draw in (ring_animation, space_time):
        with pytest.raises(ArgumentError, match="case=0: this ring holds cases 7, 3"):
            draw(ds, 0, 2)
    for draw in (dispersion, coupling_profile):
        with pytest.raises(ArgumentError, match="feature=0: this ring holds features 2, 5"):
            draw(ds, 0)


def test_a_written_ring_is_drawn_as_the_one_in_memory(tmp_path):
    from oplens.results import read_results, write_results

    ds = invented_ring()
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "rings"}), "/ring": ds})
    read = read_results(write_results(tree, tmp_path / "ring.nc"))["ring"].to_dataset()
    for draw, arguments in (
        (ring_animation, (7, 2)),
        (space_time, (3, 5)),
        (dispersion, (5,)),
        (coupling_profile, (2,)),
    ):
        assert draw(read, *arguments).to_json() == draw(ds, *arguments).to_json()
