"""The operator as a model: its kernels, and what sinusoids add through them, as a section."""

import numpy as np
import xarray as xr

from oplens.figures.kernels import first_kernel, kernel_gain, second_kernel
from oplens.figures.style import number, significant
from oplens.report.blocks import Limits, Picture, Section, group, switched


def kernel_section(results: xr.DataTree | xr.Dataset, limits: Limits) -> list[Section]:
    """Kernels of the group `/kernels`: gains, h1 and stretches of h2; [] without the group.

    Parameters
    ----------
    results
        A result with a group `kernels`, or what `summarise_kernels` returns.
    limits
        Smaller pages show fewer classes or pairs of channels.
    """
    ds = group(results, "kernels")
    if ds is None:
        return []
    per_class = "class" in ds["h1"].dims
    classes = [str(c) for c in ds["class"].values] if per_class else [""]
    classes = classes[: max(1, min(len(classes), limits.variants // 3))]
    pairs = {"0": ""} if per_class or "h2" not in ds else _pair_names(ds, max(1, limits.variants // 6))
    questions = {"class": {c: c for c in classes}} if per_class else {"channels": pairs}
    switch, keys = switched("kernels", questions)
    follows = switch.id if switch else None
    sides = {key: answers[0] for key, answers in keys.items()} if per_class else {"": None}
    on = follows if per_class else None
    pictures = []
    if "square_gain" in ds:
        pictures.append(
            Picture(
                "kernels-gain-2",
                "Which oscillations does order 2 hear?",
                "What a sinusoid of amplitude 1 (a standard deviation of the training data, as a rule) in one channel for a whole case adds "
                "to the decision at order 2, on average over its phase, the other channels at their means; real signals hold far less of any "
                "one frequency. Claim: exact, of the operator.",
                {key: kernel_gain(ds, 2, side) for key, side in sides.items()},
                on,
            )
        )
    pictures += [
        Picture(
            "kernels-gain-1",
            "Which does order 1 hear?",
            "The most that the same sinusoid adds at order 1, at its best phase. Claim: exact, of the operator.",
            {key: kernel_gain(ds, 1, side) for key, side in sides.items()},
            on,
        ),
        Picture(
            "kernels-h1",
            "First-order kernel",
            "What a unit of the preprocessed input is worth, by the time at which it comes"
            + (f"; means over {int(ds.attrs['block'])} steps" if int(ds.attrs.get("block", 1)) > 1 else "")
            + ". Claim: exact, of the operator.",
            {key: first_kernel(ds, side) for key, side in sides.items()},
            on,
        ),
    ]
    if "h2" in ds:
        pictures.append(
            Picture(
                "kernels-h2",
                "Second-order kernel, a stretch of it",
                "What the product of two samples is worth, by their times, for "
                + _words(ds, pairs, per_class)
                + ". Stripes along the diagonal are oscillations that are heard whatever their phase. Claim: exact, of the operator.",
                {
                    key: second_kernel(ds, 0 if per_class else int(answers[0]), sides.get(key))
                    for key, answers in keys.items()
                },
                follows,
            )
        )
    return [
        Section(
            "kernels",
            "Kernels",
            "What does the operator listen for?",
            findings=_findings(ds),
            switch=switch,
            pictures=pictures,
        )
    ]


def _pair_names(ds: xr.Dataset, most: int) -> dict[str, str]:
    members = zip(ds["member"].values, ds["member_2"].values, strict=True)
    names = [str(a) if a == b else f"{a} × {b}" for a, b in members]
    return {str(k): name for k, name in enumerate(names[:most])}


def _words(ds: xr.Dataset, pairs: dict[str, str], per_class: bool) -> str:
    if per_class:
        return f"the pair of channels with the largest kernel ({next(iter(_pair_names(ds, 1).values()))})"
    return "the chosen pair of channels" if len(pairs) > 1 else next(iter(pairs.values()))


def _findings(ds: xr.Dataset) -> list[str]:
    """Say the largest gains in numbers; one class after the other would be no answer, so only margins have any."""
    if "class" in ds["h1"].dims:
        return []
    toward, against = _sides(str(ds.attrs.get("target", "")))
    found = []
    channels = [str(name) for name in ds["channel"].values]
    frequency = ds["frequency"].values
    units = str(ds["frequency"].attrs.get("units", "Hz")).replace("cycles/step", "cycles per step")
    if "square_gain" in ds:
        gain = ds["square_gain"].transpose("channel", "stimulus").values
        for best, side, sign in ((gain.argmax(), toward, 1), (gain.argmin(), against, -1)):
            channel, stimulus = np.unravel_index(int(best), gain.shape)
            value = float(gain[channel, stimulus])
            if sign * value > 0:
                found.append(
                    f"At order 2, a sinusoid of {significant(float(frequency[stimulus]))} {units} in {channels[channel]} speaks most for {side}: "
                    f"{number(value, signed=True)} logit units at amplitude 1."
                )
    # An offset is a sum over the whole kernel; blocks are means, all of the same size but the last.
    h1 = ds["h1"].transpose("channel", "time").values
    block, steps = int(ds.attrs.get("block", 1)), int(ds.attrs["n_steps"]) if "n_steps" in ds.attrs else h1.shape[1]
    sizes = np.full(h1.shape[1], block)
    sizes[-1] = steps - block * (h1.shape[1] - 1)
    offsets = h1 @ sizes
    largest = int(np.abs(offsets).argmax())
    found.append(
        f"At order 1, an offset of 1 in {channels[largest]} for a whole case adds {number(float(offsets[largest]), signed=True)}, more than "
        f"one in any other channel."
        if len(channels) > 1
        else f"At order 1, an offset of 1 for a whole case adds {number(float(offsets[0]), signed=True)}."
    )
    return found


def _sides(target: str) -> tuple[str, str]:
    """Words for the two sides of a margin, from its description; names are shown, never trusted to be without the separator."""
    words = target.removeprefix("margin: ")
    parts = words.split(" - ")
    return (parts[0], parts[1]) if len(parts) == 2 and words != target else ("a positive target", "a negative target")
