"""The command `oplens`: parse, call, write. Exit codes: 0 done, 1 refused (one sentence on stderr), 2 wrong usage."""

from oplens.cli.main import main

__all__ = ["main"]
