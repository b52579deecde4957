"""Files appear whole or not at all, with the permissions the user asked the system for."""

import os
import stat

import pytest

from oplens.files import kind_of, replacing


def test_a_file_takes_its_place_only_when_whole(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with replacing(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        assert temporary.parent == tmp_path
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write_half():
        with replacing(target) as temporary:
            temporary.write_text("ha")
            raise error

    with pytest.raises(error):
        write_half()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(os.name != "posix", reason="special files of POSIX")
@pytest.mark.parametrize("make", ["mkdir", "mkfifo"])
def test_what_is_no_regular_file_is_not_replaced(tmp_path, make):
    target = tmp_path / "special"
    getattr(os, make)(target)
    mode = target.stat().st_mode
    with pytest.raises(OSError, match="not a regular file"), replacing(target):
        pass
    assert target.stat().st_mode == mode


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_are_those_of_any_new_file(tmp_path, mask):
    before = os.umask(mask)
    try:
        with replacing(tmp_path / "a.txt") as temporary:
            temporary.write_text("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"", ""),
        (b"@problemName hands", ""),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs"),
        (b"\xef\xbb\xbf \n<!DOCTYPE html>", "html"),
        (b"\t<HTML>", "html"),
        (b"<?xml version='1.0'?>", "xml"),
        (b'\n{"a": 1}', "json"),
        (b"PK\x05\x06", "zip"),
        (b" PK\x03\x04", ""),
        (b"\x89HDF\r\n\x1a\n", "hdf5"),
        (b"CDF\x02", "netcdf-3"),
        (b"x" * 600 + b"<html", ""),
    ],
)
def test_first_bytes_tell_the_kind(head, kind):
    assert kind_of(head) == kind
