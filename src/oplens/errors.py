"""The exceptions a user can meet; each message is a sentence: what was wrong, where, what to do."""


class OplensError(Exception):
    """Base of every error that oplens raises on purpose."""


class ArgumentError(OplensError, ValueError):
    """An argument that cannot work."""


class DataError(OplensError, ValueError):
    """Sequences or a data file that cannot be used."""


class CheckpointError(OplensError, ValueError):
    """A model file that cannot be loaded whole and safely."""


class ResultError(OplensError, ValueError):
    """A result or operator file that is damaged or not ours."""
