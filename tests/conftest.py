"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest
import xarray as xr


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


# Invented results, built once; a test copies what it changes.


@pytest.fixture(scope="session")
def two_class() -> xr.DataTree:
    import synthetic_results

    return synthetic_results.two_class()


@pytest.fixture(scope="session")
def four_class() -> xr.DataTree:
    import synthetic_more

    return synthetic_more.four_class()


@pytest.fixture(scope="session")
def deep() -> xr.DataTree:
    import synthetic_more

    return synthetic_more.deep()
