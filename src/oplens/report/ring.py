"""The rings of a few features: what travels on them, how fast, and how far training moved it."""

import math

import numpy as np
import xarray as xr

from oplens.figures.ring import COLUMNS, FRAMES, ring_animation, space_time
from oplens.figures.ring_waves import coupling_profile, dispersion
from oplens.figures.style import number, significant
from oplens.report.blocks import Limits, Picture, Section, Table, group, switched

# Features and cases shown: the most that fit the bytes a page of so many variants may spend on rings.
_SHOWN = ((3, 2), (2, 2), (2, 1), (1, 1))
TOGETHER = 0.9  # correlation of predicted and measured peaks below which an impulse is said to fall apart
_BYTES = ((36, 700_000), (9, 300_000), (0, 0))


def ring_section(results: xr.DataTree | xr.Dataset, limits: Limits) -> list[Section]:
    """Rings of the features in the group `/ring`: animation, space-time picture, dispersion and coupling; [] without the group.

    Parameters
    ----------
    results
        A result with a group `ring`, or what `op.ring` returns.
    limits
        Smaller pages show fewer features and cases; the table always holds all features.
    """
    ds = group(results, "ring")
    if ds is None:
        return []
    features, cases = _choices(ds, limits)
    switch, keys = switched("ring", {"feature": features, "case": cases})
    chosen = {key: (int(case), int(feature)) for key, (feature, case) in keys.items()}
    follows = switch.id if switch else None
    sites = ds.sizes["site"]
    pictures = [
        Picture(
            "ring-animation",
            "What goes round",
            f"The {sites} sites of a feature's ring; size and shade: abs(r+), the amplitude there. Inputs enter at the top and move with the "
            "triangle, which goes at the group velocity; at most four revolutions are shown. Below: the feature's input. Claim: "
            "exact; the triangle's speed is measured.",
            {k: ring_animation(ds, case, feature, controls=False) for k, (case, feature) in chosen.items()},
            follows,
        ),
        Picture(
            "ring-space-time",
            "The same as one picture",
            "Rising bands are inputs on their way. Dashed: the predicted path of what entered first, again after every revolution. "
            "Claim: exact; the path is measured.",
            {k: space_time(ds, case, feature) for k, (case, feature) in chosen.items()},
            follows,
        ),
        Picture(
            "ring-dispersion",
            "Waves before and after training",
            f"Lines: before training ({str(ds.attrs.get('before', '')).split(',', maxsplit=1)[0]}); dots: after. Wavenumber k turns by "
            f"(k + ½)/{sites} from site to site. A straight line of frequencies carries inputs round without smearing them; its slope is "
            "the speed. Diamonds: waves above half the sampling rate (dotted), heard at a lower frequency. Claim: exact.",
            {k: dispersion(ds, feature) for k, (_, feature) in chosen.items()},
            follows,
        ),
        Picture(
            "ring-coupling",
            "How strongly sites act on each other",
            "Bars: weight of a site on the one so many sites on, per unit of model time; ticks: before training. Across the seam between "
            "the last and the first site the sign turns. Claim: exact.",
            {k: coupling_profile(ds, feature) for k, (_, feature) in chosen.items()},
            follows,
        ),
    ]
    return [
        Section(
            "ring",
            "Ring",
            "What does a feature remember, and for how long?",
            findings=_findings(ds),
            switch=switch,
            pictures=pictures,
            notes=_notes(ds),
            tables=[_table(ds)],
        )
    ]


