"""Sequences in: `.ts` files, arrays, the examples that ship with aeon, and seeded synthetic signals."""

from oplens.data.examples import EXAMPLES, load_example
from oplens.data.sequences import SequenceData, as_sequences
from oplens.data.signals import Sinusoid
from oplens.data.synthetic import noisy_sinusoids
from oplens.data.ts import read_ts

__all__ = ["EXAMPLES", "SequenceData", "Sinusoid", "as_sequences", "load_example", "noisy_sinusoids", "read_ts"]
