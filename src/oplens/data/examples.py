"""Real labelled sequences that ship inside the aeon package, read from there and never downloaded."""

import dataclasses
import difflib
import importlib.util
from pathlib import Path

from oplens.data.sequences import SequenceData
from oplens.data.ts import read_ts
from oplens.errors import ArgumentError, DataError

# Sampling rates in Hz where the archive's own description states them; None where it does not.
EXAMPLES: dict[str, float | None] = {
    "ACSF1": None,
    "ArrowHead": None,
    "BasicMotions": 10.0,  # "sampled once every tenth of a second, for a ten second period": 100 steps
    "GunPoint": None,
    "ItalyPowerDemand": None,
    "JapaneseVowels": None,
    "OSULeaf": None,
    "PickupGestureWiimoteZ": None,
    "UnitTest": None,
}


def load_example(name: str, split: str = "train") -> SequenceData:
    """Return one of the data sets that ship with aeon; nothing is ever downloaded.

    Parameters
    ----------
    name : str
        One of `EXAMPLES`, such as ``"BasicMotions"`` (40 + 40 cases, 6 channels, 100 steps at 10 Hz, 4 classes)
        or ``"JapaneseVowels"`` (270 + 370 cases, 12 channels, 7 to 29 steps, 9 classes).
    split : {"train", "test"}

    Returns
    -------
    SequenceData
        Labels and class order as in the file; `sampling_rate` where the archive's description states it.

    Raises
    ------
    ArgumentError
        For another name or split.
    DataError
        When the installed aeon does not hold the file.

    Examples
    --------
    >>> data = load_example("BasicMotions", "test")
    >>> data.X.shape, data.classes, data.sampling_rate
    ((40, 6, 100), ('Standing', 'Running', 'Walking', 'Badminton'), 10.0)
    """
    if name not in EXAMPLES:
        near = difflib.get_close_matches(str(name), EXAMPLES, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ArgumentError(
            f"load_example({name!r}): only the data sets that ship with aeon can be loaded: {', '.join(EXAMPLES)}; "
            f"oplens downloads nothing, read another file with read_ts(path).{meant}"
        )
    if split not in ("train", "test"):
        raise ArgumentError(f"load_example(split={split!r}): split must be 'train' or 'test'.")
    spec = importlib.util.find_spec("aeon")  # locates the package without importing it
    if spec is None or spec.origin is None:
        raise DataError("load_example: the package aeon is not installed; install it with pip install aeon.")
    path = Path(spec.origin).parent / "datasets" / "data" / name / f"{name}_{split.upper()}.ts"
    if not path.is_file():
        raise DataError(f"load_example({name!r}): the installed aeon holds no {path.name}; install aeon 1.6 again.")
    data = read_ts(path, sampling_rate=EXAMPLES[name])
    return dataclasses.replace(data, source=f"aeon, {path.name}")
