"""The section on rays says the numbers of its result, first and in words."""

import json

import numpy as np
import pytest
import xarray as xr

from oplens.explanation import CentredLogits, Margin, expand
from oplens.explanation.rays.homogeneous import convergence
from oplens.explanation.rays.rays import ray
from oplens.figures.style import number, significant
from oplens.report.blocks import Limits
from oplens.report.rays import decides_alike, ray_section
from ray_oracles import ray_cases, ray_model

OP = expand(ray_model(2, drive=0.5), ray_cases(7))
CASES = ray_cases(3, (12, 9, 15, 11, 10))


def with_radii(ds, op=OP, cases=CASES):
    radii = convergence(op, cases)
    both = {name: radii[name] for name in ("convergence_radius", "growth_radius")}
    return ds.assign(both).assign_coords(nearest=radii["nearest"])


def test_absent_group_gives_no_section():
    assert ray_section(xr.DataTree.from_dict({"/": xr.Dataset()}), Limits()) == []


def test_findings_hold_the_numbers():
    ds = with_radii(ray(OP, CASES, 6, target=CentredLogits()))
    (section,) = ray_section(xr.DataTree.from_dict({"/ray": ds}), Limits())
    error = ds["ray_error"].values.max(-1)
    size = np.median(np.abs(ds["target"].values).max(-1))
    first, second, third = section.findings
    assert f"degree 6 in the position follows the whole model to {number(np.median(error[6]))} logit units" in first
    assert f"worst case {number(error[6].max())})" in first
    assert f"measures {number(size)}" in first
    assert f"A straight line misses {number(np.median(error[1]))} ({100 * np.median(error[1]) / size:.0f} %" in second
    radius = ds["convergence_radius"].values
    short = radius[radius <= 1]
    assert 0 < len(short) < 5
    assert f"reaches {len(short)} of the 5 cases" in third
    assert significant(short.min()) in third
    assert [picture.id for picture in section.pictures] == ["ray-error", "ray-course", "ray-radii"]
    rows = section.tables[0].rows
    assert [row[0] for row in rows] == [str(k) for k in range(7)]
    assert [row[2] for row in rows] == [number(error[k].max()) for k in range(7)]


@pytest.mark.parametrize("target", [CentredLogits(), Margin("z", "x")])
def test_agreement_is_counted_at_the_case(target):
    ds = ray(OP, CASES, 4, target=target)
    terms, values = ds["ray_order"].values, ds["target"].values
    for k, share in enumerate(decides_alike(ds)):
        cut = terms[: k + 1].sum(0)
        same = cut.argmax(-1) == values.argmax(-1) if target.per_class else np.sign(cut) == np.sign(values)
        assert share == pytest.approx(same.mean())
    (section,) = ray_section(ds, Limits())
    assert section.tables[0].header[3] == ("same decisions" if target.per_class else "same sign")


def test_the_drawn_cases_are_the_worst_the_median_and_the_best():
    ds = ray(OP, CASES, 4, y=["x", "y", "z", "x", "y"])
    order = np.argsort(ds["ray_error"].values[-1].max(-1))
    (section,) = ray_section(ds, Limits())
    options = section.switch.choices[0].options
    assert list(options) == [str(order[2]), str(order[4]), str(order[0])]
    assert options[str(order[4])] == f"case {order[4]} (largest miss, {ds['label'].values[order[4]]})"
    assert set(section.pictures[1].variants) == set(options)
    (small,) = ray_section(ds, Limits(variants=1))
    assert small.switch is None
    assert list(small.pictures[1].variants) == [""]
    (single,) = ray_section(ray(OP, CASES[:1], 1), Limits())
    assert single.switch is None


def test_series_that_converge_are_said_to():
    op = expand(ray_model(2, drive=0.02), ray_cases(7))
    (section,) = ray_section(with_radii(ray(op, CASES, 4), op), Limits())
    assert "converges on the whole way of every case (radius at least" in section.findings[2]
    plain = expand(ray_model(1, architecture="plain", drive=0.5), ray_cases(7))
    (section,) = ray_section(with_radii(ray(plain, CASES, 4), plain), Limits())
    assert "(radius without limit)" in section.findings[2]
    far = [CASES[0], 30 * CASES[1]]
    (grown,) = ray_section(with_radii(ray(plain, far, 4), plain, far), Limits())
    assert grown.findings[2].startswith("In 1 of the 2 cases the power series converges in the end")
    assert [picture.id for picture in section.pictures] == ["ray-error", "ray-course"]


def test_pictures_are_json_without_infinities():
    ds = ray(OP, CASES, 4)
    for source in (ds, ds.assign(ray_error=0 * ds["ray_error"])):
        for picture in ray_section(with_radii(source), Limits())[0].pictures:
            for variant in picture.variants.values():
                json.dumps(json.loads(variant.to_json()), allow_nan=False)
