"""What would change a decision: the smallest change of an input, and parts taken out."""

from oplens.explanation.interventions.changes import what_if_groups

__all__ = ["what_if_groups"]
