"""nn.Modules made of operators, with preprocessing and names in their configuration, and their checkpoints."""

from oplens.models.configuration import ARCHITECTURES, Preprocessing, S4DConfig
from oplens.models.s4d import S4D

__all__ = ["ARCHITECTURES", "S4D", "Preprocessing", "S4DConfig"]
