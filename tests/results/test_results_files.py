"""Result files: whole, checked, and refused with a sentence when they are anything else."""

import gc
import os
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

import synthetic_results
from oplens.errors import OplensError, ResultError
from oplens.results import read_results, recomputed_completeness, validate, write_results

SHARE = {"units": "logit", "long_name": "share", "claim": "exact"}


def small() -> xr.DataTree:
    """One partition that adds up: 3 cases, 2 channels, order 1."""
    share = np.array([[[1.0, -2.0], [0.5, 0.25], [3.0, -1.0]]])
    order_0, remainder = np.array([0.5, 0.5, 0.5]), np.array([0.25, -0.125, 0.0])
    lines = {
        "share": (("order", "case", "channel"), share, SHARE),
        "order_0": ("case", order_0, SHARE),
        "remainder": ("case", remainder, SHARE),
        "target": ("case", order_0 + share.sum((0, 2)) + remainder, SHARE),
    }
    coords = {"order": [1], "channel": ["C3", "C4 – Ω"], "label": ("case", np.array(["a", "b", ""]))}
    root = xr.Dataset(attrs={"title": "small", "model": '{"d_model": 2}'})
    return xr.DataTree.from_dict({"/": root, "/channels": xr.Dataset(lines, coords=coords, attrs={"seed": 3})})


def changed(**variables: object) -> xr.DataTree:
    tree = small()
    tree["channels"] = xr.DataTree(tree["channels"].to_dataset().assign(variables))
    return tree


