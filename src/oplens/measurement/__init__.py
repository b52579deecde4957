"""Measurements of representations, attention and errors: arrays in, numbers with their claims out; batches add up in any order."""

from oplens.measurement.against import errors_against
from oplens.measurement.attention import AttentionRanks, AttentionTotals
from oplens.measurement.dimensions import PointCloud, d_int, participation_ratio
from oplens.measurement.errors import ErrorTotals, mean_error, sup_error
from oplens.measurement.language import PredictionTotals, token_log_probabilities
from oplens.measurement.neighbours import PointSample, mle_dimension, two_nn
from oplens.measurement.neural import measure_neural, stimulus_tokens
from oplens.measurement.predictivity import neural_predictivity, reliability
from oplens.measurement.robustness import weight_noise
from oplens.measurement.similarity import CKATotals, linear_cka
from oplens.measurement.spectra import effective_rank, eigenvalue_effective_rank, numerical_rank, stable_rank
from oplens.measurement.survey import measure

__all__ = [
    "AttentionRanks",
    "AttentionTotals",
    "CKATotals",
    "ErrorTotals",
    "PointCloud",
    "PointSample",
    "PredictionTotals",
    "d_int",
    "effective_rank",
    "eigenvalue_effective_rank",
    "errors_against",
    "linear_cka",
    "mean_error",
    "measure",
    "measure_neural",
    "mle_dimension",
    "neural_predictivity",
    "numerical_rank",
    "participation_ratio",
    "reliability",
    "stable_rank",
    "stimulus_tokens",
    "sup_error",
    "token_log_probabilities",
    "two_nn",
    "weight_noise",
]
