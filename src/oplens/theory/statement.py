"""What a bound says and under which hypotheses, as data; and the checks that keep arguments inside them."""

import math
import operator
from dataclasses import dataclass
from typing import Any

from oplens.errors import ArgumentError

CLAIMS = ("exact", "conditional", "truncated", "bound", "fitted", "measured")
PAPER = "Teoria da Aproximação Universal em Transformers de Profundidade Arbitrária"
LARGEST_EXPONENT = 1000  # counts are returned as whole numbers; above 2^1000 a user's own arithmetic leaves float64
LARGEST_COUNT = 10**100  # products of three such numbers are still float64s; nothing that exists is counted beyond
# Fifth powers of such numbers, and products with counts, are still float64s.
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-60, 1e60
_SLACK = 1e-12  # far above the rounding of the formulas here, far below what moves a count by one


@dataclass(frozen=True)
class Quantity:
    """One number of a bound.

    Parameters
    ----------
    name : str
    value : int or float
        A whole number where the quantity counts.
    units : str
        "1" for a pure number; "same as f" for an error.
    claim : {"exact", "conditional", "truncated", "bound", "fitted", "measured"}
    long_name : str
    """

    name: str
    value: int | float
    units: str
    claim: str
    long_name: str


@dataclass(frozen=True)
class Stated:
    """What the paper states, under the paper's own name; never a bound.

    Parameters
    ----------
    name : str
        As printed in the paper ("Teorema 1").
    formula : str
    values : tuple of (str, float)
        The formula at these arguments, every constant that an O or Omega hides set to 1; empty where it gives no number.
    verdict : str
        What holds instead, in one sentence.
    """

    name: str
    formula: str
    values: tuple[tuple[str, float], ...]
    verdict: str

    @property
    def value(self) -> float | None:
        """The first number, or None."""
        return self.values[0][1] if self.values else None


@dataclass(frozen=True)
class Bound:
    """A statement with its numbers.

    Parameters
    ----------
    name : str
        Key in :data:`oplens.theory.BOUNDS`.
    quantities : tuple of Quantity
        The first is the principal one.
    statement : str
    hypotheses : tuple of str
        All of them; the statement says nothing where one fails.
    source : str
    stated : Stated or None
        What the paper states about the same thing, where it states anything.

    Examples
    --------
    >>> from oplens.theory import sup_parameters
    >>> bound = sup_parameters(length=10, bits=8)
    >>> bound.value, bound.claim, bound["bits"]
    (128, 'bound', 1024)
    """

    name: str
    quantities: tuple[Quantity, ...]
    statement: str
    hypotheses: tuple[str, ...]
    source: str
    stated: Stated | None = None

    def __post_init__(self) -> None:
        for quantity in self.quantities:
            if isinstance(quantity.value, float) and not math.isfinite(quantity.value):
                raise ArgumentError(
                    f"{self.name}: {quantity.name} is beyond float64 at these arguments; give numbers nearer to 1, in other units."
                )

    @property
    def value(self) -> int | float:
        """The principal number."""
        return self.quantities[0].value

    @property
    def claim(self) -> str:
        """The claim word of the principal number."""
        return self.quantities[0].claim

    def __getitem__(self, name: str) -> int | float:
        for quantity in self.quantities:
            if quantity.name == name:
                return quantity.value
        raise KeyError(f"{self.name} has no quantity {name!r}; it has {', '.join(q.name for q in self.quantities)}")

    def __str__(self) -> str:
        """All of it as lines of text."""
        numbers = [f"  {q.name} = {_shown(q.value)} [{q.units}; {q.claim}]  {q.long_name}" for q in self.quantities]
        lines = [f"{self.name}: {self.statement}", *numbers, *(f"  given: {text}" for text in self.hypotheses)]
        lines.append(f"  source: {self.source}")
        if self.stated is not None:
            numbers = [f"{name} = {_shown(value)}" for name, value in self.stated.values]
            lines.append(f"  the paper, {self.stated.name}: {'; '.join([self.stated.formula, *numbers])}")
            lines.append(f"  verdict: {self.stated.verdict}")
        return "\n".join(lines)


def _shown(value: int | float) -> str:
    """Whole numbers in full up to 12 digits, else six significant digits."""
    return str(value) if isinstance(value, int) and abs(value) < 10**12 else f"{float(value):.6g}"


