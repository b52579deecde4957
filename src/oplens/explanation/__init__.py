"""A trained model and training data -> an explicit operator; every decision a sum of terms."""

from oplens.explanation.expansion import expand
from oplens.explanation.operator import ExplicitOperator
from oplens.explanation.parts import Bands, Channels, LayerWaves, Pairs, Waves, Windows
from oplens.explanation.second_order import second_order_kernel, summarise_kernels
from oplens.explanation.summary import choose_cases, summarise
from oplens.explanation.targets import CentredLogits, Margin, Outputs, Target

__all__ = [
    "Bands",
    "CentredLogits",
    "Channels",
    "ExplicitOperator",
    "LayerWaves",
    "Margin",
    "Outputs",
    "Pairs",
    "Target",
    "Waves",
    "Windows",
    "choose_cases",
    "expand",
    "second_order_kernel",
    "summarise",
    "summarise_kernels",
]
