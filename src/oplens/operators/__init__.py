"""The mathematics: tensors in, tensors out; knows torch and nothing of models or files."""

DISCRETISATIONS = ("zoh", "bilinear")

__all__ = ["DISCRETISATIONS"]