def _choices(ds: xr.Dataset, limits: Limits) -> tuple[dict[str, str], dict[str, str]]:
    budget = next(size for variants, size in _BYTES if limits.variants >= variants)
    # Two numbers of three characters per site and frame, a byte in base64 per site and column; the rest hardly depends on anything.
    each = ds.sizes["site"] * (6 * FRAMES + 4 * COLUMNS // 3) + 40_000
    n_features, n_cases = next((f, c) for f, c in _SHOWN if f * c * each <= budget or f * c == 1)
    features = {str(f): f"feature {f}" for f in ds["feature"].values[:n_features]}
    cases = {}
    for k, case in enumerate(ds["case"].values[: min(n_cases, limits.cases)]):
        said = f" ({ds['label'].values[k]})" if "label" in ds.coords else ""
        cases[str(case)] = f"case {case}{said}"
    return features, cases


def _findings(ds: xr.Dataset) -> list[str]:
    sites, worst = ds.sizes["site"], float(ds["ring_residual"].max())
    found = [
        f"Each hidden feature keeps its past on a ring of {sites} sites that hand it on. The ring is the model itself: read off it, the "
        f"pre-activations miss the model's by at most {number(worst)} of their size."
    ]
    moving = [k for k in range(ds.sizes["feature"]) if math.isfinite(float(ds["velocity"][k]))]
    if moving:
        found += [_travels(ds.isel(feature=moving[0])), _moved(ds.isel(feature=moving))]
    still = [str(f) for k, f in enumerate(ds["feature"].values) if k not in moving]
    if still:
        alone = ds.sizes["wavenumber"] == 1
        why = "one wave alone does not travel" if alone else "the waves do not turn, or as much one way as the other"
        many = len(still) > 1
        found.append(
            f"Nothing travels on the ring{'s' if many else ''} of feature{'s' if many else ''} {', '.join(still)}: {why}, so a site holds no one "
            "moment of the past."
        )
    return found


def _travels(one: xr.Dataset) -> str:
    unit, revolution, site = _unit(one), float(one["revolution"]), significant(float(one["resolution"]))
    time = one["time"].values
    length = float(time[-1] + (time[1] - time[0] if time.size > 1 else 1.0))
    where = f"On the ring of feature {int(one['feature'])}"
    speed = significant(abs(float(one["velocity"])))
    agreement, miss = float(one["lag_agreement"]), number(float(one["lag_miss"]) * _per_step(one), 1)
    if float(one["resolution"]) > length:
        return f"{where} hardly anything travels: an input would take {site} {unit} from site to site, longer than the case."
    if agreement < TOGETHER:
        return (
            f"{where} what enters does not stay together: frequencies rise too unevenly with the wavenumber. A single impulse peaks up "
            f"to {miss} steps away from where the mean speed, {speed} sites per step, would put it, so a site holds a mixture of moments."
        )
    back = f"is back where it entered after {significant(revolution)} {unit} with {100 * float(one['energy_left']):.0f} % of its energy"
    if revolution > length:
        back = f"would be back where it entered after {significant(revolution)} {unit}, longer than the case ({significant(length)} {unit})"
    checked = f" A single impulse peaks at every site within {miss} steps of this." if math.isfinite(agreement) else ""
    return f"{where} an input moves {speed} sites per step, {back}, and shares a site with what enters within {site} {unit} of it.{checked}"


def _moved(ds: xr.Dataset) -> str:
    """How far training moved speed, frequencies and decay, over the features shown; how many waves alias."""
    rate, unit = _rate(ds)
    per = ds["dt"] * rate / (2 * np.pi)
    before = ds["velocity_before"].values
    shift = abs(ds["frequency_change"] * per).values
    # Between neighbouring frequencies, as the group velocity tells.
    apart = np.abs((ds["frequency_before"].diff("wavenumber") * per).values)
    told = (
        f" (median {100 * np.median(shift) / np.median(apart):.1f} % of the distance between neighbours)"
        if np.median(apart)
        else ""
    )
    speed = "Before training nothing travelled here. Training changed"
    if np.isfinite(before).all():
        change = 100 * (ds["velocity"].values / before - 1)
        ends = [number(float(end), 1, signed=True) for end in (change.min(), change.max())]
        speed = f"Training changed the speed by {' to '.join(dict.fromkeys(ends))} %,"
    factors = ds["decay_ratio"].values
    aliased, waves = int(ds["aliased"].sum()), int(ds["aliased"].size)
    return (
        f"{speed} single frequencies by up to {significant(float(shift.max()))} {unit}{told}, and decay rates by factors of "
        f"{significant(float(factors.min()))} to {significant(float(factors.max()))}. Of the {waves} waves on these rings "
        f"{aliased or 'none'} {'turns' if aliased == 1 else 'turn'} faster than half the sampling rate."
    )


def _table(ds: xr.Dataset) -> Table:
    unit, (rate, per) = _unit(ds), _rate(ds)
    change = abs(ds["frequency_change"] * ds["dt"] * rate / (2 * np.pi)).max("wavenumber")
    columns = {
        "sites per step": [significant(abs(v)) for v in ds["velocity"].values],
        f"one revolution ({unit})": [significant(v) for v in ds["revolution"].values],
        "energy left after it": [f"{100 * v:.0f} %" if math.isfinite(v) else "–" for v in ds["energy_left"].values],
        f"one site ({unit})": [significant(v) for v in ds["resolution"].values],
        "impulse misses by (steps)": [number(v, 1) for v in ds["lag_miss"].values * _per_step(ds)],
        "aliased waves": [str(int(v)) for v in ds["aliased"].sum("wavenumber").values],
        f"largest frequency change ({per})": [significant(v) for v in change.values],
        "phase delay endured (rad)": [significant(v) for v in ds["delay_high"].values],
    }
    if "mean_share" in ds:
        columns = {"mean share (logit)": [number(v) for v in ds["mean_share"].values], **columns}
    rows = [[f"feature {f}", *(values[k] for values in columns.values())] for k, f in enumerate(ds["feature"].values)]
    return Table(
        f"The rings shown: {ds.attrs.get('rule', '')}. One site: inputs closer than this share a site. Impulse misses by: largest "
        "difference between the predicted time since entry and the measured peak of an impulse. Phase delay endured: sites may hear "
        "each other that much later before a wave grows.",
        ["ring", *columns],
        rows,
        frozenset(range(1, len(columns) + 1)),
    )


def _notes(ds: xr.Dataset) -> list[str]:
    ordering = "by increasing frequency" if ds.attrs.get("ordering") == "frequency" else "as the model stores them"
    conjugated = int(ds["conjugated"].sum())
    layer = f" Rings of layer {int(ds.attrs['layer']) + 1}." if int(ds.attrs.get("layer", 0)) else ""
    turned = f", {conjugated} of them as the conjugate that turns forwards" if conjugated else ""
    return [
        f"Modes stand on the ring {ordering}{turned}: a choice that changes these pictures and no decision.{layer} "
        f"Before training: {ds.attrs.get('before', '')}."
    ]


def _rate(ds: xr.Dataset) -> tuple[float, str]:
    rate = ds.attrs.get("sampling_rate", "unknown")
    return (1.0, "cycles/step") if isinstance(rate, str) else (float(rate), "Hz")


def _per_step(ds: xr.Dataset) -> float:
    """Steps per unit of the time axis."""
    return _rate(ds)[0]


def _unit(ds: xr.Dataset) -> str:
    return "s" if str(ds["time"].attrs.get("units", "")) == "s" else "steps"