def count(call: str, name: str, value: Any, least: int = 1, most: int | None = None, meaning: str = "") -> int:
    """A whole number in [least, most]; numpy's whole numbers are taken, True and 3.0 are not."""
    limits = f"of at least {least}" if most is None else f"between {least} and {most}"
    meaning = f" ({meaning})" if meaning else ""
    try:
        whole = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = None
    if most is None and whole is not None and whole > LARGEST_COUNT:
        limits = "of at most 1e100"
    if whole is None or not least <= whole <= (LARGEST_COUNT if most is None else most):
        raise ArgumentError(f"{call}({name}={_named(value)}): {name}{meaning} must be a whole number {limits}.")
    return whole


def number(
    call: str,
    name: str,
    value: Any,
    least: float = 0.0,
    below: float = math.inf,
    *,
    open_below: bool = False,
    meaning: str = "",
) -> float:
    """A finite real number in [least, below), or in (least, below) with `open_below`; between 1e-60 and 1e60 in size, or 0 where 0 is a value."""
    meaning = f" ({meaning})" if meaning else ""
    sign = "above" if open_below else "at least"
    ends = ((f"{sign} {least:g}", least > -math.inf), (f"below {below:g}", below < math.inf))
    limits = " and ".join(words for words, there in ends if there)
    smallest = SMALLEST_NUMBER if open_below and least == 0 else 0.0
    try:
        real = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        real = math.nan
    if not math.isfinite(real) or real < least or real >= below or (open_below and real == least):
        raise ArgumentError(
            f"{call}({name}={_named(value)}): {name}{meaning} must be {f'a finite number {limits}'.rstrip()}."
        )
    if not smallest <= abs(real) <= LARGEST_NUMBER:
        raise ArgumentError(
            f"{call}({name}={real:g}): {name}{meaning} is computed with in float64 and must lie between "
            f"{smallest:g} and {LARGEST_NUMBER:g} in size; change the units."
        )
    return real


def _named(value: Any) -> str:
    """A value as it was given, cut where it is long: whole numbers of more than 4300 digits cannot even be printed."""
    if isinstance(value, int) and abs(value) >= LARGEST_COUNT:
        return f"a number of {value.bit_length()} binary digits"
    return repr(value)


def numbers(
    call: str, name: str, values: Any, *, least: float = 0.0, length: int | None = None, meaning: str = ""
) -> tuple[float, ...]:
    """A non-empty sequence of finite numbers of at least `least`, of the given length."""
    try:
        given = list(values)
    except TypeError:
        raise ArgumentError(
            f"{call}({name}={values!r}): {name} must be a sequence of numbers, one for each layer or term."
        ) from None
    items = tuple(number(call, f"{name}[{i}]", value, least, meaning=meaning) for i, value in enumerate(given))
    if not items:
        raise ArgumentError(f"{call}({name}=[]): {name} is empty; give at least one number.")
    if length is not None and len(items) != length:
        raise ArgumentError(f"{call}: {name} has {len(items)} numbers where {length} are expected; give one for each.")
    return items


def flag(call: str, name: str, value: Any) -> bool:
    """True or False: a word such as "no", from a command line, would count as True."""
    if not isinstance(value, bool):
        raise ArgumentError(
            f"{call}({name}={_named(value)}): {name} must be True or False (true or false on the command line)."
        )
    return value


def power(call: str, base: int, exponent: int) -> int:
    """base^exponent as a whole number, refused above 2^1000."""
    if exponent * math.log2(max(base, 1)) > LARGEST_EXPONENT:
        raise ArgumentError(
            f"{call}: {base}^{exponent} exceeds 2^{LARGEST_EXPONENT}, more than this counts; the formula stands, work with its logarithm."
        )
    return int(base**exponent)


def least_count(value: float) -> int:
    """The smallest whole number that `value`, lowered by more than its rounding, allows: a lower bound never claims too much."""
    return math.ceil(value * (1 - _SLACK)) if value > 0 else 0


def entropy(p: float) -> float:
    """H2(p) = -p log2 p - (1 - p) log2(1 - p), with 0 log 0 = 0."""
    return 0.0 if p in (0.0, 1.0) else -p * math.log2(p) - (1 - p) * math.log1p(-p) / math.log(2)


def spare(p: float) -> float:
    """1 - H2(p) for p in [0, 1/2], with all its digits near 1/2, where the difference would lose them."""
    if p <= 0.25:
        return 1 - entropy(p)
    d = 1 - 2 * p
    return (2 * d * math.atanh(d) + math.log1p(-d * d)) / (2 * math.log(2))
