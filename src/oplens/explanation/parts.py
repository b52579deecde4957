"""Partitions of the pre-activation: what an explanation is told to split a decision into.

Waves split the dynamics; channels, bands and windows split the preprocessed input; a tuple is the product of its members.
"""

import itertools
import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass

from oplens.errors import ArgumentError

MAX_OCTAVES = 8


class Part(ABC):  # noqa: B024 - a closed family: what can be done with a part is decided by its kind
    """Base of the kinds of parts."""


@dataclass(frozen=True)
class Waves(Part):
    """The modes of the diagonal systems: mu_n(t) = 2 Re(C_n s_n(t)), driven by the encoded input (dimensions feature, wave)."""


@dataclass(frozen=True)
class LayerWaves(Part):
    """Waves and skips of every layer of a reference model with all factors frozen (dimensions layer, feature, wave); no orders."""


@dataclass(frozen=True)
class Channels(Part):
    """Input channels; with `names`, only these, what is left being the line `rest`.

    Examples
    --------
    >>> Channels(("C3", "C4")).names
    ('C3', 'C4')
    """

    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.names is not None:
            if isinstance(self.names, str) or not isinstance(self.names, Sequence):
                raise ArgumentError(f"Channels({self.names!r}): give a tuple of names, such as Channels(('C3', 'C4')).")
            object.__setattr__(self, "names", tuple(self.names))
            if not self.names:
                raise ArgumentError("Channels(()): name at least one channel, or leave names out for all of them.")
            if len(set(self.names)) != len(self.names):
                raise ArgumentError(f"Channels({self.names}): a channel may stand only once, parts must not overlap.")


@dataclass(frozen=True)
class Bands(Part):
    """Frequency bands [low, high) of the Fourier transform of each unpadded case; one that ends at Nyquist includes it.

    Parameters
    ----------
    edges : sequence of (low, high), optional
        In Hz, or cycles per step when the model knows no sampling rate. Default: octaves below Nyquist, down to the resolution of
        the longest training case.

    Examples
    --------
    >>> Bands([(0, 4), (4, 8)]).edges
    ((0.0, 4.0), (4.0, 8.0))
    """

    edges: Sequence[tuple[float, float]] | None = None

    def __post_init__(self) -> None:
        if self.edges is None:
            return
        try:
            edges = tuple((float(low), float(high)) for low, high in self.edges)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"Bands({self.edges!r}): give pairs (low, high).") from error
        if not edges:
            raise ArgumentError("Bands([]): give at least one (low, high), or leave edges out for octaves.")
        for low, high in edges:
            if not 0 <= low < high:
                raise ArgumentError(f"Bands: ({low:g}, {high:g}) is empty or negative; give 0 <= low < high.")
        ordered = sorted(edges)
        for (low, high), (next_low, next_high) in itertools.pairwise(ordered):
            if next_low < high:
                raise ArgumentError(
                    f"Bands: ({low:g}, {high:g}) and ({next_low:g}, {next_high:g}) overlap; parts must not."
                )
        object.__setattr__(self, "edges", edges)

    def resolve(self, sampling_rate: float, length: int = 128) -> tuple[tuple[float, float], ...]:
        """Edges in units of the sampling rate given; when none were given, octaves down to about twice the resolution of `length` steps.

        Examples
        --------
        >>> Bands().resolve(256.0, length=896)[:3]
        ((0.0, 1.0), (1.0, 2.0), (2.0, 4.0))
        """
        nyquist = sampling_rate / 2
        if self.edges is None:
            octaves = min(max(int(math.log2(max(length, 4) / 4)), 1), MAX_OCTAVES)
            tops = [nyquist / 2**k for k in range(octaves, -1, -1)]
            return tuple(zip([0.0, *tops[:-1]], tops, strict=True))
        for low, high in self.edges:
            if low >= nyquist:
                raise ArgumentError(f"Bands: ({low:g}, {high:g}) lies above Nyquist, {nyquist:g}; nothing is there.")
        return tuple(self.edges)


@dataclass(frozen=True)
class Windows(Part):
    """`count` equal time windows of the input (of every case's own valid length).

    Examples
    --------
    >>> Windows(8).count
    8
    """

    count: int

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise ArgumentError(f"Windows({self.count!r}): give a whole number of windows, at least 1.")


By = Part | Sequence[Part]


@dataclass(frozen=True)
class Pairs:
    """Pairs of the parts of `by`: the orders from 2 on.

    Parameters
    ----------
    by : part or tuple of parts
    top : int, optional
        Keep only this many pairs of largest absolute content per case and order (with class-centred logits: on the logit of the
        predicted class).
    mean : "class", optional
        Average over the cases of every true class, for which labels are needed (with class-centred logits: on the logit of the
        case's own class).

    Examples
    --------
    >>> Pairs(Waves(), top=100).top
    100
    """

    by: By
    top: int | None = None
    mean: str | None = None

    def __post_init__(self) -> None:
        normalise(self.by)
        if self.top is not None and (isinstance(self.top, bool) or not isinstance(self.top, int) or self.top < 1):
            raise ArgumentError(f"Pairs(top={self.top!r}): give a whole number of pairs, at least 1.")
        if self.mean not in (None, "class"):
            raise ArgumentError(f"Pairs(mean={self.mean!r}): only mean='class' is known.")
        if self.top is not None and self.mean is not None:
            raise ArgumentError("Pairs(top=..., mean=...): choose one; class means keep every pair.")


def normalise(by: By) -> tuple[Part, ...]:
    """A product as a tuple in canonical order (waves, channels, bands, windows); repeated kinds are refused."""
    if not isinstance(by, Part | Sequence) or isinstance(by, str):
        raise ArgumentError(
            f"explain(by={by!r}): use Waves(), Channels(), Bands(...), Windows(n), a tuple of them, or Pairs(...)."
        )
    parts = (by,) if isinstance(by, Part) else tuple(by)
    if not parts:
        raise ArgumentError("explain(by=()): name at least one kind of part, for example by=Waves().")
    for part in parts:
        if not isinstance(part, Part):
            raise ArgumentError(
                f"explain(by={by!r}): {part!r} is no part; use Waves(), Channels(), Bands(...), Windows(n) or a tuple of them."
            )
    kinds = [type(part) for part in parts]
    if len(set(kinds)) != len(kinds):
        raise ArgumentError(f"explain(by={by!r}): a kind of part may stand only once in a product.")
    if LayerWaves in kinds and len(kinds) > 1:
        raise ArgumentError("explain(by=LayerWaves() with others): the layer account has no products; use it alone.")
    order = (LayerWaves, Waves, Channels, Bands, Windows)
    return tuple(sorted(parts, key=lambda part: order.index(type(part))))
