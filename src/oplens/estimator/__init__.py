"""A scikit-learn classifier over :class:`oplens.models.S4D`, trained with skorch."""

from oplens.estimator.classifier import S4DClassifier

__all__ = ["S4DClassifier"]
