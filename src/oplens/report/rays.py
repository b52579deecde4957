"""The way from a baseline to each case, as a section: how straight the model is on it, and how far a power series reaches."""

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from oplens.figures.rays import convergence_radii, ray_course, ray_error, target_size
from oplens.figures.style import number, significant
from oplens.report.blocks import Limits, Picture, Section, Table, group, switched

COURSES = 3  # ways drawn: the one followed best, a middling one, the one followed worst


def ray_section(results: xr.DataTree | xr.Dataset, limits: Limits) -> list[Section]:
    """The group `/ray`, or what `op.ray` returns; [] without the group.

    Parameters
    ----------
    results
        Where the Dataset also holds what `op.convergence` returns, what homogeneous orders can do is told too.
    limits
        Smaller pages draw fewer cases.
    """
    ray = group(results, "ray")
    if ray is None:
        return []
    switch, keys = switched("ray", {"case": _cases(ray, min(COURSES, limits.cases, limits.variants))})
    start = str(ray.attrs.get("ray_start", "a baseline"))
    pictures = [
        Picture(
            "ray-error",
            "How fast the expansion closes in",
            "Largest miss of the expansion cut after each order, over all positions on the way and of all classes; band: the middle 80 % "
            "of cases. Claim: measured.",
            {"": ray_error(ray)},
        ),
        Picture(
            "ray-course",
            "The target on the way",
            f"From the baseline ({start}) to the case, dots are passes of the model itself (claim: exact), lines the expansion cut "
            "after an order (claim: truncated).",
            {key: ray_course(ray, int(case)) for key, (case,) in keys.items()},
            switch.id if switch else None,
        ),
    ]
    findings = _findings(ray, start)
    if "convergence_radius" in ray:
        findings += _radius_findings(ray)
        if np.isfinite(ray["convergence_radius"].values).any():
            pictures.append(
                Picture(
                    "ray-radii",
                    "How far a power series reaches",
                    "One dot per case: the distance from the baseline to the nearest complex position where a LayerNorm's scale or a gate "
                    "stops being analytic. Left of the line, homogeneous orders do not sum to the target. Claim: measured.",
                    {"": convergence_radii(ray)},
                )
            )
    return [
        Section(
            "ray",
            "Ray",
            "How bent is the way to a decision?",
            findings=findings,
            switch=switch,
            pictures=pictures,
            tables=[_table(ray)],
            notes=[
                "Orders here are degrees of a polynomial in the position on the way, for the model as a whole; they are not split into "
                "waves or channels. Order 0 is the mean of the way (weighed towards its ends), order 1 its slope, order 2 its bend."
            ],
        )
    ]


def decides_alike(ray: xr.Dataset) -> NDArray[np.float64]:
    """Return the share of cases that the expansion cut after each order decides as the model, (order,)."""
    cut, target = ray["ray_order"].cumsum("order"), ray["target"]
    per_class = "class" in target.dims
    alike = cut.argmax("class") == target.argmax("class") if per_class else (cut > 0) == (target > 0)
    return np.asarray(alike.transpose("order", "case").values.mean(1))


def _misses(ray: xr.Dataset) -> NDArray[np.float64]:
    """Largest miss of every order and case, (order, case)."""
    error = ray["ray_error"]
    error = error.max("class") if "class" in error.dims else error
    return np.asarray(error.transpose("order", "case").values)


def _cases(ray: xr.Dataset, count: int) -> dict[str, str]:
    """The cases to draw, by how well the last order follows them."""
    ranked = np.argsort(_misses(ray)[-1])
    picks: dict[int, str] = {}
    for place, words in ((len(ranked) // 2, "median miss"), (-1, "largest miss"), (0, "smallest miss")):
        picks[int(ranked[place])] = words
    found = {}
    for k, words in list(picks.items())[: max(count, 1)]:
        label = f", {ray['label'].values[k]}" if "label" in ray.coords else ""
        found[str(ray["case"].values[k])] = f"case {ray['case'].values[k]} ({words}{label})"
    return found


def _findings(ray: xr.Dataset, start: str) -> list[str]:
    misses, size, alike = _misses(ray), target_size(ray), decides_alike(ray)
    last = len(misses) - 1
    middle = np.median(misses, axis=1)
    found = [
        f"On the straight way from the {start} to a case, a polynomial of degree {last} in the position follows the whole model to "
        f"{number(float(middle[-1]))} logit units (median of the largest misses; worst case {number(float(misses[-1].max()))}), where "
        f"the target measures {number(size)}."
    ]
    straight = f"A straight line misses {number(float(middle[1]))} ({_percent(middle[1] / size)} of the target)"
    if last >= 2:
        straight += f", with a bend (order 2) {number(float(middle[2]))} ({_percent(middle[2] / size)})"
    words = f"{straight}. Cut after order 1 it {_alike_words(ray)[1]} the model's in {_percent(alike[1])} of the cases"
    found.append(words + (f", after order 2 in {_percent(alike[2])}." if last >= 2 else "."))
    return found


def _alike_words(ray: xr.Dataset) -> tuple[str, str]:
    """A margin of two among more classes has a sign, but decides nothing."""
    if "class" in ray["target"].dims or ray.sizes.get("class", 2) == 2:
        return "same decisions", "makes decisions that are"
    return "same sign", "has a sign that is"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < share < 0.02 else f"{100 * share:.0f} %"


def _radius_findings(ray: xr.Dataset) -> list[str]:
    radius, nearest = ray["convergence_radius"].values, ray["nearest"].values.astype(str)
    short = radius <= 1
    growing = ~short & (ray["growth_radius"].values <= 1) if "growth_radius" in ray else np.zeros_like(short)
    found = []
    if short.any():
        low, high = (significant(float(v)) for v in (radius[short].min(), radius[short].max()))
        norms, count = int(np.char.startswith(nearest[short], "LayerNorm").sum()), int(short.sum())
        span = f"{low} to {high}" if low != high else low
        ends = [f"{words} in {n}" for words, n in (("a LayerNorm's scale", norms), ("a gate", count - norms)) if n]
        found.append(
            f"A power series about the baseline diverges before it reaches {count} of the {len(radius)} cases: its radius there is {span} "
            f"of the way. What ends it is {' and '.join(ends)} of them. These cases have no homogeneous orders; the expansion above needs "
            "no such radius."
        )
    if growing.any():
        found.append(
            f"In {int(growing.sum())} of the {len(radius)} cases the power series converges in the end, but its orders still grow at the "
            "highest that was computed: they sum to nothing of use."
        )
    if not found:
        finite = radius[np.isfinite(radius)]
        least = f"at least {significant(float(finite.min()))}" if finite.size else "without limit"
        found.append(
            f"A power series about the baseline converges on the whole way of every case (radius {least}): homogeneous orders exist."
        )
    return found


def _table(ray: xr.Dataset) -> Table:
    misses, alike = _misses(ray), decides_alike(ray)
    rows = [
        [
            str(order),
            number(float(np.median(misses[k]))),
            number(float(misses[k].max())),
            _percent(alike[k]),
        ]
        for k, order in enumerate(ray["order"].values)
    ]
    return Table(
        "The expansion cut after each order: its largest miss on the way, and how often it agrees with the model at the case itself.",
        ["order", "median miss", "worst miss", _alike_words(ray)[0]],
        rows,
        frozenset({0, 1, 2, 3}),
    )
