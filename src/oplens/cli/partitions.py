"""Partitions as words on the command line."""

from dataclasses import dataclass

from oplens.errors import ArgumentError
from oplens.explanation import Bands, Channels, LayerWaves, Waves, Windows
from oplens.explanation.parts import Part, normalise

DEFAULT_WINDOWS = 8


@dataclass(frozen=True)
class Chosen:
    """Products that were named, None when none was; and the bands and windows that either they or the default ones have."""

    products: list[tuple[Part, ...]] | None
    bands: Bands
    windows: Windows


def parse_partitions(by: list[str] | None, bands: str | None, windows: int | None) -> Chosen:
    """Return partitions from words such as "waves" and "channels,bands".

    Examples
    --------
    >>> parse_partitions(["channels,bands"], "0-4,4-8", None).products
    [(Channels(names=None), Bands(edges=((0.0, 4.0), (4.0, 8.0))))]
    """
    banded, windowed = Bands(parse_bands(bands)), Windows(DEFAULT_WINDOWS if windows is None else windows)
    if by is None:
        return Chosen(None, banded, windowed)
    known = {
        "waves": Waves(),
        "layerwaves": LayerWaves(),
        "channels": Channels(),
        "bands": banded,
        "windows": windowed,
    }
    products = []
    for words in by:
        names = [word.strip().lower() for word in words.split(",")]
        for name in names:
            if name not in known:
                raise ArgumentError(f"--by {words}: unknown part {name!r}; choose from {', '.join(known)}.")
        products.append(normalise([known[name] for name in names]))
    for name, value in (("bands", bands), ("windows", windows)):
        if value is not None and not any(known[name] in parts for parts in products):
            raise ArgumentError(f"--{name} {value}: no --by names {name}; add --by {name}, or leave --{name} out.")
    return Chosen(products, banded, windowed)


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
        low, _, high = word.strip().partition("-")
        try:
            edges.append((float(low), float(high)))
        except ValueError:
            raise ArgumentError(
                f"--bands {text}: {word.strip()!r} is not a band; write low-high, such as 0-4,4-8."
            ) from None
    return edges