@pytest.mark.parametrize("name", ["two_class", "four_class", "deep"])
def test_round_trip_keeps_everything(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    tree = request.getfixturevalue(name)
    back = read_results(write_results(tree, tmp_path / "r.nc"))
    assert {node.path for node in back.subtree} == {node.path for node in tree.subtree}
    for node in tree.subtree:
        xr.testing.assert_identical(node.to_dataset(inherit=False), back[node.path].to_dataset(inherit=False))


def test_every_attribute_type_comes_back(tmp_path: Path) -> None:
    tree = small()
    attrs = {
        "text": "é \n <b>",
        "empty": "",
        "long": "x" * 200_000,
        "number": 2,
        "real": 0.1,
        "vector": np.array([1.5, 2.5]),
        "texts": ["a", "ß"],
        "flag": True,
        "nothing": None,
        "json": {"a": [1, None]},
    }
    tree["channels"].attrs.update(attrs)
    back = read_results(write_results(tree, tmp_path / "r.nc"))["channels"].attrs
    assert back["text"] == attrs["text"]
    assert back["empty"] == ""
    assert back["long"] == attrs["long"]
    assert (back["number"], back["real"], back["flag"]) == (2, 0.1, 1)
    assert back["vector"].tolist() == [1.5, 2.5]
    assert list(back["texts"]) == ["a", "ß"]
    assert back["json"] == '{"a": [1, null]}'
    assert "nothing" not in back
    assert tree["channels"].attrs["nothing"] is None  # the given tree is left alone


def test_booleans_are_int8_on_disk_and_booleans_in_memory(tmp_path: Path) -> None:
    flags = np.array([True, False])
    path = write_results(changed(aliased=("channel", flags, {**SHARE, "units": "1"})), tmp_path / "r.nc")
    with h5py.File(path) as file:
        assert file["channels/aliased"].dtype == np.int8
    back = read_results(path)["channels/aliased"]
    assert back.dtype == bool
    assert back.values.tolist() == [True, False]


def test_complex_values_are_pairs_of_reals_on_disk(tmp_path: Path) -> None:
    values = np.array([1 + 2j, -3.5j])
    path = write_results(changed(pole=("channel", values, SHARE)), tmp_path / "r.nc")
    with h5py.File(path) as file:
        assert "pole" not in file["channels"]
        assert file["channels/pole_imag"][...].tolist() == [2.0, -3.5]
    back = read_results(path)["channels/pole"]
    assert back.values.tolist() == values.tolist()
    assert back.attrs == SHARE


def test_texts_of_any_dtype_come_back_as_texts(tmp_path: Path) -> None:
    tree = small()
    dataset = (
        tree["channels"]
        .to_dataset()
        .assign_coords(
            why=("case", np.array(["x", "", "long text"], dtype=object)),
            kind=("case", np.array(["u", "v", "w"], dtype=np.dtypes.StringDType())),
        )
    )
    tree["channels"] = xr.DataTree(dataset)
    back = read_results(write_results(tree, tmp_path / "r.nc"))["channels"]
    assert back["why"].values.tolist() == ["x", "", "long text"]
    assert back["kind"].values.tolist() == ["u", "v", "w"]


def test_root_gets_provenance_and_json(tmp_path: Path) -> None:
    tree = small()
    tree.attrs["data"] = {"name": "mini", "cases": 3}
    back = read_results(write_results(tree, tmp_path / "r.nc"))
    assert back.attrs["data"] == '{"name": "mini", "cases": 3}'
    assert back.attrs["created_at"].endswith("Z")
    assert back.attrs["oplens_version"]


def test_failed_write_leaves_the_old_file_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_results(small(), tmp_path / "r.nc")
    before = path.read_bytes()

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ResultError, match=r"r\.nc: could not be written .*No space left"):
        write_results(small(), path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["r.nc"]


def test_file_of_version_0_1_stays_readable() -> None:
    back = read_results(Path(__file__).with_name("result_0_1.nc"))
    for node in small().subtree:
        expected, got = node.to_dataset(inherit=False), back[node.path].to_dataset(inherit=False)
        xr.testing.assert_equal(expected, got)
        for name, value in expected.attrs.items():
            assert got.attrs[name] == value
        for name in expected.variables:
            assert got[name].attrs == expected[name].attrs
    assert back.attrs["oplens_version"] == "0.1.0"


FOREIGN = {
    "empty": (b"", "the file is empty"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", "Git LFS pointer.*git lfs pull"),
    "html": (b"\n<!DOCTYPE html><html><body>404</body></html>", "web page"),
    "html_bom": (b"\xef\xbb\xbf<html>", "web page"),
    "netcdf3": (b"CDF\x01" + bytes(40), "NetCDF-3"),
    "zip": (b"PK\x03\x04" + bytes(40), "compressed archive"),
    "gzip": (b"\x1f\x8b\x08" + bytes(40), "compressed archive"),
    "line_ends": (b"\x89HDF\n\x1a\n" + bytes(40), "text mode"),
    "json": (b'{"a": 1}', "not a NetCDF-4 file"),
    "zeros": (bytes(100), "not a NetCDF-4 file"),
    "signature_only": (b"\x89HDF\r\n\x1a\n", "damaged or incomplete"),
    "signature_and_noise": (b"\x89HDF\r\n\x1a\n" + bytes(range(256)) * 8, "damaged or incomplete"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_bytes_get_a_sentence(name: str, tmp_path: Path) -> None:
    content, words = FOREIGN[name]
    path = tmp_path / "foreign.nc"
    path.write_bytes(content)
    with pytest.raises(ResultError, match=words) as caught:
        read_results(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_truncated_file_gets_a_sentence(fraction: float, tmp_path: Path) -> None:
    path = write_results(small(), tmp_path / "r.nc")
    content = path.read_bytes()
    path.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(ResultError, match="damaged or incomplete"):
        read_results(path)


@pytest.mark.parametrize("name", ["windows/share", "windows/noise"])
def test_a_flipped_bit_in_any_block_of_numbers_is_noticed(name: str, tmp_path: Path) -> None:
    tree = synthetic_results.two_class(n_cases=20)
    # Noise does not compress: it too must be stored with a check.
    noise = np.random.default_rng(0).integers(0, 256, (20, 4096), dtype=np.uint8)
    windows = tree["windows"].to_dataset().assign(noise=(("case", "time"), noise, {**SHARE, "units": "1"}))
    tree["windows"] = xr.DataTree(windows)
    path = write_results(tree, tmp_path / "r.nc")
    content = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        dataset = file[name].id
        chunks = [dataset.get_chunk_info(k) for k in range(dataset.get_num_chunks())]
    assert chunks
    for chunk in chunks:
        damaged = bytearray(content)
        damaged[chunk.byte_offset + chunk.size // 2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ResultError, match="damaged"):
            read_results(path)


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="there is no such file"):
        read_results(tmp_path / "absent.nc")
    with pytest.raises(ResultError, match="this is a folder"):
        read_results(tmp_path)
    with pytest.raises(ResultError, match="this is a folder"):
        write_results(small(), tmp_path)
    with pytest.raises(ResultError, match=r"the folder .* does not exist"):
        write_results(small(), tmp_path / "absent" / "r.nc")


def test_damage_is_told_without_a_traceback_from_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = write_results(small(), tmp_path / "r.nc").read_bytes()
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    rng = np.random.default_rng(0)
    for _ in range(30):
        damaged = bytearray(whole)
        for position in rng.integers(512, len(whole), 40):
            damaged[position] ^= 255
        (tmp_path / "d.nc").write_bytes(damaged)
        with pytest.raises(ResultError, match=r"d\.nc: "):
            read_results(tmp_path / "d.nc")
    gc.collect()
    assert not unraisable


def test_what_is_no_tree_is_refused_by_its_kind(tmp_path: Path) -> None:
    dataset = small()["channels"].to_dataset()
    for swapped in (dataset, "r.nc"):
        with pytest.raises(ResultError, match=rf"tree={type(swapped).__name__}\): give a DataTree"):
            write_results(swapped, tmp_path / "r.nc")


def test_netcdf_of_another_program_is_named_as_such(tmp_path: Path) -> None:
    xr.Dataset({"t2m": ("time", [1.0, 2.0])}).to_netcdf(tmp_path / "era.nc", engine="h5netcdf")
    with pytest.raises(ResultError, match="not a result of oplens"):
        read_results(tmp_path / "era.nc")


def test_a_file_that_departs_from_the_schema_is_refused_by_name(tmp_path: Path) -> None:
    tree = small()
    tree["channels"] = xr.DataTree(tree["channels"].to_dataset().drop_vars("remainder"))
    attrs = {"oplens_version": "0.1.0"}
    tree.attrs.update(attrs)
    tree.to_netcdf(tmp_path / "r.nc", engine="h5netcdf")
    with pytest.raises(ResultError, match=r"r\.nc: /channels: the variable 'remainder' is missing"):
        read_results(tmp_path / "r.nc")


DEPARTURES = {
    "unknown dimension": (changed(extra=("electrode", [1.0], SHARE)), "'extra' has the dimension 'electrode'"),
    "dimension's name": (changed(wave=("case", [1.0, 2.0, 3.0], SHARE)), "'wave' takes a dimension's name"),
    "no claim": (
        changed(extra=("case", [1.0, 2.0, 3.0], {"units": "1", "long_name": "x"})),
        "'extra' lacks the attribute 'claim'",
    ),
    "no units": (
        changed(extra=("case", [1.0, 2.0, 3.0], {"claim": "exact", "long_name": "x"})),
        "'extra' lacks the attribute 'units'",
    ),
    "unknown claim": (
        changed(extra=("case", [1.0, 2.0, 3.0], {**SHARE, "claim": "sure"})),
        "claims 'sure'; a claim is one of exact",
    ),
    "NaN": (changed(remainder=("case", [np.nan, 0.0, 0.0], SHARE)), "'remainder' contains NaN"),
    "wrong order of dimensions": (
        changed(share=(("case", "order", "channel"), np.zeros((3, 1, 2)), SHARE)),
        r"'share' has the dimensions \(case, order, channel\); expected \(order, case, channel\)",
    ),
    "missing case axis": (changed(target=((), 1.0, SHARE)), r"'target' has the dimensions \(\); expected \(case\)"),
    "mixed texts": (
        changed(extra=("case", np.array(["a", 1, None], dtype=object), SHARE)),
        "'extra' mixes texts with int",
    ),
    "dates": (
        changed(extra=("case", np.array(["2026-01-01"] * 3, dtype="M8[s]"), SHARE)),
        "'extra' has the type datetime64",
    ),
}


@pytest.mark.parametrize("name", DEPARTURES)
def test_departures_from_the_schema_are_named_before_anything_is_written(name: str, tmp_path: Path) -> None:
    tree, words = DEPARTURES[name]
    with pytest.raises(ResultError, match=words):
        write_results(tree, tmp_path / "r.nc")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"title": None}, "'title' is missing"),
        ({"model": "d_model=2"}, "'model' must be the JSON text of an object"),
        ({"data": "[1]"}, "'data' must be the JSON text of an object"),
        ({"note": "a\0b"}, "'note' contains a NUL"),
        ({"note": "\ud800"}, "'note' is no valid Unicode"),
        ({"note": 1j}, "'note' is of type complex"),
        ({"note": object()}, "'note' is of type object"),
        ({"note": np.zeros((2, 2))}, "'note' is of type ndarray"),
        ({"model": {"a": float("nan")}}, "'model' is a mapping that JSON cannot hold"),
    ],
)
def test_root_attributes_are_checked(attrs: dict[str, object], words: str, tmp_path: Path) -> None:
    tree = small()
    tree.attrs.update(attrs)
    with pytest.raises(ResultError, match=words):
        write_results(tree, tmp_path / "r.nc")


def test_root_holds_no_variables() -> None:
    tree = xr.DataTree.from_dict({"/": xr.Dataset({"x": ("case", [1.0], SHARE)}, attrs={"title": "t"})})
    with pytest.raises(ResultError, match="root holds attributes only, but has the variables x"):
        validate(tree)


def test_pairs_must_name_their_second_members() -> None:
    tree = small()
    bad = xr.Dataset({"pair_share": (("order", "case", "channel"), np.zeros((1, 3, 2)), SHARE)})
    tree["pairs_channels"] = xr.DataTree(bad)
    with pytest.raises(
        ResultError, match=r"/pairs_channels: variable 'pair_share'.*expected \(order, case, \[class\], parts"
    ):
        validate(tree)


def test_completeness_is_recomputed_and_sees_a_small_change(two_class: xr.DataTree, deep: xr.DataTree) -> None:
    for tree, group, line in (
        (two_class, "waves", "share"),
        (two_class, "waves", "full_share"),
        (deep, "waves", "layer_skip_share"),
    ):
        dataset = tree[group].to_dataset().copy(deep=True)
        assert recomputed_completeness(dataset) < 1e-12
        flat = dataset[line].values.ravel()
        flat[np.argmax(abs(flat))] *= 1 + 1e-6
        dataset[line].values[...] = flat.reshape(dataset[line].shape)
        assert recomputed_completeness(dataset) > 1e-10
    assert np.isnan(recomputed_completeness(dataset[["target"]]))


@pytest.mark.parametrize("line", ["target", "share", "remainder", "full_share"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_completeness_is_infinite_where_a_number_is_undefined(line: str, value: float, two_class: xr.DataTree) -> None:
    dataset = two_class["windows"].to_dataset().copy(deep=True)
    dataset[line].values.ravel()[0] = value
    assert recomputed_completeness(dataset) == np.inf


def test_result_errors_are_value_errors_of_the_one_base() -> None:
    assert issubclass(ResultError, OplensError)
    assert issubclass(ResultError, ValueError)
