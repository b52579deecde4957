"""One browser for the tests of a module, and pages that several of them open, written once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import launched
from oplens.report import render


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def page_of_fixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The page of the result that a fixture of this name gives, unchanged."""
    written: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in written:
            written[name] = render(request.getfixturevalue(name), tmp_path_factory.mktemp("pages") / f"{name}.html")
        return written[name]

    return find
