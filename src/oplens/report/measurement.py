"""What was measured of a model: its scores, heads, representations, and what they say of recorded neurons."""

import xarray as xr

from oplens.report.attention import attention_sections
from oplens.report.blocks import Limits, Section
from oplens.report.neural import neural_section
from oplens.report.representations import representations_section
from oplens.report.scores import scores_section


def measurement_sections(tree: xr.DataTree, limits: Limits) -> list[Section]:
    """Everything that `measure` found, but for weight noise, which has a section of its own; [] for other results.

    Parameters
    ----------
    tree
        A result with any of the groups `predictions, errors, attention, attention_maps, representations, similarity, neural`.
    limits
        Smaller pages show fewer maps.
    """
    return [
        *scores_section(tree),
        *attention_sections(tree, limits),
        *representations_section(tree),
        *neural_section(tree),
    ]
