"""The mathematics: tensors in, tensors out; knows torch and nothing of models or files."""

DISCRETISATIONS = ("zoh", "bilinear")
INITIALISATIONS = ("lin", "inv", "real")

__all__ = ["DISCRETISATIONS", "INITIALISATIONS"]
