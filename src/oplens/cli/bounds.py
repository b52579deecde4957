"""What `oplens bound` does: arguments from the command line into a function of :mod:`oplens.theory`."""

import inspect
import json
from typing import Any

import typer

from oplens.errors import ArgumentError
from oplens.theory import BOUNDS


def print_bound(name: str | None, values: list[str]) -> None:
    """Print one bound, or the list of them."""
    if name is None:
        width = max(map(len, BOUNDS))
        for known, function in BOUNDS.items():
            typer.echo(f"{known:{width}}  {(inspect.getdoc(function) or '').splitlines()[0]}")
        return
    if name not in BOUNDS:
        raise ArgumentError(f"bound {name}: unknown; choose from {', '.join(BOUNDS)}.")
    function = BOUNDS[name]
    parameters = inspect.signature(function).parameters
    wanted = ", ".join(n if p.default is p.empty else f"{n}={p.default}" for n, p in parameters.items())
    given: dict[str, Any] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or key not in parameters or key in given:
            raise ArgumentError(f"bound {name}: {text!r} is none of its arguments, each once as NAME=VALUE: {wanted}.")
        given[key] = _read(value)
    missing = [n for n, p in parameters.items() if p.default is p.empty and n not in given]
    if missing:
        raise ArgumentError(f"bound {name}: {', '.join(missing)} missing; its arguments are {wanted}.")
    typer.echo(str(function(**given)))


def _read(text: str) -> Any:
    """A number, a flag or a list where the text is one, else a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text
