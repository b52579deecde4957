"""Certificate figures draw the numbers of the result, and nothing that is not one."""

import base64
import json

import numpy as np
import pytest

from oplens.errors import ArgumentError
from oplens.figures.certificates import certified_fraction, robust_radii, rounded_down
from synthetic_certificates import ORDERS, RADII, certificates

HOSTILE = '</script><img src=x onerror=alert(1)>%{x}<b>"&'


def numbers(value):
    if isinstance(value, dict):
        return np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]))
    return np.asarray(value)


def traces(figure):
    return json.loads(figure.to_json())["data"]


def share_at(trace, radius):
    """Value of a staircase that first falls and then goes on: that of the first point at or beyond the radius."""
    x, y = numbers(trace["x"]), numbers(trace["y"])
    assert trace["line"]["shape"] == "vh"
    return float(y[np.searchsorted(x, radius)])


def test_staircases_are_the_shares_of_cases_at_every_radius():
    ds = certificates()
    flipped, robust = traces(certified_fraction(ds))[:2]
    for radius in (0.0051, 0.0099, 0.0203, 0.0333):
        assert share_at(robust, radius) == pytest.approx(100 * (ds.robust_radius.values >= radius).mean(), abs=1e-4)
        assert share_at(flipped, radius) == pytest.approx(100 * (ds.flipped_radius.values >= radius).mean(), abs=1e-4)


def test_orders_fall_with_every_cases_own_radius_from_what_holds_at_the_cases_themselves():
    ds = certificates()
    figure = certified_fraction(ds)
    lines = traces(figure)[2:]
    assert [line["name"] for line in lines] == ["order 1", "orders 1–2", "orders 1–8"]
    axis = figure.layout.xaxis
    left = min(axis.tickvals)
    for k in range(len(ORDERS)):
        x, y = numbers(lines[k]["x"]), numbers(lines[k]["y"])
        assert x[0] == pytest.approx(left)
        assert y[0] == pytest.approx(100 * ds.certified_fraction.values[k][0])
        for radius in (0.0051, 0.0099, 0.0203):
            assert y[np.searchsorted(x, radius)] == pytest.approx(
                100 * (ds.truncated_radius.values[k] >= radius).mean()
            )
        assert x[-1] == pytest.approx(RADII[-1], rel=1e-6)  # nothing is known beyond
    assert axis.ticktext[list(axis.tickvals).index(left)] == "0"
    assert left < RADII[1]
    assert axis.title.text == "radius (standard deviations)"


def test_without_radius_zero_no_tick_says_so():
    ds = certificates().isel(radius=slice(1, None))
    assert "0" not in certified_fraction(ds).layout.xaxis.ticktext


def test_every_case_has_its_line_right_and_wrong_ones_apart():
    ds = certificates()
    figure = robust_radii(ds)
    data = traces(figure)
    wrong = ds.label.values != ds.predicted.values
    assert wrong.sum() == 4
    for (lines, certified, flips), keep in zip((data[:3], data[3:]), (~wrong, wrong), strict=True):
        robust, flipped = ds.robust_radius.values[keep], ds.flipped_radius.values[keep]
        np.testing.assert_allclose(numbers(certified["x"]), np.sort(robust)[::-1], rtol=1e-6)
        assert sorted(numbers(flips["x"])) == pytest.approx(
            sorted(flipped[flipped <= 10 ** figure.layout.xaxis.range[1]]), rel=1e-6
        )
        x, y = numbers(lines["x"]).reshape(-1, 3), numbers(lines["y"]).reshape(-1, 3)
        np.testing.assert_allclose(x[:, 0], np.sort(robust)[::-1], rtol=1e-6)
        np.testing.assert_allclose(y[:, 0], numbers(certified["y"]))
        assert np.isnan(x[:, 2]).all()
    assert max(numbers(data[1]["y"])) < min(numbers(data[4]["y"]))
    headings = [note.text for note in figure.layout.annotations]
    for words, keep in (("right decisions (36)", ~wrong), ("wrong decisions (4)", wrong)):
        half = np.median(ds.robust_radius.values[keep])
        (shown,) = [heading.split()[-1] for heading in headings if heading.startswith(f"{words}: half hold to ")]
        assert half * 0.99 < float(shown) <= half


def test_without_labels_all_cases_stand_together():
    figure = robust_radii(certificates(labelled=False))
    (heading,) = figure.layout.annotations
    assert heading.text.startswith("40 cases")
    assert len(traces(figure)) == 3


def test_many_cases_are_thinned_evenly_in_the_order_of_their_radii():
    ds = certificates(labelled=False)
    shown = numbers(traces(robust_radii(ds, most=10))[1]["x"])
    ranked = np.sort(ds.robust_radius.values)[::-1]
    np.testing.assert_allclose(shown, ranked[np.linspace(0, 39, 10).astype(int)], rtol=1e-6)


@pytest.mark.parametrize("draw", [certified_fraction, robust_radii])
def test_names_are_shown_letter_by_letter(draw):
    ds = certificates(names=(HOSTILE, "b"), units="<i>units</i>")
    shown = json.dumps(json.loads(draw(ds).to_json()), ensure_ascii=False)
    assert "<img" not in shown
    assert "<i>" not in shown
    assert "%{x}<b>" not in shown


def test_decisions_that_all_hold_or_never_do_are_drawn():
    ds = certificates(labelled=False)
    never = ds.assign(robust_radius=0 * ds.robust_radius, flipped_radius=ds.flipped_radius.where(False, np.inf))
    never["truncated_radius"] = 0 * ds.truncated_radius
    for draw in (certified_fraction, robust_radii):
        text = draw(never).to_json()
        assert "Infinity" not in text
        json.loads(text)


def test_certified_sizes_are_never_rounded_up():
    for value in (*np.random.default_rng(0).uniform(0, 1, 2000) ** 6, 1.0, 0.1, 0.3, 1e-5, 123.4):
        shown = float(rounded_down(value).replace("−", "-"))
        assert value * 0.989 <= shown <= value


def test_no_case_is_a_sentence():
    with pytest.raises(ArgumentError, match="no case"):
        robust_radii(certificates().isel(case=slice(0, 0)))
