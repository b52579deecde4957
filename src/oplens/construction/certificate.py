"""What is known of a constructed model before it is run: its claim, its error bound in parts, its margins and its size."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from oplens.errors import ArgumentError

CLAIMS = ("exact", "bound")  # a construction is exact, or within a certified bound


@dataclass(frozen=True)
class Margin:
    """How far a construction is, in one dtype, from where rounding would change its output.

    Parameters
    ----------
    dtype : str
        "float64", "float32", "float16" or "bfloat16".
    quantity : str
        What is compared ("score gap").
    required, delivered : float
        What exactness needs, and the least that the stored weights give when every rounding is at its worst.

    Examples
    --------
    >>> Margin("float16", "score gap", required=8.5, delivered=9.0).met
    True
    """

    dtype: str
    quantity: str
    required: float
    delivered: float

    @property
    def margin(self) -> float:
        """Delivered less required; exactness is certified where it is not negative."""
        return self.delivered - self.required

    @property
    def met(self) -> bool:
        """Whether the dtype is certified."""
        return self.margin >= 0


@dataclass(frozen=True)
class Certificate:
    """A construction's claim and its numbers.

    Parameters
    ----------
    construction : str
        "lookup", "bits", "depth2", "fourier", "piecewise-linear", "ssm".
    claim : {"exact", "bound"}
        Exact: every output is the function's value, to the last bit; where `rounding_parts` are given, in real arithmetic with weights
        that are not rounded, and within their sum as stored and run. Bound: within `error_bound` of it, everywhere.
    dtype : str
        Of the weights, and of the claim.
    statement : str
        The claim in one sentence.
    hypotheses : tuple of str
        All of them.
    error_parts : tuple of (str, float)
        Named parts of the bound on the sup error, in units of the function's values: all of it, or what the rounding parts leave.
    depth, attention_layers : int
        Layers, and how many of them attend.
    width, hidden : int, tuple of int
        Residual coordinates; hidden units, layer by layer.
    dense, sparse : int
        Places for weights in the dense model, readout included; weights that are not 0.
    readout : int
        Of `sparse`, the weights that copy the answer's coordinates out.
    dense_uniform : int or None
        Places when every layer gets the sizes of the largest one, as in a published table of sizes; the readout is not counted.
    temperature : float or None
        Inverse temperature of the attention scores; None where none is used.
    margins : tuple of Margin
        One per dtype in which the weights were judged, `dtype` among them.
    rounding_parts : tuple of (str, float)
        Bounds, in the same units, on what rounding alone does where it cannot be rounded away; empty where it can, or where
        `error_parts` hold it.

    Examples
    --------
    >>> found = Certificate("lookup", "exact", "float64", "...", (), (("arithmetic", 0.0),), 2, 2, 49, (32, 512), 57606, 2269, 1)
    >>> found.error_bound, found.to_dict()["hidden"]
    (0.0, [32, 512])
    """

    construction: str
    claim: str
    dtype: str
    statement: str
    hypotheses: tuple[str, ...]
    error_parts: tuple[tuple[str, float], ...]
    depth: int
    attention_layers: int
    width: int
    hidden: tuple[int, ...]
    dense: int
    sparse: int
    readout: int
    dense_uniform: int | None = None
    temperature: float | None = None
    margins: tuple[Margin, ...] = ()
    rounding_parts: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        if self.claim not in CLAIMS:
            raise ArgumentError(f"Certificate(claim={self.claim!r}): choose one of {', '.join(CLAIMS)}.")
        parts = (*self.error_parts, *self.rounding_parts)
        bad = [name for name, value in parts if not 0 <= value < math.inf]
        if bad:
            raise ArgumentError(f"Certificate: error parts {', '.join(bad)} must be finite and not negative.")
        error = math.fsum(value for _, value in self.error_parts)
        if self.claim == "exact" and error > 0:
            raise ArgumentError(f"Certificate(claim='exact'): its error parts sum to {error:g}, not to 0.")

    @property
    def error_bound(self) -> float:
        """Bound on the sup error: the sum of its parts, rounding among them."""
        return math.fsum(value for _, value in (*self.error_parts, *self.rounding_parts))

    @property
    def margin(self) -> Margin | None:
        """The margin of the dtype that the certificate speaks of."""
        return next((margin for margin in self.margins if margin.dtype == self.dtype), None)

    @property
    def certified_dtypes(self) -> tuple[str, ...]:
        """The dtypes into which the weights may be converted with their margin kept."""
        return tuple(margin.dtype for margin in self.margins if margin.met)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary of the fields, the error bound and each margin's difference."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            **values,
            "hypotheses": list(self.hypotheses),
            "hidden": list(self.hidden),
            "error_bound": self.error_bound,
            "error_parts": dict(self.error_parts),
            "rounding_parts": dict(self.rounding_parts),
            "margins": [{**dataclasses.asdict(item), "margin": item.margin} for item in self.margins],
            "certified_dtypes": list(self.certified_dtypes),
        }

    def __str__(self) -> str:
        """All of it as lines of text."""
        lines = [f"{self.construction} in {self.dtype}, {self.claim}: {self.statement}"]
        lines += [f"  given: {text}" for text in self.hypotheses]
        lines.append(f"  sup error at most {self.error_bound:.6g}")
        lines += [f"    {name}: {value:.6g}" for name, value in (*self.error_parts, *self.rounding_parts)]
        if self.temperature is not None:
            lines.append(f"  inverse temperature {self.temperature:.6g}")
        for item in self.margins:
            verdict = "met" if item.met else "not met"
            lines.append(
                f"  {item.dtype}: {item.quantity} {item.delivered:.4g}, {item.required:.4g} needed ({verdict})"
            )
        lines.append(f"  {self.depth} layers, {self.attention_layers} attend; width {self.width}; hidden {self.hidden}")
        lines.append(f"  {self.dense:,} weights dense, {self.sparse:,} not 0")
        return "\n".join(lines)
