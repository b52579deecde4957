"""Results at the boundary: one validated NetCDF file per saved result, read back as an `xarray.DataTree`."""

from oplens.results.files import read_results, write_results
from oplens.results.provenance import provenance
from oplens.results.schema import part_dimensions, recomputed_completeness, validate
from oplens.results.tables import CLAIMS, DIMENSIONS, PART_DIMENSIONS

__all__ = [
    "CLAIMS",
    "DIMENSIONS",
    "PART_DIMENSIONS",
    "part_dimensions",
    "provenance",
    "read_results",
    "recomputed_completeness",
    "validate",
    "write_results",
]
