"""Recordings read back as they were written, what is missing counted, and every file that is no recording refused in a sentence."""

import h5py
import numpy as np
import pytest
import xarray as xr

from oplens.data.responses import Responses, read_responses
from oplens.errors import ArgumentError, DataError


def write(folder, values, dims=("stimulus", "neuron", "repeat"), name="responses", coords=None, units="Hz", more=None):
    ds = xr.Dataset({name: (dims, values, {} if units is None else {"units": units})}, coords=coords)
    ds = ds.assign(more or {})
    path = folder / "v1.nc"
    ds.to_netcdf(path, engine="h5netcdf")
    return path


@pytest.fixture
def values():
    return np.random.default_rng(0).standard_normal((6, 4, 3))


@pytest.mark.parametrize("order", ["snr", "rns", "nsr"])
def test_dimensions_are_told_by_name_in_any_order(tmp_path, values, order):
    axes = ["snr".index(letter) for letter in order]
    names = dict(zip("snr", ("stimulus", "neuron", "repeat"), strict=True))
    path = write(
        tmp_path, values.transpose(axes), tuple(names[letter] for letter in order), coords={"neuron": list("abcd")}
    )
    found = read_responses(path)
    np.testing.assert_array_equal(found.values, values)
    assert (found.neurons, found.units, found.name, found.notes) == (tuple("abcd"), "Hz", "v1.nc: responses", ())
    assert found.case.tolist() == [0, 1, 2, 3, 4, 5]
    assert (found.position, found.group, found.text, found.n_repeats) == (None, None, None, 3)


def test_counts_without_repeats_and_other_names(tmp_path):
    counts = np.arange(12, dtype=np.uint8).reshape(4, 3)
    found = read_responses(
        write(tmp_path, counts, ("presentation", "unit"), "spikes", units=None), dims=("presentation", "unit", "trial")
    )
    np.testing.assert_array_equal(found.values[..., 0], counts)
    assert (found.values.shape, found.units, found.neurons) == ((4, 3, 1), "not stated", ("0", "1", "2"))


def test_what_stands_beside_the_stimuli(tmp_path, values):
    coords = {
        "case": ("stimulus", [2, 0, 0, 1, 5, 2]),
        "position": ("stimulus", [0, 3, 4, 0, 1, 1]),
        "text": ("stimulus", ["Ein", "Haus", "—", "x", "", "y"]),
        "group": ("stimulus", ["b", "a", "a", "c", "c", "b"]),
    }
    found = read_responses(write(tmp_path, values, coords=coords))
    assert found.case.tolist() == [2, 0, 0, 1, 5, 2]
    assert found.position.tolist() == [0, 3, 4, 0, 1, 1]
    assert found.text == ("Ein", "Haus", "—", "x", "", "y")
    assert found.group.tolist() == [1, 0, 0, 2, 2, 1]
    as_variables = read_responses(write(tmp_path, values, more=coords))
    assert as_variables.group.tolist() == found.group.tolist()


def test_latencies_in_units_of_time_stay_numbers(tmp_path):
    found = read_responses(write(tmp_path, np.array([[3.5, 1.0], [2.0, 8.0]]), ("stimulus", "neuron"), units="seconds"))
    assert found.values[..., 0].tolist() == [[3.5, 1.0], [2.0, 8.0]]
    assert found.units == "seconds"


def test_what_is_missing_everywhere_goes_first_then_neurons_and_all_is_counted(tmp_path, values):
    values[2] = np.nan
    values[:, :, 1] = np.nan
    values[4, 3, 0] = np.nan
    coords = {
        "case": ("stimulus", [10, 11, 12, 13, 14, 15]),
        "group": ("stimulus", [0, 0, 1, 1, 2, 2]),
        "neuron": list("abcd"),
    }
    found = read_responses(write(tmp_path, values, coords=coords))
    np.testing.assert_array_equal(found.values, values[np.ix_([0, 1, 3, 4, 5], [0, 1, 2], [0, 2])])
    assert (found.neurons, found.case.tolist()) == (("a", "b", "c"), [10, 11, 13, 14, 15])
    assert found.group.tolist() == [0, 0, 1, 2, 2]
    assert [note.split(":")[0] for note in found.notes] == [
        "1 of 6 stimuli were left out",
        "1 of 3 repeats were left out",
        "1 of 4 neurons were left out",
    ]


def test_packed_integers_with_a_missing_value_are_unpacked(tmp_path):
    ds = xr.Dataset({"rate": (("stimulus", "neuron"), [[1.5, 2.0], [3.0, np.nan], [0.0, 1.0]])})
    ds.rate.encoding = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1}
    ds.to_netcdf(tmp_path / "packed.nc", engine="h5netcdf")
    found = read_responses(tmp_path / "packed.nc")
    assert found.values[..., 0].tolist() == [[1.5], [3.0], [0.0]]
    assert found.notes == ("1 of 2 neurons were left out: they have missing values.",)


