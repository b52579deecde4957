"""A built model: how it computes some inputs layer by layer, what is certified of it, and what was run, as two sections."""

import numpy as np
import xarray as xr

from oplens.figures.construction import answer_terms, attention_by_layer, construction_flow
from oplens.figures.style import significant
from oplens.report.blocks import Limits, Picture, Section, group, switched
from oplens.report.construction_filters import HEADING, filter_section
from oplens.report.construction_proof import proof_section

WORDS = {
    "lookup": "Layer by layer every position doubles the stretch it knows: attention fetches the string of the position before its own, and one "
    "gate per possible string tells which it is. The last layer's gate for the whole input writes the function's value.",
    "bits": "Layer by layer every position doubles the stretch it knows, as bits: attention fetches the bits it lacks, and a clip makes them "
    "exactly 0 or 1. The last layer has one hidden unit per input, which writes the function's value.",
    "depth2": "The first layer puts every symbol into the slot of its position, the second takes the mean over all positions, which sets the "
    "slots side by side, and has one hidden unit per input, which writes the function's value. Attention is uniform.",
    "fourier": "The first layer puts every number into the slot of its position, uniform attention gathers the slots, and the hidden units of the "
    "second layer add up to cosines of the gathered numbers, piecewise linear, whose weighted sum is the answer.",
    "piecewise-linear": "The first layer puts every number into the slot of its position, uniform attention gathers the slots, the next layers "
    "compare the gathered numbers, and the last one has a hat for every node of the grid: the answer is the values at the nodes, weighted "
    "by their hats.",
}


TOLD = ("largest error found", "wrong answer")  # why an input was chosen, where the reader should know
_SHARP = "Positions near the start have nobody far enough before them; what they then fetch is never used. "


def construction_section(results: xr.DataTree, limits: Limits) -> list[Section]:
    """How a built model computes, and what holds of it, of the groups `/construction...`; [] without them.

    Parameters
    ----------
    results
        What :func:`oplens.construction.drawing.draw_table`, `draw_real` or `draw_ssm` returns.
    limits
        Smaller pages draw fewer inputs.
    """
    ds = group(results, "construction")
    if ds is None or isinstance(results, xr.Dataset):
        return []
    kernels, waves = group(results, "construction_kernels"), group(results, "construction_waves")
    found = [_working(results, limits)] if "construction_states" in results.children else []
    found += [filter_section(kernels, waves, limits)] if kernels is not None and waves is not None else []
    return [*found, proof_section(results, ds)]


def _working(results: xr.DataTree, limits: Limits) -> Section:
    states, maps, terms = (group(results, f"construction_{name}") for name in ("states", "maps", "terms"))
    assert states is not None
    assert maps is not None
    assert terms is not None
    cases = range(min(states.sizes["case"], max(1, limits.cases // 3)))
    switch, keys = switched("construction", {"input": {str(k): _named(states, k) for k in cases}})
    follows = switch.id if switch else None
    chosen = {key: int(answers[0]) for key, answers in keys.items()}
    what = str(states.attrs["what"])
    pictures = [
        Picture(
            "construction-flow",
            "What every position holds, layer by layer",
            f"Columns are positions, rows what they hold after each layer, read from the running model: the {what}s of the input in order. "
            "Boxed: what the answer is made of, with lines to where it was looked up. Grey: held, but not used here. Orange: not what it "
            f"should be. Claim: {states['known'].attrs.get('claim', 'exact')}.",
            {key: construction_flow(states, maps, terms, case) for key, case in chosen.items()},
            follows,
        )
    ]
    if what == "symbol" and not np.isnan(maps["weight"].values).all():
        pictures.append(
            Picture(
                "construction-attention",
                "Where every layer looks",
                "Rows are the positions that look, columns where. "
                f"{_SHARP if states.attrs['construction'] in ('lookup', 'bits') else ''}Claim: exact.",
                {key: attention_by_layer(maps, states, case) for key, case in chosen.items()},
                follows,
            )
        )
    if what == "number":
        pictures.append(
            Picture(
                "construction-terms",
                "What the answer is the sum of",
                "Values at nodes, less the constant, times their hats; or cosines of variables scaled to 0 to 1, times their amplitudes. Read "
                "from hidden units and weights. Claim: exact.",
                {key: answer_terms(terms, case) for key, case in chosen.items()},
                follows,
            )
        )
    return Section(
        *HEADING,
        findings=[*_working_findings(states, maps), WORDS.get(str(states.attrs.get("construction")), "")],
        switch=switch,
        pictures=pictures,
    )


def _named(states: xr.Dataset, case: int) -> str:
    names, why = [str(name) for name in states["text"].values[case]], str(states["why"].values[case])
    joined = states.attrs["what"] == "symbol" and all(len(name) == 1 for name in names)
    return ("" if joined else ", ").join(names) + (f" ({why})" if why in TOLD else "")


def _working_findings(states: xr.Dataset, maps: xr.Dataset) -> list[str]:
    wrong = int(states["wrong"].sum())
    cases = states.sizes["case"]
    checked = int((states["used"].values[..., None] & ~np.isnan(states["known"].values)).sum())
    inputs = f"{cases} inputs" if cases > 1 else "one input"
    if wrong:
        layer = int(states["layer"].values[states["wrong"].any(("case", "token", "token_2")).values.argmax()])
        found = [
            f"The model does NOT do what it was built for: of what its answers on {inputs} are made of, {wrong:,} entries are wrong, first "
            f"{f'after layer {layer}' if layer else 'in the embedding'}."
        ]
    else:
        allowed = float(states.attrs.get("tolerance", 0.0))
        within = f", within {significant(allowed)}, the bound on the rounding of what is gathered" if allowed else ""
        found = [
            f"All {checked:,} {states.attrs['what']}s that the answers to {inputs} are made of were read back from the residual stream and are "
            f"those of the input{within}."
        ]
    units = states["firing"].values[:, -1, -1]
    attending = int((~np.isnan(maps["weight"].values)).any((0, 2, 3, 4)).sum())
    least, most = int(units.min()), int(units.max())
    found.append(
        f"{attending} of {maps.sizes['layer']} layers look{'s' if attending == 1 else ''} at other positions; in the last layer "
        f"{f'{least:,}' if least == most else f'{least:,} to {most:,}'} hidden unit{'' if most == 1 else 's'} fire{'s' if most == 1 else ''} at "
        "the position that is read."
    )
    return found
