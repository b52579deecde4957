"""nn.Modules made of operators, with preprocessing and names in their configuration, and their checkpoints."""

from oplens.models.checkpoints import load_checkpoint
from oplens.models.configuration import ARCHITECTURES, Preprocessing, S4DConfig
from oplens.models.consistency import Consistency, ModeDifference, check_consistency
from oplens.models.own_recorders import S4DRecorder, TransformerRecorder
from oplens.models.recorders import load_recorder
from oplens.models.recording import Recorder, Recording
from oplens.models.s4d import S4D
from oplens.models.transformer import Transformer, TransformerTrace
from oplens.models.transformer_config import TransformerConfig
from oplens.models.transformer_counts import PRESETS, count_flops, count_memory, count_parameters, count_weights
from oplens.models.transformer_layers import SparseLinear, sinusoids

__all__ = [
    "ARCHITECTURES",
    "PRESETS",
    "S4D",
    "Consistency",
    "ModeDifference",
    "Preprocessing",
    "Recorder",
    "Recording",
    "S4DConfig",
    "S4DRecorder",
    "SparseLinear",
    "Transformer",
    "TransformerConfig",
    "TransformerRecorder",
    "TransformerTrace",
    "check_consistency",
    "count_flops",
    "count_memory",
    "count_parameters",
    "count_weights",
    "load_checkpoint",
    "load_recorder",
    "sinusoids",
]
