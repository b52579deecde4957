"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the real data and golden files; its absence is a failure in continuous integration."""
    value = os.environ.get("OPLENS_TEST_DATA")
    if value and Path(value).is_dir():
        return Path(value)
    reason = "OPLENS_TEST_DATA does not name the folder of the real data and golden checkpoints"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
