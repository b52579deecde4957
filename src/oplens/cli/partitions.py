"""Partitions as words on the command line."""

from collections.abc import Callable
from typing import Any

from oplens.errors import ArgumentError
from oplens.explanation import Bands, Channels, LayerWaves, Waves, Windows
from oplens.explanation.parts import normalise


def parse_partitions(by: list[str] | None, bands: str | None, windows: int) -> list[Any] | None:
    """Return partitions from words such as "waves" and "channels,bands"; None when nothing was asked for.

    Examples
    --------
    >>> parse_partitions(["channels,bands"], "0-4,4-8", 8)
    [(Channels(names=None), Bands(edges=((0.0, 4.0), (4.0, 8.0))))]
    """
    known: dict[str, Callable[[], Any]] = {
        "waves": Waves,
        "layerwaves": LayerWaves,
        "channels": Channels,
        "bands": lambda: Bands(parse_bands(bands)),
        "windows": lambda: Windows(windows),
    }
    if by is None:
        if bands is None and windows == DEFAULT_WINDOWS:
            return None
        by = ["waves", "channels,bands", "windows"]
    partitions = []
    for words in by:
        parts = []
        for word in words.split(","):
            name = word.strip().lower()
            if name not in known:
                raise ArgumentError(f"--by {words}: unknown part {word.strip()!r}; choose from {', '.join(known)}.")
            parts.append(known[name]())
        partitions.append(normalise(tuple(parts)))
    return partitions


DEFAULT_WINDOWS = 8


def parse_bands(text: str | None) -> list[tuple[float, float]] | None:
    """Return edges from text such as "0-4,4-8".

    Examples
    --------
    >>> parse_bands("0-4, 4-8.5")
    [(0.0, 4.0), (4.0, 8.5)]
    """
    if text is None:
        return None
    edges = []
    for word in text.split(","):
        low, dash, high = word.strip().partition("-")
        try:
            edges.append((float(low), float(high)))
        except ValueError:
            del dash
            raise ArgumentError(
                f"--bands {text}: {word.strip()!r} is not a band; write low-high, such as 0-4,4-8."
            ) from None
    return edges
