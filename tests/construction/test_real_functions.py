"""What is asked of a function before anything is built from it, and the search for its largest error."""

import numpy as np
import pytest

from oplens.construction.piecewise_linear import build_piecewise_linear
from oplens.construction.real_functions import RealFunction, check_bounds, evaluate, sup_error
from oplens.errors import ArgumentError, DataError


def function(f, n=2, lipschitz=("l1", 1.0), bounds=(0.0, 1.0)):
    return RealFunction(f, n, lipschitz, bounds, "test")


# True constants of each function in each norm.
CONSTANTS = [
    (lambda x: 3 * x[:, 0] - 2 * x[:, 1], {"l1": 3.0, "l2": 13**0.5, "max": 5.0}),
    (lambda x: abs(x[:, 0] - x[:, 1]), {"l1": 1.0, "l2": 2**0.5, "max": 2.0}),
    (lambda x: x.max(1), {"l1": 1.0, "l2": 1.0, "max": 1.0}),
]


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-5.0, 40.0)])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("index", range(3))
def test_a_constant_two_percent_too_small_is_found_and_the_true_one_passes(index, norm, bounds):
    f, constants = CONSTANTS[index]
    function(f, lipschitz=(norm, constants[norm]), bounds=bounds).check_lipschitz()
    with pytest.raises(
        DataError, match=rf"f\(\[.*\]\) = .* and f\(\[.*\]\) = .* times their distance in the {norm} norm"
    ):
        function(f, lipschitz=(norm, 0.98 * constants[norm]), bounds=bounds).check_lipschitz()


def test_the_two_points_of_a_refusal_contradict_the_constant():
    target = function(lambda x: np.sin(9 * x[:, 0]) * x[:, 1], lipschitz=("l2", 5.0))
    with pytest.raises(DataError) as caught:
        target.check_lipschitz(seed=3)
    text = str(caught.value)
    points = [eval(part.split(")")[0]) for part in text.split("f(")[1:3]]
    x, y = np.array(points)
    fx, fy = (np.sin(9 * p[0]) * p[1] for p in (x, y))
    slope = abs(fx - fy) / np.linalg.norm(x - y)
    assert slope > 5.0
    assert f"{slope:.6g}" in text


def test_a_spike_that_only_nodes_see_is_refused():
    def spike(x):
        return np.where((x == 0.5).all(1), 1.0, 0.0)

    function(spike).check_lipschitz()
    with pytest.raises(DataError, match=r"0\.5.*differ by 4 times"):
        build_piecewise_linear(spike, 2, 4, ("l1", 1.0))


@pytest.mark.parametrize(
    ("f", "words"),
    [
        (
            lambda x: np.log(x[:, 0] - 0.5, where=x[:, 0] > 0.5, out=np.full(len(x), np.nan)),
            "nan at .*and not finite at",
        ),
        (lambda x: np.where(x[:, 0] > 0.9, np.inf, 0.0), "inf at"),
        (lambda x: x, r"shape \(6000, 2\)"),
        (lambda x: x[0, 0], r"shape \(\)"),
        (lambda x: x[:, 0] + 1j, "complex128"),
    ],
)
def test_values_that_are_no_real_numbers_are_refused(f, words):
    with pytest.raises(DataError, match=words):
        function(f).check_lipschitz()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 0}, "n must be a whole number"),
        ({"n": 2.0}, "n must be a whole number"),
        ({"lipschitz": ("l3", 1.0)}, "one of l1, l2, max"),
        ({"lipschitz": 1.0}, "give a pair"),
        ({"lipschitz": ("l1", -1.0)}, "at least 0"),
        ({"lipschitz": ("l1", float("nan"))}, "finite"),
        ({"bounds": (1.0, 1.0)}, "low below high"),
        ({"bounds": (0.0, float("inf"))}, "finite"),
        ({"bounds": 3.0}, "two finite numbers"),
        ({"f": 3}, "must be a function"),
    ],
)
def test_arguments_that_cannot_work_are_refused(change, words):
    with pytest.raises(ArgumentError, match=words):
        function(**{"f": lambda x: x[:, 0], **change})


def test_bounds_are_two_numbers():
    assert check_bounds("test", (-1, 2)) == (-1.0, 2.0)


@pytest.fixture(scope="module")
def model():
    return build_piecewise_linear(lambda x: x[:, 0] ** 2, 2, 2, ("l1", 4.0), (-1.0, 1.0))[0]


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ([[0.0, 1.5]], r"variable 2 is 1.5; the model was built for \[-1, 1\]"),
        ([[0.0, 0.0], [np.nan, 0.0]], "point 1, variable 1 is nan"),
        ([[0.0, 0.0, 0.0]], r"shape \(n_points, 2\), got \(1, 3\)"),
        ([0.0, 0.0], r"got \(2,\)"),
    ],
)
def test_points_the_model_is_not_certified_for_are_refused(model, points, words):
    with pytest.raises(DataError, match=words):
        evaluate(model, np.array(points), (-1.0, 1.0))


def test_no_points_give_no_values(model):
    assert evaluate(model, np.zeros((0, 2)), (-1.0, 1.0)).shape == (0,)


def test_the_search_finds_a_peak_between_the_points_of_its_grid(model):
    """abs(model - f) is at most 1/4, at x_1 = +-1/2; a bump of width .02 off every grid lifts it to 1.25 at one point."""
    peak = np.array([0.4871, -0.2113])

    def bumped(x):
        return x[:, 0] ** 2 - np.exp(-((x - peak) ** 2).sum(1) / 0.02**2)

    found = sup_error(model, bumped, (-1.0, 1.0), points=4000, seed=1)
    assert found.claim == "measured"
    x = np.array([found.point])
    assert abs(evaluate(model, x, (-1.0, 1.0)) - bumped(x))[0] == found.value
    assert np.abs(found.point - peak).max() < 1e-3
    assert found.value == pytest.approx(abs(0.4871) - 0.4871**2 + 1, abs=1e-3)
    assert 8000 < found.evaluations < 14000
