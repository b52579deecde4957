"""What a page is made of, as data: sections that hold pictures, tables and cards."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import xarray as xr


@dataclass(frozen=True)
class Limits:
    """How much a page may hold; `render` tries the next smaller ones when a page grows too large."""

    cases: int = 12
    waves: int = 400
    variants: int = 36


@dataclass(frozen=True)
class Choice:
    """One question the reader can answer, such as the order to show."""

    label: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Switch:
    """Choices that several pictures follow; a picture's variant is named by the chosen keys joined by `|`."""

    id: str
    choices: Sequence[Choice]


@dataclass(frozen=True)
class Picture:
    """One place on the page that shows one of several figures."""

    id: str
    title: str
    caption: str
    variants: Mapping[str, "go.Figure"]
    switch: str | None = None

    @property
    def height(self) -> int:
        """Pixels to reserve, so that nothing jumps when the figure is drawn."""
        return max(int(variant.layout.height) for variant in self.variants.values())


@dataclass(frozen=True)
class Table:
    """Rows of texts; columns in `numeric` are set flush right."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Tile:
    """One number that a reader should see first, what it is, and its interval."""

    value: str
    words: str
    more: str = ""


@dataclass(frozen=True)
class Ramp:
    """The one colour scale of several pictures: what it shows, its ends, its shades from low to high."""

    words: str
    low: str
    high: str
    shades: Sequence[str]


@dataclass(frozen=True)
class Card:
    """One case: what was decided, and its pictures."""

    heading: str
    decided: str
    labelled: str | None
    right: bool | None
    why: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Section:
    """One part of the page: a question, its answer in words, and what shows it."""

    id: str
    nav: str
    title: str
    findings: Sequence[str] = ()
    key: tuple[str, str] | None = None
    switch: Switch | None = None
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    cards: Sequence[Card] = field(default_factory=tuple)
    tiles: Sequence[Tile] = ()
    ramp: Ramp | None = None
    columns: int = 0  # 3: small multiples; 0: one column, or two for two or four pictures


def group(results: "xr.DataTree | xr.Dataset", name: str) -> "xr.Dataset | None":
    """Return the group `name` of a result, or what is that group itself; None where the result has none."""
    import xarray as xr

    if isinstance(results, xr.Dataset):
        return results
    return results.children[name].to_dataset(inherit=False) if name in results.children else None


def switched(name: str, questions: Mapping[str, Mapping[str, str]]) -> tuple[Switch | None, dict[str, tuple[str, ...]]]:
    """Return a section's switch, and every variant's key with the answers it stands for; a single answer is no question.

    Examples
    --------
    >>> switched("waves", {"show": {"1": "order 1", "2": "order 2"}, "class": {"a": "a"}})[1]
    {'1': ('1', 'a'), '2': ('2', 'a')}
    """
    asked = [len(options) > 1 for options in questions.values()]
    choices = [Choice(label, options) for label, options in questions.items() if len(options) > 1]
    keys = {
        "|".join(answer for answer, kept in zip(answers, asked, strict=True) if kept): answers
        for answers in product(*questions.values())
    }
    return (Switch(f"switch-{slug(name)}", choices) if choices else None), keys


def slug(name: str) -> str:
    """Return an HTML id for a group of the file, unlike every other group's and every fixed section's."""
    clean = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "-" for c in name)
    return f"by-{clean}" if clean == name else f"by-{clean}-{zlib.crc32(name.encode(errors='replace'))}"
