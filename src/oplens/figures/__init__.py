"""Figures: each function turns a result into one Plotly figure (or a table), for notebooks and for the report page."""

from oplens.figures.accuracy import accuracy_by_order
from oplens.figures.attention_maps import attention_map
from oplens.figures.cases import signals, waterfall
from oplens.figures.certificates import certified_fraction, robust_radii
from oplens.figures.construction import answer_terms, attention_by_layer, construction_flow
from oplens.figures.construction_filters import filter_waves, gain_comparison, kernel_comparison
from oplens.figures.construction_proof import (
    construction_margins,
    error_parts,
    error_surface,
    function_section,
    layer_weights,
)
from oplens.figures.contrast import Direction, directions, order_choices
from oplens.figures.kernels import first_kernel, kernel_gain, response, second_kernel
from oplens.figures.layers import head_map, heads_by_layer
from oplens.figures.neural import predictivity_by_layer
from oplens.figures.pairs import pair_map, pair_ranking
from oplens.figures.prediction import frequency_sweep, prediction_distribution
from oplens.figures.rays import convergence_radii, ray_course, ray_error
from oplens.figures.reduction import accuracy_by_waves, wave_importance
from oplens.figures.representations import dimensions_by_layer, layer_similarity
from oplens.figures.ring import ring_animation, space_time
from oplens.figures.ring_waves import coupling_profile, dispersion
from oplens.figures.robustness import movement_under_noise
from oplens.figures.shares import share_bars, share_course, share_map, source_sizes
from oplens.figures.steering import ablation_scatter, change_sizes, predicted_against_achieved, steering_overlay
from oplens.figures.waves import layer_account, wave_scatter, wave_table

__all__ = [
    "Direction",
    "ablation_scatter",
    "accuracy_by_order",
    "accuracy_by_waves",
    "answer_terms",
    "attention_by_layer",
    "attention_map",
    "certified_fraction",
    "change_sizes",
    "construction_flow",
    "construction_margins",
    "convergence_radii",
    "coupling_profile",
    "dimensions_by_layer",
    "directions",
    "dispersion",
    "error_parts",
    "error_surface",
    "filter_waves",
    "first_kernel",
    "frequency_sweep",
    "function_section",
    "gain_comparison",
    "head_map",
    "heads_by_layer",
    "kernel_comparison",
    "kernel_gain",
    "layer_account",
    "layer_similarity",
    "layer_weights",
    "movement_under_noise",
    "order_choices",
    "pair_map",
    "pair_ranking",
    "predicted_against_achieved",
    "prediction_distribution",
    "predictivity_by_layer",
    "ray_course",
    "ray_error",
    "response",
    "ring_animation",
    "robust_radii",
    "second_kernel",
    "share_bars",
    "share_course",
    "share_map",
    "signals",
    "source_sizes",
    "space_time",
    "steering_overlay",
    "waterfall",
    "wave_importance",
    "wave_scatter",
    "wave_table",
]
