"""What `oplens build` does: read the function, build, verify, and only then write."""

import json
from pathlib import Path
from typing import Any

import typer

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
from oplens.construction.families import NAMED
from oplens.construction.formulas import formula
from oplens.construction.real_functions import sup_error
from oplens.errors import ArgumentError
from oplens.files import replacing
from oplens.models import Transformer

DTYPES = ("float64", "float32", "float16", "bfloat16")
_TABLES = {"lookup": build_lookup, "bits": build_bits, "depth2": build_depth2}


def build_table(
    kind: str,
    out: Path,
    function: str | None,
    table: Path | None,
    length: int | None,
    vocabulary: int,
    dtypes: list[str] | None,
    budget: float,
    shuffles: int,
    seed: int,
) -> None:
    """Constructions A, B and C of a table of a finite vocabulary."""
    wanted = _dtypes(dtypes)
    _check_out(out)
    known = _function(kind, function, table, length, vocabulary, seed)
    done: list[tuple[Path, Transformer, Certificate, Verification]] = []
    # A and B hold in every dtype with the same weights, C rounds noise off in the one that it was built in.
    groups = [[name] for name in wanted] if kind == "depth2" else [wanted]
    for group in groups:
        model, certificate = _TABLES[kind](known, group[0] if kind == "depth2" else "float64")
        lacking = [item for item in certificate.margins if item.dtype in group and not item.met]
        if lacking:
            item = lacking[0]
            raise ArgumentError(
                f"build {kind}: in {item.dtype} the {item.quantity} is {item.delivered:.4g} where {item.required:.4g} is needed; leave the "
                "dtype out with --dtype, or shorten the input."
            )
        found = verify(model, known, group, budget=budget, shuffles=shuffles, seed=seed, progress=_progress())
        typer.echo(f"{certificate}\n{found}")
        if not found.passed:
            raise ArgumentError(f"build {kind}: {found.errors} outputs are wrong, so nothing was written.")
        done.append((out / group[0] if len(groups) > 1 else out, model, certificate, found))
    for folder, model, certificate, found in done:
        _write(folder, model, certificate, found.to_dict())


def build_real(kind: str, out: Path, text: str, size: int, lipschitz: str, bounds: str, seed: int) -> None:
    """Constructions E and F of a function of reals."""
    _check_out(out)
    f = formula(text)
    norm, constant = _pair("--lipschitz", lipschitz, "a norm (l1, l2, max) and a number, such as max:1")
    low, high = _pair("--bounds", bounds, "two numbers, such as 0:1")
    limits = (_number("--bounds", low), _number("--bounds", high))
    build: Any = build_piecewise_linear if kind == "piecewise-linear" else build_fourier
    model, certificate = build(f, f.n, size, (norm, _number("--lipschitz", constant)), limits, seed=seed)
    found = sup_error(model, f, limits, seed=seed)
    typer.echo(
        f"{certificate}\nlargest error found at {found.evaluations:,} points (a lower bound of the sup error): {found.value:.6g}"
    )
    if found.value > certificate.error_bound:
        raise ArgumentError(f"build {kind}: the error found is above the certificate, so nothing was written.")
    measured = {
        "value": found.value,
        "point": list(found.point),
        "evaluations": found.evaluations,
        "claim": found.claim,
    }
    _write(out, model, certificate, {"mode": "sampled", "sup_error": measured})


def _function(
    kind: str, function: str | None, table: Path | None, length: int | None, vocabulary: int, seed: int
) -> FunctionTable:
    if (function is None) == (table is None):
        raise ArgumentError(f"build {kind}: give --function NAME with --length N, or --table FILE.")
    if table is not None:
        return FunctionTable.from_file(table)
    assert function is not None
    if length is None:
        raise ArgumentError(
            f"build {kind}(--function {function}): --length is missing, the number of symbols of an input."
        )
    name = (
        function
        if function in NAMED
        else function.replace("-", "_")
        if function.replace("-", "_") in NAMED
        else function
    )
    options = {"seed": seed} if name == "random" else {}
    return FunctionTable.from_family(name, vocabulary, length, **options)


def _dtypes(names: list[str] | None) -> list[str]:
    names = list(dict.fromkeys(names or DTYPES))
    unknown = [name for name in names if name not in DTYPES]
    if unknown:
        raise ArgumentError(f"--dtype {unknown[0]}: choose from {', '.join(DTYPES)}.")
    return names


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


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ArgumentError(f"--out {out}: this is a file; give a folder.")


def _progress() -> Any:
    """A line on stderr at every tenth of the inputs."""
    told = -1

    def tell(done: int, total: int) -> None:
        nonlocal told
        tenth = 10 * done // max(total, 1)
        if tenth > told:
            told = tenth
            typer.echo(f"  verified {done:,} of {total:,} inputs", err=True)

    return tell


def _write(folder: Path, model: Transformer, certificate: Certificate, verification: dict[str, Any]) -> None:
    model.save_pretrained(folder)
    for name, content in (("certificate", certificate.to_dict()), ("verification", verification)):
        with replacing(folder / f"{name}.json") as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    typer.echo(f"wrote {folder}: model, certificate.json, verification.json", err=True)
