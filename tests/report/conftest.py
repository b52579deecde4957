"""One browser for the tests of a module."""

from collections.abc import Iterator
from typing import Any

import pytest

from browsing import launched


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found
