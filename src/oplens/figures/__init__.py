"""Figures: each function turns a result into one Plotly figure (or a table), for notebooks and for the report page."""

from oplens.figures.accuracy import accuracy_by_order
from oplens.figures.cases import signals, waterfall
from oplens.figures.contrast import Direction, directions, order_choices
from oplens.figures.pairs import pair_map, pair_ranking
from oplens.figures.shares import share_bars, share_course, share_map, source_sizes
from oplens.figures.waves import layer_account, wave_scatter, wave_table

__all__ = [
    "Direction",
    "accuracy_by_order",
    "directions",
    "layer_account",
    "order_choices",
    "pair_map",
    "pair_ranking",
    "share_bars",
    "share_course",
    "share_map",
    "signals",
    "source_sizes",
    "waterfall",
    "wave_scatter",
    "wave_table",
]
