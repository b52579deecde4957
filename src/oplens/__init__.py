"""oplens rewrites a trained state-space model as an explicit operator: every decision a sum of terms, nothing left over.

>>> import oplens
>>> oplens.expand  # doctest: +ELLIPSIS
<function expand at ...>
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Name -> module: torch and the like are imported when a name is first used, so `import oplens` stays fast.
_EXPORTS = {
    "Bands": "oplens.explanation",
    "CentredLogits": "oplens.explanation",
    "Channels": "oplens.explanation",
    "ExplicitOperator": "oplens.explanation",
    "LayerWaves": "oplens.explanation",
    "Margin": "oplens.explanation",
    "Outputs": "oplens.explanation",
    "Pairs": "oplens.explanation",
    "Waves": "oplens.explanation",
    "Windows": "oplens.explanation",
    "expand": "oplens.explanation",
    "S4D": "oplens.models",
    "S4DConfig": "oplens.models",
    "Preprocessing": "oplens.models",
    "Transformer": "oplens.models",
    "TransformerConfig": "oplens.models",
    "check_consistency": "oplens.models",
    "load_checkpoint": "oplens.models",
    "S4DClassifier": "oplens.estimator",
    "OplensError": "oplens.errors",
    "read_ts": "oplens.data",
    "read_results": "oplens.results",
    "write_results": "oplens.results",
    "assemble": "oplens.assembly",
    "render": "oplens.report",
}

__all__ = [
    "S4D",
    "Bands",
    "CentredLogits",
    "Channels",
    "ExplicitOperator",
    "LayerWaves",
    "Margin",
    "OplensError",
    "Outputs",
    "Pairs",
    "Preprocessing",
    "S4DClassifier",
    "S4DConfig",
    "Transformer",
    "TransformerConfig",
    "Waves",
    "Windows",
    "__version__",
    "assemble",
    "check_consistency",
    "expand",
    "load_checkpoint",
    "read_results",
    "read_ts",
    "render",
    "write_results",
]

if TYPE_CHECKING:
    from oplens.assembly import assemble
    from oplens.data import read_ts
    from oplens.errors import OplensError
    from oplens.estimator import S4DClassifier
    from oplens.explanation import (
        Bands,
        CentredLogits,
        Channels,
        ExplicitOperator,
        LayerWaves,
        Margin,
        Outputs,
        Pairs,
        Waves,
        Windows,
        expand,
    )
    from oplens.models import (
        S4D,
        Preprocessing,
        S4DConfig,
        Transformer,
        TransformerConfig,
        check_consistency,
        load_checkpoint,
    )
    from oplens.report import render
    from oplens.results import read_results, write_results


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'oplens' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
