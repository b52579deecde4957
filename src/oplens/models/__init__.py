"""nn.Modules made of operators, with preprocessing and names in their configuration, and their checkpoints."""

from oplens.models.checkpoints import load_checkpoint
from oplens.models.configuration import ARCHITECTURES, Preprocessing, S4DConfig
from oplens.models.consistency import Consistency, ModeDifference, check_consistency
from oplens.models.s4d import S4D

__all__ = [
    "ARCHITECTURES",
    "S4D",
    "Consistency",
    "ModeDifference",
    "Preprocessing",
    "S4DConfig",
    "check_consistency",
    "load_checkpoint",
]
