"""Files, whatever is in them: written whole or not at all, and recognised by their first bytes."""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

_SIGNATURES = (
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ", "xz"),
    (b"PK", "zip"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\x89HDF", "hdf5"),
    (b"CDF", "netcdf-3"),
    (b"\x93NUMPY", "numpy"),
    (b"MATLAB", "matlab"),
)
# After a byte-order mark and blanks, in lower case.
_TEXTS = (
    (b"version https://git-lfs", "git-lfs"),
    (b"<!doctype", "html"),
    (b"<html", "html"),
    (b"<?xml", "xml"),
    (b"{", "json"),
)


def kind_of(head: bytes) -> str:
    r"""Return what the first bytes (512 suffice) say a file is, or "" when they say nothing.

    Examples
    --------
    >>> kind_of(b"\x1f\x8b\x08"), kind_of(b"\n<!DOCTYPE html>"), kind_of(b"1,2,3")
    ('gzip', 'html', '')
    """
    text = head[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for start, table in ((head, _SIGNATURES), (text, _TEXTS)):
        for signature, kind in table:
            if start.startswith(signature):
                return kind
    return ""


def netcdf_head(source: Path, error: type[Exception]) -> bytes:
    """Return the first bytes of what should be a NetCDF file; a folder, no file and an unreadable one are refused as `error`.

    Examples
    --------
    >>> netcdf_head(Path("nowhere.nc"), ValueError)
    Traceback (most recent call last):
    ValueError: nowhere.nc: there is no such file.
    """
    if source.is_dir():
        raise error(f"{source}: this is a folder; give the .nc file inside it.")
    try:
        with source.open("rb") as stream:
            return stream.read(512)
    except FileNotFoundError:
        raise error(f"{source}: there is no such file.") from None
    except OSError as problem:
        raise error(f"{source}: cannot be read ({problem.strerror}).") from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name beside `path` to write under: the new file takes its place when the block ends well, else it goes.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     target = Path(folder) / "a.txt"
    ...     with replacing(target) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     target.read_text(), len(list(Path(folder).iterdir()))
    ('whole', 1)
    """
    if path.exists() and not path.is_file():
        # A rename would put a file in the place of a device or a folder.
        raise OSError(errno.EEXIST, "not a regular file, so it is not replaced", str(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
