"""What `oplens build` does: read the function, build, verify, draw, and only then write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from oplens.cli.built_files import conclude, staged, write_model, write_page
from oplens.cli.functions import Wanted, read_bytes, real_function
from oplens.cli.terminal import check_folder, progress
from oplens.construction import (
    Certificate,
    FunctionTable,
    Verification,
    build_bits,
    build_depth2,
    build_fourier,
    build_lookup,
    build_piecewise_linear,
    verify,
)
from oplens.construction.drawing import draw_real, draw_table
from oplens.construction.real_functions import sup_error
from oplens.errors import ArgumentError
from oplens.models import Transformer

DTYPES = ("float64", "float32", "float16", "bfloat16")
_TABLES = {"lookup": build_lookup, "bits": build_bits, "depth2": build_depth2}


@dataclass(frozen=True)
class Checks:
    """How a model is verified, and which inputs are drawn."""

    dtypes: list[str] | None
    budget: float
    shuffles: int
    examples: list[str] | None
    seed: int


@dataclass(frozen=True)
class Built:
    """A model with its proof."""

    model: Transformer
    certificate: Certificate
    verification: Verification


def build_table(kind: str, out: Path, wanted: Wanted, sizes: Mapping[str, Any], checks: Checks) -> None:
    """Constructions A, B and C of a table of a finite vocabulary."""
    dtypes = _dtypes(checks.dtypes)
    check_folder(out)
    known = wanted.read()
    examples = None if checks.examples is None else [_symbols(text, known) for text in checks.examples]
    # A and B hold in every dtype with the same weights, C rounds noise off in the one that it was built in.
    groups = [[name] for name in dtypes] if kind == "depth2" else [dtypes]
    kept = [out / f"verification-{'-'.join(group)}.partial.json" for group in groups]
    done = []
    for group, resume in zip(groups, kept, strict=True):
        model, certificate = _TABLES[kind](known, group[0], **sizes)
        _check_margins(kind, certificate, group)
        with progress("inputs verified") as tick:
            found = verify(
                model,
                known,
                group,
                budget=checks.budget,
                shuffles=checks.shuffles,
                seed=checks.seed,
                progress=tick,
                resume=resume,
            )
        typer.echo(f"{certificate}\n{found}")
        if not found.passed:
            raise ArgumentError(f"build {kind}: {found.errors} outputs are wrong, so nothing was written.")
        done.append(Built(model, certificate, found))
    pairs = [(built.certificate, built.verification) for built in done]
    tree = draw_table(done[0].model, known, pairs, examples, checks.seed)
    with staged(out) as stage:
        for group, built in zip(groups, done, strict=True):
            folder = stage / group[0] if len(groups) > 1 else stage
            write_model(folder, built.model, built.certificate, built.verification.to_dict())
        write_page(stage, tree)
    for path in kept:
        path.unlink(missing_ok=True)
    conclude(out, tree)


def build_real(
    kind: str,
    out: Path,
    function: tuple[str | None, str | None, int | None],
    lipschitz: str,
    bounds: str,
    dtype: str,
    sizes: Mapping[str, Any],
    memory_limit: str,
    points: int,
    examples: list[str] | None,
    seed: int,
) -> None:
    """Constructions E and F of a function of reals."""
    check_folder(out)
    f, n, name = real_function(kind, *function)
    norm, constant = _pair("--lipschitz", lipschitz, "a norm (l1, l2, max) and a number, such as max:1")
    low, high = _pair("--bounds", bounds, "two numbers, such as 0:1")
    limits = (_number("--bounds", low), _number("--bounds", high))
    if dtype not in ("float64", "float32"):
        raise ArgumentError(f"--dtype {dtype}: choose float64 or float32; half precisions have no certificate here.")
    drawn = None if examples is None else [_point(text, n) for text in examples]
    build: Any = build_piecewise_linear if kind == "piecewise-linear" else build_fourier
    model, certificate = build(
        f,
        n,
        lipschitz=(norm, _number("--lipschitz", constant)),
        bounds=limits,
        dtype=dtype,
        seed=seed,
        memory_limit=read_bytes(memory_limit),
        **sizes,
    )
    found = sup_error(model, f, limits, points, seed)
    typer.echo(
        f"{certificate}\nlargest error found at {found.evaluations:,} points (a lower bound of the sup error): {found.value:.6g}"
    )
    if found.value > certificate.error_bound:
        raise ArgumentError(f"build {kind}: the error found is above the certificate, so nothing was written.")
    tree = draw_real(model, f, certificate, found, limits, name, drawn, seed)
    measured = {
        "value": found.value,
        "point": list(found.point),
        "evaluations": found.evaluations,
        "claim": found.claim,
    }
    with staged(out) as stage:
        write_model(stage, model, certificate, {"mode": "sampled", "sup_error": measured})
        write_page(stage, tree)
    conclude(out, tree)


def _dtypes(names: list[str] | None) -> list[str]:
    """Asked for, the widest first: weights are stored in it."""
    unknown = [name for name in names or () if name not in DTYPES]
    if unknown:
        raise ArgumentError(f"--dtype {unknown[0]}: choose from {', '.join(DTYPES)}.")
    return [name for name in DTYPES if names is None or name in names]


def _check_margins(kind: str, certificate: Certificate, dtypes: Sequence[str]) -> None:
    for item in certificate.margins:
        if item.dtype in dtypes and not item.met:
            raise ArgumentError(
                f"build {kind}: in {item.dtype} the {item.quantity} is {item.delivered:.4g} where {item.required:.4g} is needed; leave the "
                "dtype out with --dtype, or shorten the input."
            )


def _symbols(text: str, table: FunctionTable) -> list[int]:
    """An example as numbers of symbols."""
    parts = [part.strip() for part in text.split(",")]
    names = table.symbols or tuple(str(symbol) for symbol in range(table.vocabulary))
    if len(parts) != table.length or any(part not in names for part in parts):
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise ArgumentError(f"--example {text}: give {table.length} symbols separated by commas, out of {shown}.")
    return [names.index(part) for part in parts]


def _point(text: str, n: int) -> list[float]:
    parts = [_number("--example", part) for part in text.split(",")]
    if len(parts) != n:
        raise ArgumentError(f"--example {text}: give {n} number{'s' if n > 1 else ''} separated by commas.")
    return parts


def _pair(option: str, text: str, expected: str) -> tuple[str, str]:
    parts = text.split(":")
    if len(parts) != 2 or not all(parts):
        raise ArgumentError(f"{option} {text}: give {expected}.")
    return parts[0], parts[1]


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ArgumentError(f"{option}: {text!r} is no number.") from error
