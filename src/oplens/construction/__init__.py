"""Functions to weights: transformers and state-space models that compute a given function, each with a certificate, and their verification."""

from oplens.construction.bits import build_bits
from oplens.construction.certificate import Certificate, Margin
from oplens.construction.depth2 import build_depth2
from oplens.construction.drawing import draw_real, draw_table
from oplens.construction.families import NAMED
from oplens.construction.filters import ExponentialSum, FiniteKernel
from oplens.construction.fourier import build_fourier
from oplens.construction.function import FunctionTable
from oplens.construction.lookup import build_lookup
from oplens.construction.piecewise_linear import build_piecewise_linear
from oplens.construction.second_order_kernel import SecondOrderKernel
from oplens.construction.ssm import build_ssm, certify_ssm
from oplens.construction.ssm_drawing import draw_ssm
from oplens.construction.ssm_verification import SignalVerification, verify_ssm
from oplens.construction.verification import Check, Verification, verify

__all__ = [
    "NAMED",
    "Certificate",
    "Check",
    "ExponentialSum",
    "FiniteKernel",
    "FunctionTable",
    "Margin",
    "SecondOrderKernel",
    "SignalVerification",
    "Verification",
    "build_bits",
    "build_depth2",
    "build_fourier",
    "build_lookup",
    "build_piecewise_linear",
    "build_ssm",
    "certify_ssm",
    "draw_real",
    "draw_ssm",
    "draw_table",
    "verify",
    "verify_ssm",
]
