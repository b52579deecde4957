"""Functions to weights: transformers that compute a given function, each with a certificate, and their verification."""

from oplens.construction.bits import build_bits
from oplens.construction.certificate import Certificate, Margin
from oplens.construction.depth2 import build_depth2
from oplens.construction.drawing import draw_real, draw_table
from oplens.construction.families import NAMED
from oplens.construction.fourier import build_fourier
from oplens.construction.function import FunctionTable
from oplens.construction.lookup import build_lookup
from oplens.construction.piecewise_linear import build_piecewise_linear
from oplens.construction.verification import Check, Verification, verify

__all__ = [
    "NAMED",
    "Certificate",
    "Check",
    "FunctionTable",
    "Margin",
    "Verification",
    "build_bits",
    "build_depth2",
    "build_fourier",
    "build_lookup",
    "build_piecewise_linear",
    "draw_real",
    "draw_table",
    "verify",
]
