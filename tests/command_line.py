"""The command `oplens` in this process, as if a user had typed it."""

import sys
from typing import Any

import pytest

from oplens.cli.main import main


def typed(monkeypatch: pytest.MonkeyPatch, capsys: Any, *words: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["oplens", *map(str, words)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main()
    code = stopped.value.code
    return (0 if code is None else int(code)), *capsys.readouterr()
