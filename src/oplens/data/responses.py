"""Recorded neural responses from a NetCDF file: what each stimulus was, what each neuron did, and what had to be left out."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oplens.errors import ArgumentError, DataError
from oplens.files import kind_of, netcdf_head

if TYPE_CHECKING:
    import xarray as xr

MEMORY_LIMIT = 2**32  # bytes that the responses may take as float64 unless more is allowed
_FOREIGN = {
    "git-lfs": "this is a Git LFS pointer, not the file itself; run `git lfs pull`",
    "html": "this is a web page; the download saved a page in place of the file",
    "netcdf-3": "this is a NetCDF-3 file; write it as NetCDF-4, "
    'e.g. `xarray.open_dataset(file, engine="scipy").to_netcdf(new, engine="h5netcdf")`',
    "matlab": "this is a MATLAB file; write the responses as NetCDF-4 with xarray",
    "numpy": "this is a NumPy array without names of dimensions; write it as NetCDF-4 with xarray",
    **dict.fromkeys(("zip", "gzip", "bzip2", "xz"), "this is a compressed archive; unpack it first"),
}
_SHAPE = "(stimulus, neuron) or (stimulus, neuron, repeat)"


@dataclass(frozen=True, eq=False)
class Responses:
    """Responses of neurons (cells, voxels, electrodes) to stimuli.

    Parameters
    ----------
    values : array, (stimuli, neurons, repeats) float64
        Finite. One repeat where the file has no such dimension.
    neurons : tuple of str
        What they are called.
    units, name : str
        Of the values; of the file and the variable.
    case : array of int, (stimuli,)
        The model input that each stimulus is: its place in the file unless the file says otherwise.
    position : array of int, (stimuli,), optional
        Place in that input, from 0, whose hidden state stands for the stimulus, such as the last token of a word.
    group : array of int, (stimuli,), optional
        Stimuli of one text or film share a number.
    text : tuple of str, optional
        Each stimulus in words.
    notes : tuple of str
        Sentences a reader has to know: what was left out.

    Examples
    --------
    >>> import numpy as np
    >>> data = Responses(np.zeros((4, 2, 3)), ("a", "b"), "Hz", "demo", np.arange(4))
    >>> data.n_stimuli, data.n_repeats
    (4, 3)
    """

    values: NDArray[np.float64]
    neurons: tuple[str, ...]
    units: str
    name: str
    case: NDArray[np.int64]
    position: NDArray[np.int64] | None = None
    group: NDArray[np.int64] | None = None
    text: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = np.array(self.values, dtype=np.float64)
        if values.ndim != 3 or 0 in values.shape:
            raise DataError(f"Responses(values of shape {values.shape}): expected (stimuli, neurons, repeats), none 0.")
        if not np.isfinite(values).all():
            raise DataError("Responses(values): NaN or infinite values; leave such neurons out.")
        if len(self.neurons) != values.shape[1]:
            raise DataError(f"Responses: {len(self.neurons)} names for {values.shape[1]} neurons.")
        object.__setattr__(self, "values", values)
        for name in ("case", "position", "group"):
            found = getattr(self, name)
            if found is not None:
                object.__setattr__(self, name, _indices("Responses", name, found, len(values)))
        if self.text is not None and len(self.text) != len(values):
            raise DataError(f"Responses: {len(self.text)} texts for {len(values)} stimuli.")

    @property
    def n_stimuli(self) -> int:
        """Stimuli."""
        return int(self.values.shape[0])

    @property
    def n_repeats(self) -> int:
        """Presentations of each stimulus."""
        return int(self.values.shape[2])


def read_responses(
    path: str | os.PathLike[str],
    *,
    variable: str | None = None,
    dims: tuple[str, str, str] = ("stimulus", "neuron", "repeat"),
    memory_limit: float = MEMORY_LIMIT,
) -> Responses:
    """Read `responses (stimulus, neuron)` or `(stimulus, neuron, repeat)` from a NetCDF-4 file, dimensions in any order.

    Over `stimulus` the file may hold `case` (which model input, from 0; otherwise stimulus i is input i), `position` (place in that
    input, from 0), `group` (stimuli of one text or film share a value) and `text`; over `neuron`, names under `neuron`.

    Parameters
    ----------
    path
        The file.
    variable : str, optional
        Needed only where several variables have those dimensions.
    dims : (str, str, str)
        What the file calls stimulus, neuron and repeat.
    memory_limit : float
        Bytes the responses may take as float64.

    Returns
    -------
    Responses
        Without stimuli, repeats and then neurons that have missing values (in that order: a stimulus or a repeat goes only where every
        neuron lacks it); each is counted in `notes`.

    Raises
    ------
    DataError
        No such file, not NetCDF-4, damaged; no such variable; no real numbers; nothing left without missing values.

    Examples
    --------
    >>> import tempfile, numpy as np, xarray as xr
    >>> values = np.random.default_rng(0).poisson(5, (3, 8)).astype(float)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ds = xr.Dataset({"rate": (("neuron", "stimulus"), values, {"units": "Hz"})}, {"group": ("stimulus", list("aabbccdd"))})
    ...     _ = ds.to_netcdf(folder + "/v1.nc", engine="h5netcdf")
    ...     data = read_responses(folder + "/v1.nc")
    >>> data.values.shape, data.units, data.name, data.group.tolist()
    ((8, 3, 1), 'Hz', 'v1.nc: rate', [0, 0, 1, 1, 2, 2, 3, 3])
    """
    source = Path(path)
    if not isinstance(dims, tuple) or len(dims) != 3 or not all(isinstance(d, str) for d in dims) or len(set(dims)) < 3:
        raise ArgumentError(f"read_responses(dims={dims!r}): give three names, of stimulus, neuron and repeat.")
    _refuse_foreign_bytes(source)
    name, array, beside = _load(source, variable, dims, memory_limit)
    values = _real(source, name, array)
    values = values[..., None] if values.ndim == 2 else values
    if np.isinf(values).any():
        raise DataError(f"{source}: {name!r} holds infinite values; mark what is missing as NaN.")
    stimuli, repeats, neurons, notes = _complete(source, name, values)
    kept = values[np.ix_(stimuli, neurons, repeats)]
    case = beside.get("case", np.arange(len(values)))
    places = {
        key: _indices(str(source), key, found, len(values))[stimuli]
        for key, found in (("case", case), ("position", beside.get("position")))
        if found is not None
    }
    group = beside.get("group")
    if group is not None and group.dtype.kind == "f" and np.isnan(group).any():
        raise DataError(f"{source}: `group` has missing values; every stimulus belongs to one group.")
    text = beside.get("text")
    if text is not None and not all(isinstance(item, str) for item in text.tolist()):
        raise DataError(f"{source}: `text` holds {type(text.ravel()[0]).__name__}, not texts.")
    names = beside.get("neuron", np.arange(values.shape[1]))
    return Responses(
        kept,
        tuple(str(item) for item in names[neurons].tolist()),
        str(array.attrs.get("units", "not stated")),
        f"{source.name}: {name}",
        group=None if group is None else np.unique(group.astype(str)[stimuli], return_inverse=True)[1],
        text=None if text is None else tuple(text[stimuli].tolist()),
        notes=notes,
        **places,
    )


def _load(
    source: Path, variable: str | None, dims: tuple[str, str, str], memory_limit: float
) -> "tuple[str, xr.DataArray, dict[str, NDArray[Any]]]":
    """The responses with dimensions in order, and what the file holds over stimuli and neurons alone."""
    import h5py
    import xarray as xr

    try:
        # HDF5 looks at every object first: h5netcdf, stopped while opening, prints a traceback when it is collected.
        with h5py.File(source) as file:
            file.visititems(lambda name, found: None)
        # Times are not decoded: latencies in ms are numbers here.
        with xr.open_dataset(source, engine="h5netcdf", decode_times=False, decode_timedelta=False) as ds:
            name = _find(source, ds, variable, dims)
            if ds[name].size * 8 > memory_limit:
                raise DataError(
                    f"{source}: {name!r} takes {ds[name].size * 8 / 2**30:.3g} GiB as float64, memory_limit is "
                    f"{memory_limit / 2**30:.3g} GiB; keep fewer neurons or average repeats, or raise memory_limit."
                )
            order = [dim for dim in dims if dim in ds[name].dims]
            array = ds[name].transpose(*order).load()
            wanted = {"case": dims[0], "position": dims[0], "group": dims[0], "text": dims[0], dims[1]: dims[1]}
            beside = {
                "neuron" if key == dims[1] else key: ds[key].values
                for key, dim in wanted.items()
                if key in ds.variables and ds[key].dims == (dim,)
            }
    except (DataError, MemoryError):
        raise
    except Exception as error:  # HDF5 reports damage as OSError, KeyError, RuntimeError, ValueError and others
        text = str(error).strip().splitlines()
        raise DataError(
            f"{source}: cannot be read as NetCDF-4 ({text[0] if text else type(error).__name__}); it may be damaged, or plain HDF5 "
            "without named dimensions: write it with xarray."
        ) from error
    return name, array, beside


def _find(source: Path, ds: "xr.Dataset", variable: str | None, dims: tuple[str, str, str]) -> str:
    """Name of the variable that holds the responses."""
    shapes = ({dims[0], dims[1]}, set(dims))
    fitting = [str(name) for name, found in ds.data_vars.items() if set(found.dims) in shapes]
    there = ", ".join(f"{name} {tuple(found.dims)}" for name, found in ds.data_vars.items()) or "no variable"
    wanted = _SHAPE if dims == ("stimulus", "neuron", "repeat") else f"{dims[:2]} or {dims}"
    if variable is not None:
        if variable not in fitting:
            raise DataError(
                f"{source}: {variable!r} is no variable over {wanted}; the file has {there}. "
                "If its dimensions have other names, give them."
            )
        return variable
    if len(fitting) != 1:
        problem = f"{', '.join(fitting)} all are" if fitting else "no variable is"
        cure = "say which is meant" if fitting else "rename the dimensions, or say what they are called"
        raise DataError(f"{source}: {problem} over {wanted}; the file has {there}. Please {cure}.")
    return fitting[0]


def _real(source: Path, name: str, array: "xr.DataArray") -> NDArray[np.float64]:
    if array.dtype.kind not in "biuf" or 0 in array.shape:
        raise DataError(
            f"{source}: {name!r} is {array.dtype} of shape {array.shape}; responses are real numbers, at least one stimulus and neuron."
        )
    return np.asarray(array.values, dtype=np.float64)


def _complete(
    source: Path, name: str, values: NDArray[np.float64]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp], tuple[str, ...]]:
    """Stimuli, repeats and neurons without missing values, and what was left out."""
    missing = np.isnan(values)
    stimuli = np.flatnonzero(~missing.all((1, 2)))
    repeats = np.flatnonzero(~missing.all((0, 1)))
    if not len(stimuli):
        raise DataError(f"{source}: {name!r} holds nothing but missing values.")
    inner = missing[stimuli][:, :, repeats]
    neurons = np.flatnonzero(~inner.any((0, 2)))
    if not len(neurons):
        fewest = int((~inner.all(1)).sum(1).min())
        hint = f" Every stimulus has at least {fewest} repeats: cut to those." if fewest < len(repeats) else ""
        raise DataError(
            f"{source}: every neuron lacks {name!r} for some stimulus ({inner.mean():.0%} of the values are NaN); leave out the stimuli "
            f"or repeats that are missing, or fill them, before measuring.{hint}"
        )
    notes = [
        f"{total - len(kept)} of {total} {what} were left out: {why}."
        for what, kept, total, why in (
            ("stimuli", stimuli, values.shape[0], "no neuron has a value there"),
            ("repeats", repeats, values.shape[2], "they hold no value"),
            ("neurons", neurons, values.shape[1], "they have missing values"),
        )
        if len(kept) < total
    ]
    return stimuli, repeats, neurons, tuple(notes)


def _indices(where: str, name: str, value: Any, count: int) -> NDArray[np.int64]:
    """Whole numbers from 0, one per stimulus; whole floats are what a missing-value attribute turns them into."""
    array = np.asarray(value)
    real = array.dtype.kind in "iuf" and array.shape == (count,)
    if not real or not np.isfinite(array).all() or (array < 0).any() or (array != np.floor(array)).any():
        raise DataError(
            f"{where}: `{name}` must be {count} whole numbers from 0, one per stimulus; got {array.dtype} of shape {array.shape}"
            + (f" from {array.min()} to {array.max()}." if real and count else ".")
        )
    return array.astype(np.int64)


def _refuse_foreign_bytes(source: Path) -> None:
    head = netcdf_head(source, DataError)
    kind = kind_of(head)
    if kind != "hdf5":
        otherwise = "the file is empty" if not head else "this is not a NetCDF-4 file; write the responses with xarray"
        raise DataError(f"{source}: {_FOREIGN.get(kind, otherwise)}.")
