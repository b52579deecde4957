"""A trained model and training data -> an explicit operator; every decision a sum of terms.

`expansion` makes the operator, `operator` and `storage` hold and keep it, `summary` says how well it tells the model. A folder answers one
question and knows no other: `accounts` splits a decision into a sum; built on it, `certificates`, `interventions`, `prediction`, `rays`,
`reduction`, `responses` and `rings`. Below them are `training`, `batch`, `targets`, `parts` and `steps`, what every question is asked with.
"""

from oplens.explanation.expansion import expand
from oplens.explanation.operator import ExplicitOperator
from oplens.explanation.parts import Bands, Channels, LayerWaves, Pairs, Waves, Windows
from oplens.explanation.responses.second_order import second_order_kernel, summarise_kernels
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
