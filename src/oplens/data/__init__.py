"""Data in: `.ts` files, arrays, examples that ship with aeon, seeded synthetic signals, tokens and texts, recorded responses."""

from oplens.data.cut_texts import text_tokens
from oplens.data.examples import EXAMPLES, load_example
from oplens.data.responses import Responses, read_responses
from oplens.data.sequences import SequenceData, as_sequences
from oplens.data.signals import Sinusoid
from oplens.data.synthetic import noisy_sinusoids
from oplens.data.texts import Tokenizer, read_tokenizer
from oplens.data.token_files import read_tokens
from oplens.data.tokens import Tokens, as_tokens
from oplens.data.ts import read_ts

__all__ = [
    "EXAMPLES",
    "Responses",
    "SequenceData",
    "Sinusoid",
    "Tokenizer",
    "Tokens",
    "as_sequences",
    "as_tokens",
    "load_example",
    "noisy_sinusoids",
    "read_responses",
    "read_tokenizer",
    "read_tokens",
    "read_ts",
    "text_tokens",
]
