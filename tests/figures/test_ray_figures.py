"""Ray figures show the numbers of the result: every drawn value is recomputed by plain indexing, curves by numpy's polynomials."""

import base64
import json
import re

import numpy as np
import pytest
from numpy.polynomial import Chebyshev

from oplens.errors import ArgumentError
from oplens.explanation import CentredLogits, Margin, expand
from oplens.explanation.rays.homogeneous import convergence
from oplens.explanation.rays.rays import ray
from oplens.figures import rays as figures
from ray_oracles import ray_cases, ray_model

HOSTILE = '<img src=x onerror=alert(1)>%{x}"&'
OP = expand(ray_model(2, drive=0.5), ray_cases(7))
CASES = ray_cases(3, (12, 9, 15, 11, 10))
CENTRED = ray(OP, CASES, 6, target=CentredLogits(), y=["x", "y", "z", "x", "y"])
MARGIN = ray(OP, CASES, 6, target=Margin("z", "x"))
RADII = convergence(OP, CASES)


def as_json(figure):
    return json.loads(figure.to_json())


def numbers(value):
    """What a browser decodes: plotly writes typed arrays as base64."""
    return (
        np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"]))
        if isinstance(value, dict)
        else value
    )


@pytest.mark.parametrize("ds", [CENTRED, MARGIN])
def test_errors_are_quantiles_over_cases_of_the_worst_class(ds):
    error = ds["ray_error"].values
    error = error.max(-1) if error.ndim == 3 else error  # (order, case)
    low, high, worst, median = as_json(figures.ray_error(ds))["data"]
    for trace, expected in ((low, np.quantile(error, 0.1, axis=1)), (high, np.quantile(error, 0.9, axis=1))):
        np.testing.assert_allclose(numbers(trace["y"]), expected, rtol=1e-6)
    np.testing.assert_allclose(numbers(worst["y"]), error.max(1), rtol=1e-6)
    np.testing.assert_allclose(numbers(median["y"]), np.median(error, axis=1), rtol=1e-6)
    np.testing.assert_array_equal(numbers(median["x"]), np.arange(7))
    layout = as_json(figures.ray_error(ds))["layout"]
    size = np.abs(ds["target"].values)
    size = np.median(size.max(-1) if size.ndim == 2 else size)
    assert layout["shapes"][0]["y0"] == pytest.approx(size)
    assert layout["annotations"][0]["y"] == pytest.approx(
        np.log10(size)
    )  # annotations of logarithmic axes are in decades
    assert layout["yaxis"]["type"] == "log"


def test_an_error_of_zero_can_be_drawn():
    drawn = as_json(figures.ray_error(MARGIN.assign(ray_error=0 * MARGIN["ray_error"])))["data"]
    assert min(numbers(drawn[3]["y"])) > 0


@pytest.mark.parametrize(
    ("ds", "toward", "index"), [(MARGIN, None, None), (CENTRED, "y", 1), (CENTRED, None, "predicted")]
)
def test_a_course_has_the_models_passes_and_the_cut_expansions(ds, toward, index):
    case = 3
    row = ds.isel(case=case)
    if index == "predicted":
        index = int(np.argmax(row["logits"].values))
    row = row if index is None else row.isel({"class": index})
    *lines, dots = as_json(figures.ray_course(ds, case, toward))["data"]
    np.testing.assert_allclose(numbers(dots["x"]), row["position"].values, atol=1e-7)
    np.testing.assert_allclose(numbers(dots["y"]), row["model_course"].values, rtol=1e-6, atol=1e-7)
    assert [line["name"] for line in lines] == ["up to order 1", "up to order 2", "up to order 6"]
    for line, order in zip(lines, (1, 2, 6), strict=True):
        expected = Chebyshev(row["ray_order"].values[: order + 1], domain=[0, 1])(np.asarray(numbers(line["x"]), float))
        np.testing.assert_allclose(numbers(line["y"]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("order", "names"), [(1, ["up to order 1"]), (2, ["up to order 1", "up to order 2"])])
def test_low_orders_are_drawn_once(order, names):
    drawn = as_json(figures.ray_course(ray(OP, CASES[:2], order), 0))["data"]
    assert [trace["name"] for trace in drawn] == [*names, "model"]


def test_radii_are_sorted_and_say_what_ends_them():
    figure = as_json(figures.convergence_radii(RADII))
    radius, nearest = RADII["convergence_radius"].values, RADII["nearest"].values.astype(str)
    order = np.argsort(radius)
    seen = 0
    for trace in figure["data"]:
        kind = {"a gate ends it": "gate", "a LayerNorm's scale ends it": "LayerNorm"}[trace["name"]]
        mine = [k for k in order if nearest[k].startswith(kind)]
        np.testing.assert_allclose(numbers(trace["x"]), radius[mine], rtol=1e-6)
        np.testing.assert_allclose(numbers(trace["y"]), [100 * (1 + list(order).index(k)) / 5 for k in mine], rtol=1e-6)
        assert all(f"case {k}: " in words for k, words in zip(mine, trace["customdata"], strict=True))
        seen += len(mine)
    assert seen == 5
    assert figure["layout"]["shapes"][0]["x0"] == 1
    low, high = figure["layout"]["xaxis"]["range"]
    assert low < np.log10(radius.min())
    assert high > max(0, np.log10(radius.max()))


def test_cases_without_a_singularity_are_counted_but_have_no_dot():
    values = RADII["convergence_radius"].values.copy()
    values[2] = np.inf
    radii = RADII.assign(convergence_radius=("case", values))
    drawn = as_json(figures.convergence_radii(radii))["data"]
    y = np.concatenate([numbers(trace["y"]) for trace in drawn])
    np.testing.assert_allclose(sorted(y), [20, 40, 60, 80])
    values[:] = np.inf
    with pytest.raises(ArgumentError, match="no case here has a singularity"):
        figures.convergence_radii(RADII.assign(convergence_radius=("case", values)))


def test_names_become_text():
    hostile = CENTRED.assign_coords({"class": [HOSTILE, "b", "c"]})
    content = json.dumps(as_json(figures.ray_course(hostile, 0, HOSTILE)))
    assert not re.search(r"<(?!br>|b>|/b>|extra>|/extra>)", content)
    content = json.dumps(as_json(figures.ray_course(MARGIN.assign_attrs(target=HOSTILE), 0)))
    assert not re.search(r"<(?!br>|b>|/b>|extra>|/extra>)", content)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: figures.ray_course(CENTRED, 17), "case=17: this result does not hold it; it holds 5 cases"),
        (lambda: figures.ray_course(CENTRED, 0, "w"), "toward='w': choose one of x, y, z"),
    ],
)
def test_impossible_requests_get_a_sentence(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