def refuse(path, words, error=DataError, **options):
    with pytest.raises(error, match=words) as caught:
        read_responses(path, **options)
    if error is DataError:
        assert str(caught.value).startswith(str(path))


def test_uneven_repeats_are_refused_with_how_many_all_have(tmp_path, values):
    values[1, :, 2] = np.nan
    values[3, :, 1:] = np.nan
    refuse(write(tmp_path, values), "every neuron lacks 'responses'.*at least 1 repeats")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v * np.nan, "nothing but missing"),
        (lambda v: np.where(np.arange(6)[:, None, None] == 2, np.inf, v), "infinite"),
        (lambda v: v.astype(str), "real numbers"),
        (lambda v: v[:, :0], "at least one"),
    ],
)
def test_values_that_cannot_be_used(tmp_path, values, change, words):
    refuse(write(tmp_path, change(values)), words)


@pytest.mark.parametrize(
    ("coord", "value", "words"),
    [
        ("case", [0, 1, 2, 3, 4, -1], "whole numbers from 0.*from -1 to 4"),
        ("case", [0, 1, 2, 3, 4, 0.5], "whole numbers"),
        ("position", [0, 1, 2, 3, 4, np.nan], "whole numbers"),
        ("position", list("abcdef"), "whole numbers"),
        ("group", [0, 0, 1, 1, np.nan, 2], "group.*missing"),
        ("text", [1, 2, 3, 4, 5, 6], "not texts"),
    ],
)
def test_places_that_cannot_be_used(tmp_path, values, coord, value, words):
    refuse(write(tmp_path, values, coords={coord: ("stimulus", value)}), words)


def test_variables_that_are_not_there_or_not_alone(tmp_path, values):
    path = write(tmp_path, values, more={"late": (("stimulus", "neuron"), values[..., 0])})
    refuse(path, "responses, late all are over .stimulus, neuron.*say which")
    assert read_responses(path, variable="late").values.shape == (6, 4, 1)
    refuse(path, "'early' is no variable", variable="early")
    refuse(
        write(tmp_path, values, ("image", "cell", "trial")), r"no variable is.*responses \('image', 'cell', 'trial'\)"
    )
    refuse(path, "three names", ArgumentError, dims=("stimulus", "neuron"))
    refuse(path, "three names", ArgumentError, dims=("stimulus", "neuron", "neuron"))


def test_size_is_looked_at_before_anything_is_read(tmp_path):
    """A chunked array takes no room on disk until it is written, whatever size it states."""
    path = tmp_path / "big.nc"
    with h5py.File(path, "w") as file:
        for name, size in (("stimulus", 10**6), ("neuron", 10**5)):
            file.create_dataset(name, (size,), "f4", chunks=(1000,)).make_scale(name)
        big = file.create_dataset("responses", (10**6, 10**5), "f8", chunks=(1000, 10))
        for axis, name in enumerate(("stimulus", "neuron")):
            big.dims[axis].attach_scale(file[name])
    assert path.stat().st_size < 10**5
    refuse(path, "745 GiB.*memory_limit is 4 GiB")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"CDF\x01" + b"\0" * 100, "NetCDF-3.*h5netcdf"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!DOCTYPE html>", "web page"),
        (b"PK\x03\x04", "unpack"),
        (b"\x93NUMPY\x01\x00", "without names of dimensions"),
        (b"MATLAB 5.0 MAT-file", "MATLAB"),
        (b"1,2,3\n", "not a NetCDF-4 file"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 600, "damaged"),
    ],
)
def test_other_files(tmp_path, content, words):
    path = tmp_path / "v1.nc"
    path.write_bytes(content)
    refuse(path, words)


def test_damaged_plain_and_absent_files(tmp_path, values):
    path = write(tmp_path, values)
    path.write_bytes(path.read_bytes()[:4000])
    refuse(path, "damaged")
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file["responses"] = values
    refuse(tmp_path / "plain.h5", "without named dimensions")
    refuse(tmp_path / "none.nc", "no such file")
    refuse(tmp_path, "folder")


@pytest.mark.parametrize(
    "change",
    [
        {"values": np.zeros((4, 2))},
        {"values": np.zeros((4, 0, 1))},
        {"values": np.full((4, 2, 1), np.nan)},
        {"neurons": ("a",)},
        {"case": np.arange(3)},
        {"text": ("a",)},
    ],
)
def test_parts_that_do_not_fit(change):
    whole = {"values": np.zeros((4, 2, 1)), "neurons": ("a", "b"), "units": "Hz", "name": "x", "case": np.arange(4)}
    assert Responses(**whole).n_stimuli == 4
    with pytest.raises(DataError, match="Responses"):
        Responses(**{**whole, **change})
