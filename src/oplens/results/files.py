"""Writing a tree under a temporary name, and reading back nothing but whole files of our own."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

from oplens.errors import ResultError
from oplens.files import kind_of, netcdf_head, replacing
from oplens.results.provenance import provenance, storable
from oplens.results.schema import validate

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_COMPLEX = "complex_of"
# What is met under the name of a result, by kind (oplens.files.kind_of).
_FOREIGN = {
    "git-lfs": "this is a Git LFS pointer, not the file itself; run `git lfs pull`",
    "html": "this is a web page; the download saved a page in place of the file (or this is a report, not its results)",
    "netcdf-3": "this is a NetCDF-3 file; results are NetCDF-4, written by write_results",
    **dict.fromkeys(("zip", "gzip", "bzip2", "xz"), "this is a compressed archive; unpack it first"),
    "hdf5": "the first bytes are damaged, as by a transfer in text mode; copy it again in binary mode",
}


def write_results(tree: xr.DataTree, path: str | os.PathLike[str]) -> Path:
    """Validate `tree` and write it as one NetCDF-4 file; a reader never sees half a file.

    Complex variables are kept as a `_real` and an `_imag` variable, booleans as int8. Every block of numbers carries a
    checksum. The root's `model` and `data` may be mappings; they are kept as JSON. `created_at` and `oplens_version`
    are added at the root where they are missing. The given tree is left as it is.

    Parameters
    ----------
    tree
        Groups as in `docs/schema.md`; the root has at least the attribute `title`.
    path
        Where to write; an existing file is replaced at once, and only when the new one is complete.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ResultError
        The tree departs from the schema, or the file cannot be written.

    Examples
    --------
    >>> import tempfile, xarray as xr
    >>> from oplens.results import read_results, write_results
    >>> attrs = {"units": "1", "long_name": "agreement with the model", "claim": "measured"}
    >>> summary = xr.Dataset({"agreement": ("order", [0.9, 1.0], attrs)}, coords={"order": [1, 2]})
    >>> tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "Example"}), "/summary": summary})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     back = read_results(write_results(tree, folder + "/example.nc"))
    >>> back["summary/agreement"].values.tolist()
    [0.9, 1.0]
    """
    if not isinstance(tree, xr.DataTree):
        raise ResultError(
            f"write_results(tree={type(tree).__name__}): give a DataTree, of oplens.assemble(operator, X) or xr.DataTree.from_dict; "
            "the path comes second."
        )
    target = Path(path)
    if target.is_dir():
        raise ResultError(f"{target}: this is a folder; give the name of the file to write, such as results.nc.")
    if not target.parent.is_dir():
        raise ResultError(f"{target}: the folder {target.parent} does not exist; create it first.")
    stored = _storable_tree(tree)
    validate(stored)
    try:
        with replacing(target) as temporary:
            stored.to_netcdf(temporary, engine="h5netcdf", encoding=_encodings(stored))
    except (OSError, ValueError, TypeError) as error:
        raise ResultError(f"{target}: could not be written ({_first_line(error)}).") from error
    return target


def read_results(path: str | os.PathLike[str]) -> xr.DataTree:
    """Read a whole result file into memory and validate it.

    Returns
    -------
    xarray.DataTree
        Equal to what was written: complex variables joined again, booleans as booleans, texts as texts.

    Raises
    ------
    ResultError
        No such file; not a NetCDF-4 file; damaged; written by another program; departs from `docs/schema.md`.
    """
    source = Path(path)
    _refuse_foreign_bytes(source)
    try:
        # HDF5 looks at every object first: h5netcdf, stopped while opening, prints a traceback when it is collected.
        with h5py.File(source) as file:
            file.visititems(lambda name, found: None)
        with xr.open_datatree(source, engine="h5netcdf") as opened:
            tree = opened.load()
    except MemoryError:
        raise
    except Exception as error:  # HDF5 reports damage as OSError, KeyError, RuntimeError, ValueError and others
        raise ResultError(
            f"{source}: the file is damaged or incomplete ({_first_line(error)}); copy it again or write it anew."
        ) from error
    if "oplens_version" not in tree.attrs or "title" not in tree.attrs:
        raise ResultError(
            f"{source}: this is a NetCDF file, but not a result of oplens (it lacks the attributes title and "
            "oplens_version); give a file that `oplens explain` or write_results made."
        )
    try:
        tree = _joined_tree(tree)
        validate(tree)
    except ResultError as error:
        raise ResultError(f"{source}: {error}") from None
    return tree


def _refuse_foreign_bytes(source: Path) -> None:
    head = netcdf_head(source, ResultError)
    if head.startswith(_HDF5_MAGIC):
        return
    if not head:
        raise ResultError(f"{source}: the file is empty; write it anew.")
    otherwise = "this is not a NetCDF-4 file; give a file that `oplens explain` or write_results made"
    raise ResultError(f"{source}: {_FOREIGN.get(kind_of(head), otherwise)}.")


def _storable_tree(tree: xr.DataTree) -> xr.DataTree:
    datasets = {}
    for node in tree.subtree:
        dataset = node.to_dataset(inherit=False)
        attributes = {str(name): value for name, value in dataset.attrs.items()}
        if node is tree:
            attributes = {**_root_provenance(attributes), **attributes}
        dataset.attrs = _storable_attributes(attributes, node.path)
        for name in list(map(str, dataset.variables)):
            array = dataset[name].copy()
            array.attrs = _storable_attributes(dict(array.attrs), f"{node.path}: variable {name!r}")
            dataset = _replace(dataset, name, array, node.path)
        datasets[node.path] = dataset
    return xr.DataTree.from_dict(datasets)


def _root_provenance(attributes: dict[str, Any]) -> dict[str, Any]:
    whole = provenance(source=str(attributes.get("source", "not stated")))
    return {name: whole[name] for name in ("created_at", "oplens_version", "source")}


def _storable_attributes(attributes: dict[str, Any], where: str) -> dict[str, Any]:
    return {str(name): storable(str(name), value, where) for name, value in attributes.items() if value is not None}


def _replace(dataset: xr.Dataset, name: str, array: xr.DataArray, path: str) -> xr.Dataset:
    kind = array.dtype.kind
    if kind == "c":
        if name in dataset.coords:
            raise ResultError(f"{path}: the coordinate {name!r} is complex; keep its real and imaginary parts apart.")
        halves = {
            f"{name}_{half}": array.copy(data=getattr(array.values, half)).assign_attrs({_COMPLEX: name})
            for half in ("real", "imag")
        }
        return dataset.drop_vars(name).assign(halves)
    if kind not in "biufUOT":
        raise ResultError(f"{path}: variable {name!r} has the type {array.dtype}; use numbers, booleans or texts.")
    if kind in "UOT":
        for item in array.values.ravel().tolist():
            if not isinstance(item, str):
                raise ResultError(
                    f"{path}: variable {name!r} mixes texts with {type(item).__name__}; use texts throughout or numbers."
                )
            storable(name, item, path)
        if kind != "U":
            array = array.copy(data=np.asarray(array.values.tolist(), dtype=np.str_).reshape(array.shape))
    return dataset.assign_coords({name: array}) if name in dataset.coords else dataset.assign({name: array})


def _encodings(tree: xr.DataTree) -> dict[str, dict[str, dict[str, Any]]]:
    """Compression, which brings a checksum, for every block of numbers; HDF5 has none for single values and texts."""
    return {
        node.path: {
            str(name): {"compression": "gzip", "compression_opts": 4, "shuffle": True}
            for name, variable in node.to_dataset(inherit=False).variables.items()
            if variable.dtype.kind in "biuf" and variable.size > 1
        }
        for node in tree.subtree
    }


def _joined_tree(tree: xr.DataTree) -> xr.DataTree:
    datasets = {}
    for node in tree.subtree:
        dataset = node.to_dataset(inherit=False)
        names = {str(array.attrs[_COMPLEX]) for array in dataset.data_vars.values() if _COMPLEX in array.attrs}
        for name in sorted(names):
            real, imaginary = f"{name}_real", f"{name}_imag"
            if real not in dataset or imaginary not in dataset:
                raise ResultError(f"{node.path}: the complex variable {name!r} has lost its real or imaginary part.")
            whole = dataset[real].copy(data=dataset[real].values + 1j * dataset[imaginary].values)
            del whole.attrs[_COMPLEX]
            dataset = dataset.drop_vars([real, imaginary]).assign({name: whole})
        datasets[node.path] = dataset
    return xr.DataTree.from_dict(datasets)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
