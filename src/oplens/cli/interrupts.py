"""Ctrl-C is a sentence as well."""

from collections.abc import Callable
from typing import Any

import typer


def call(verb: Callable[..., None], *arguments: Any, left: str) -> None:
    """Run a verb; `left` says what an interrupt leaves behind."""
    try:
        verb(*arguments)
    except KeyboardInterrupt:
        typer.echo(f"oplens: interrupted; {left}.", err=True)
        raise typer.Exit(130) from None
