"""Bounds and rates: numbers in, numbers out, each with its statement, hypotheses and source, and what the paper states beside it."""

from collections.abc import Callable

from oplens.theory.attention import attention_stability, layer_composition, performer_features
from oplens.theory.capacity import real_parameters, vc_dimension
from oplens.theory.complexity import crm_interval, meta_approximation, one_pass_memory
from oplens.theory.counting import (
    mean_parameters,
    random_labels,
    representable_fraction,
    sparse_parameters,
    sup_parameters,
)
from oplens.theory.depth import (
    depth_width,
    depth_width_exponential,
    linear_pieces,
    lookup_size,
    sawtooth_width,
    score_gap,
)
from oplens.theory.lipschitz import error_floor, packing, packing_mean
from oplens.theory.noise import first_order, layerwise_gaussian, layerwise_spectral, perturbation
from oplens.theory.rates import fourier_rate, piecewise_linear_rate
from oplens.theory.samples import generalisation_gap, sample_complexity, sampled_maximum, vc_sample_complexity
from oplens.theory.smoothness import barron, barron_cosines, barron_gaussian, barron_units, polynomial_span
from oplens.theory.statement import Bound, Quantity, Stated

# Name -> function; the one table in which bounds are looked up, in the order of docs/theory.md.
BOUNDS: dict[str, Callable[..., Bound]] = {
    "sup_parameters": sup_parameters,
    "mean_parameters": mean_parameters,
    "sparse_parameters": sparse_parameters,
    "real_parameters": real_parameters,
    "representable_fraction": representable_fraction,
    "vc_dimension": vc_dimension,
    "packing": packing,
    "packing_mean": packing_mean,
    "error_floor": error_floor,
    "crm_interval": crm_interval,
    "meta_approximation": meta_approximation,
    "one_pass_memory": one_pass_memory,
    "lookup_size": lookup_size,
    "linear_pieces": linear_pieces,
    "sawtooth_width": sawtooth_width,
    "depth_width": depth_width,
    "depth_width_exponential": depth_width_exponential,
    "perturbation": perturbation,
    "first_order": first_order,
    "layerwise_spectral": layerwise_spectral,
    "layerwise_gaussian": layerwise_gaussian,
    "attention_stability": attention_stability,
    "layer_composition": layer_composition,
    "performer_features": performer_features,
    "barron": barron,
    "barron_units": barron_units,
    "barron_gaussian": barron_gaussian,
    "barron_cosines": barron_cosines,
    "polynomial_span": polynomial_span,
    "fourier_rate": fourier_rate,
    "piecewise_linear_rate": piecewise_linear_rate,
    "sample_complexity": sample_complexity,
    "vc_sample_complexity": vc_sample_complexity,
    "generalisation_gap": generalisation_gap,
    "sampled_maximum": sampled_maximum,
    "random_labels": random_labels,
}

__all__ = [
    "BOUNDS",
    "Bound",
    "Quantity",
    "Stated",
    "attention_stability",
    "barron",
    "barron_cosines",
    "barron_gaussian",
    "barron_units",
    "crm_interval",
    "depth_width",
    "depth_width_exponential",
    "error_floor",
    "first_order",
    "fourier_rate",
    "generalisation_gap",
    "layer_composition",
    "layerwise_gaussian",
    "layerwise_spectral",
    "linear_pieces",
    "lookup_size",
    "mean_parameters",
    "meta_approximation",
    "one_pass_memory",
    "packing",
    "packing_mean",
    "performer_features",
    "perturbation",
    "piecewise_linear_rate",
    "polynomial_span",
    "random_labels",
    "real_parameters",
    "representable_fraction",
    "sample_complexity",
    "sampled_maximum",
    "sawtooth_width",
    "score_gap",
    "sparse_parameters",
    "sup_parameters",
    "vc_dimension",
    "vc_sample_complexity",
]
