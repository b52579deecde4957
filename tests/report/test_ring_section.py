"""What a page says of rings, recomputed from invented ones; the pictures it holds; what it does where nothing travels."""

import dataclasses
import json

import numpy as np
import pytest
import xarray as xr

from oplens.report.blocks import Limits
from oplens.report.ring import ring_section
from synthetic_rings import invented_ring


def section(ds, limits=None):
    (found,) = ring_section(ds, limits or Limits())
    return found


def told(ds):
    return " ".join(section(ds).findings)


def test_no_ring_no_section():
    root = xr.Dataset(attrs={"title": "t"})
    assert ring_section(xr.DataTree.from_dict({"/": root}), Limits()) == []
    tree = xr.DataTree.from_dict({"/": root, "/ring": invented_ring()})
    assert section(tree).findings == section(invented_ring()).findings


def test_the_findings_give_the_numbers_of_the_first_ring_that_turns():
    ds = invented_ring(steps=40)
    words = told(ds)
    assert "a ring of 8 sites" in words
    assert "at most 4.0e−15 of their size" in words
    assert "On the ring of feature 2 an input moves 0.8 sites per step" in words
    assert "is back where it entered after 0.2 s with 14 % of its energy" in words
    assert "shares a site with what enters within 0.025 s of it" in words
    assert "peaks at every site within 0.62 steps of this" in words  # 0.2 s / 16 at 50 Hz
    still_first = ds.assign(velocity=("feature", [np.nan, 0.5]))
    assert "On the ring of feature 5 an input moves 0.5 sites" in told(still_first)
    assert "Nothing travels on the ring of feature 2:" in told(still_first)


def test_the_findings_say_how_far_training_moved_the_waves():
    ds = invented_ring()
    words = told(ds)
    assert "Training changed the speed by −20.0 to +25.0 %" in words  # factors 1.25 and 0.8 before
    hertz = ds["dt"].values[:, None] * 50 / (2 * np.pi)
    shift = np.abs(ds["frequency_change"].values) * hertz
    apart = np.diff(ds["frequency_before"].values) * hertz
    assert f"single frequencies by up to {shift.max():.3g} Hz" in words
    assert f"(median {100 * np.median(shift) / np.median(apart):.1f} % of the distance between neighbours)" in words
    factor = ds["decay_ratio"].values
    assert f"decay rates by factors of −{abs(factor.min()):.3g} to {factor.max():.3g}" in words
    assert "Of the 8 waves on these rings 1 turns faster than half the sampling rate" in words
    none = ds.assign(aliased=ds["aliased"] & False)
    assert "on these rings none turn faster" in told(none)
    one = told(ds.isel(feature=[0]))
    assert "Training changed the speed by −20.0 %," in one
    fresh = told(ds.assign(velocity_before=("feature", [np.nan, np.nan])))
    assert "Before training nothing travelled here. Training changed single frequencies" in fresh


def test_a_revolution_longer_than_the_case_and_a_ring_that_smears_are_said():
    ds = invented_ring(steps=20, revolution=3.0)
    words = told(ds)
    assert "would be back where it entered after 3 s, longer than the case (0.4 s)" in words
    assert "% of its energy" not in words
    smeared = ds.assign(lag_agreement=("feature", [0.3, 0.3]))
    assert "On the ring of feature 2 what enters does not stay together" in told(smeared)
    assert "peaks up to 9.4 steps away from where the mean speed, 0.8 sites per step, would put it" in told(smeared)
    assert "peaks at every site" not in told(smeared)
    unknown = ds.assign(lag_agreement=("feature", [np.nan, np.nan]))
    assert "impulse" not in told(unknown)
    crawling = told(ds.assign(resolution=("feature", [0.41, 0.5])))
    assert "hardly anything travels: an input would take 0.41 s from site to site, longer than the case" in crawling


@pytest.mark.parametrize(("n_modes", "why"), [(1, "one wave alone does not travel"), (4, "the waves do not turn")])
def test_where_nothing_travels_the_page_says_so(n_modes, why):
    ds = invented_ring(revolution=float("nan"), n_modes=n_modes)
    found = section(ds)
    assert f"Nothing travels on the rings of features 2, 5: {why}" in " ".join(found.findings)
    assert "sites per step" not in " ".join(found.findings)
    assert found.tables[0].rows[0][2:6] == ["–", "–", "–", "–"]
    for picture in found.pictures:
        for figure in picture.variants.values():
            assert json.loads(figure.to_json())["data"]


def test_the_table_holds_every_ring():
    ds = invented_ring()
    table = section(ds).tables[0]
    first, second = table.rows
    assert first[:7] == ["feature 2", "1.50", "0.8", "0.2", "14 %", "0.025", "0.62"]
    shift = np.abs(ds["frequency_change"].values)[1] * 0.125 * 50 / (2 * np.pi)
    assert second[7:] == ["1", f"{shift.max():.3g}", "0.004"]
    assert len(table.header) == len(first) == len(second)
    assert ds.attrs["rule"] in table.caption
    named = section(ds.drop_vars("mean_share")).tables[0]
    assert named.rows[0] == [first[0], *first[2:]]


def test_every_feature_and_case_can_be_chosen_and_smaller_pages_hold_fewer():
    found = section(invented_ring())
    assert [dict(choice.options) for choice in found.switch.choices] == [
        {"2": "feature 2", "5": "feature 5"},
        {"7": "case 7 (left)", "3": "case 3 (right)"},
    ]
    assert len(found.pictures) == 4
    for picture in found.pictures:
        assert list(picture.variants) == ["2|7", "2|3", "5|7", "5|3"]
        assert picture.switch == found.switch.id
    animation, plane, waves, weights = (picture.variants["5|3"] for picture in found.pictures)
    assert len(animation.frames) == 50  # of case 3, which is ten steps shorter
    assert not animation.layout.sliders
    assert plane.data[0].type == "heatmap"
    np.testing.assert_allclose(waves.data[2].y, found.pictures[2].variants["5|7"].data[2].y)
    assert not np.allclose(waves.data[2].y, found.pictures[2].variants["2|3"].data[2].y)
    assert not np.allclose(weights.data[0].y, found.pictures[3].variants["2|3"].data[0].y)
    small = section(invented_ring(), dataclasses.replace(Limits(), variants=1, cases=6))
    assert small.switch is None
    assert all(list(picture.variants) == [""] for picture in small.pictures)
    assert len(small.tables[0].rows) == 2


def test_large_rings_take_fewer_variants_but_at_least_one():
    ds = invented_ring()
    wide = ds.isel(site=np.arange(4096) % 8).assign_coords(site=np.arange(4096))
    assert len(section(wide).pictures[0].variants) == 1


def test_notes_say_what_was_chosen():
    (note,) = section(invented_ring()).notes
    assert "by increasing frequency, 1 of them as the conjugate that turns forwards" in note
    assert "Before training: S4D-Lin, as configured" in note
    assert "layer" not in note
    (note,) = section(invented_ring().assign_attrs(layer=1, ordering="stored")).notes
    assert "as the model stores them" in note
    assert "Rings of layer 2." in note
