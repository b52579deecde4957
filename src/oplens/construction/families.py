"""Named functions of symbol sequences: every one takes (cases, length) whole numbers below the vocabulary and returns (cases,)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oplens.errors import ArgumentError

Symbols = NDArray[np.int64]


@dataclass(frozen=True)
class NamedFunction:
    """A named family.

    Parameters
    ----------
    evaluate : callable
        (symbols (cases, length), vocabulary, **options) -> (cases,) whole numbers.
    labels : callable
        (vocabulary, length, **options) -> number of values that may occur.
    statement : str
    options : dict
        Options with their defaults; None: the vocabulary's size decides.
    least : dict
        Smallest value of each option.
    """

    evaluate: Callable[..., NDArray[Any]]
    labels: Callable[..., int]
    statement: str
    options: dict[str, int | None] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)


def _parity(x: Symbols, vocabulary: int) -> NDArray[Any]:
    return np.asarray(x.sum(1) % 2)


def _majority(x: Symbols, vocabulary: int) -> NDArray[Any]:
    # argmax takes the first, hence the smallest, of equals.
    return np.asarray(np.stack([(x == symbol).sum(1) for symbol in range(vocabulary)], axis=1).argmax(1))


def _k_hop(x: Symbols, vocabulary: int, hops: int) -> NDArray[Any]:
    cases, length = x.shape
    x = np.concatenate((np.full((cases, 1), -1), x), axis=1)  # positions count from 1; 0 is "not found"
    here = np.full(cases, length)
    for _ in range(hops):
        symbol = x[np.arange(cases), here]
        found = np.zeros(cases, dtype=np.int64)
        for j in range(2, length + 1):
            found = np.where((here >= j) & (x[:, j - 1] == symbol), j, found)
        here = found
    return np.where(here > 0, x[np.arange(cases), here], vocabulary)


def _palindrome(x: Symbols, vocabulary: int) -> NDArray[Any]:
    return np.asarray((x == x[:, ::-1]).all(1))


def _modular_sum(x: Symbols, vocabulary: int, modulus: int) -> NDArray[Any]:
    return np.asarray(x.sum(1) % modulus)


def _min(x: Symbols, vocabulary: int) -> NDArray[Any]:
    return np.asarray(x.min(1))


def _max(x: Symbols, vocabulary: int) -> NDArray[Any]:
    return np.asarray(x.max(1))


def _threshold(x: Symbols, vocabulary: int, threshold: int) -> NDArray[Any]:
    return np.asarray(x.sum(1) >= threshold)


def _two(vocabulary: int, length: int, **options: int) -> int:
    return 2


def _all(vocabulary: int, length: int, **options: int) -> int:
    return vocabulary


# Name -> function; "random" is drawn from its seed where tables are made, since its values follow the order of the inputs.
NAMED: dict[str, NamedFunction] = {
    "parity": NamedFunction(_parity, _two, "sum of the symbols, modulo 2"),
    "majority": NamedFunction(_majority, _all, "the most frequent symbol, the smallest of several"),
    "k-hop": NamedFunction(
        _k_hop,
        lambda vocabulary, length, **options: vocabulary + 1,
        "k times: go to the position after the last earlier occurrence of the symbol here; its symbol, or V where there is none",
        {"hops": 1},
        {"hops": 1},
    ),
    "palindrome": NamedFunction(_palindrome, _two, "1 if the sequence reads the same backwards"),
    "modular-sum": NamedFunction(
        _modular_sum,
        lambda vocabulary, length, modulus: modulus,
        "sum of the symbols, modulo the modulus (V when omitted)",
        {"modulus": None},
        {"modulus": 1},
    ),
    "min": NamedFunction(_min, _all, "the smallest symbol"),
    "max": NamedFunction(_max, _all, "the largest symbol"),
    "threshold": NamedFunction(
        _threshold,
        _two,
        "1 if the symbols sum to at least the threshold (half of the largest sum, rounded up, when omitted)",
        {"threshold": None},
        {"threshold": 0},
    ),
    "random": NamedFunction(
        lambda x, vocabulary, **options: np.zeros(len(x)),
        lambda vocabulary, length, seed, labels: labels,
        "independent uniform labels of a seed",
        {"seed": 0, "labels": None},
        {"seed": 0, "labels": 1},
    ),
}


def resolve_options(name: str, vocabulary: int, length: int, given: dict[str, Any]) -> dict[str, int]:
    """The family's options with defaults filled in; refused where one is unknown, no whole number, or too small."""
    if name not in NAMED:
        raise ArgumentError(f"function {name!r}: the named functions are {', '.join(NAMED)}.")
    family = NAMED[name]
    unknown = sorted(set(given) - set(family.options))
    if unknown:
        takes = f"it takes {', '.join(family.options)}" if family.options else "it takes none"
        raise ArgumentError(f"function {name!r}: unknown option {', '.join(unknown)}; {takes}.")
    values = {}
    for option, default in family.options.items():
        value = given.get(option, default)
        if value is None:
            value = -(-length * (vocabulary - 1) // 2) if option == "threshold" else vocabulary
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < family.least[option]:
            raise ArgumentError(
                f"function {name!r}: {option}={value!r} must be a whole number of at least {family.least[option]}."
            )
        values[option] = int(value)
    return values
