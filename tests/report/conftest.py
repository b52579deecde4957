"""The invented results, built once and saved once; a test copies what it changes."""

import sys
from pathlib import Path

import pytest
import xarray as xr

sys.path.insert(0, str(Path(__file__).parent))

import synthetic_more
import synthetic_results


@pytest.fixture(scope="session")
def two_class() -> xr.DataTree:
    return synthetic_results.two_class()


@pytest.fixture(scope="session")
def four_class() -> xr.DataTree:
    return synthetic_more.four_class()


@pytest.fixture(scope="session")
def deep() -> xr.DataTree:
    return synthetic_more.deep()
