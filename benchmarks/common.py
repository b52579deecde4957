"""What benchmark scripts share: data sets, and where results go."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from oplens.data import SequenceData, load_example, read_ts

RESULTS = Path(__file__).parent / "results"
SCP1_RATE = 256.0  # Hz, as the data set's description states


def scp1(split: str) -> SequenceData | None:
    """SelfRegulationSCP1 from the folder that OPLENS_TEST_DATA names, None (with a note) where there is none."""
    folder = os.environ.get("OPLENS_TEST_DATA")
    if not folder:
        print("OPLENS_TEST_DATA is not set: SelfRegulationSCP1 is left out", file=sys.stderr)
        return None
    path = Path(folder) / "data" / "SelfRegulationSCP1" / f"SelfRegulationSCP1_{split.upper()}.ts"
    return read_ts(path, sampling_rate=SCP1_RATE)


def data_sets(split: str) -> dict[str, SequenceData]:
    """Return the three data sets of the accuracy table."""
    real = scp1(split)
    sets = {} if real is None else {"SelfRegulationSCP1": real}
    return sets | {name: load_example(name, split) for name in ("BasicMotions", "JapaneseVowels")}


def training_sets() -> dict[str, SequenceData]:
    """Return their training parts."""
    return data_sets("train")


def write_json(value: dict[str, Any], path: Path) -> None:
    """Write an object as readable JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)
