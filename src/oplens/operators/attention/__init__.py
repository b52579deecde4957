"""Attention, exact and approximate, behind one signature: which keys a query sees, and how its weights are found."""

from oplens.operators.attention.attend import Attention, attend
from oplens.operators.attention.cost import AttentionCost, attention_cost
from oplens.operators.attention.error import AttentionError, attention_error, random_heads, sweep_errors
from oplens.operators.attention.families import (
    FAMILIES,
    BigBird,
    Family,
    Linformer,
    Performer,
    Reformer,
    Softmax,
    family_from_dict,
    family_to_dict,
)
from oplens.operators.attention.performer import log_features

__all__ = [
    "FAMILIES",
    "Attention",
    "AttentionCost",
    "AttentionError",
    "BigBird",
    "Family",
    "Linformer",
    "Performer",
    "Reformer",
    "Softmax",
    "attend",
    "attention_cost",
    "attention_error",
    "family_from_dict",
    "family_to_dict",
    "log_features",
    "random_heads",
    "sweep_errors",
]
