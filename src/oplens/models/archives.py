"""Files of tensors written elsewhere: recognised by their first bytes, read without running anything in them, or refused with a sentence."""

import io
import pickle
import re
import warnings
import zipfile
from pathlib import Path

from oplens.errors import CheckpointError
from oplens.files import kind_of
from oplens.models.storage import parse_tensors, read_content

CURE = "save the weights alone where the model was trained: torch.save(model.state_dict(), path)"

# What is met under the name of a checkpoint, by kind (oplens.files.kind_of).
_FOREIGN = {
    "html": "an HTML page, most likely a download page or an error message; download the file behind it",
    "xml": "an XML document, most likely a server's error message; download the file again",
    "json": "JSON text, not a file of tensors; a model directory is loaded by the directory's name",
    **{kind: f"compressed with {kind}; unpack it first" for kind in ("gzip", "bzip2", "xz")},
    "hdf5": f"an HDF5 file, which does not hold PyTorch weights; {CURE}",
    "numpy": f"a single NumPy array, not a model's weights; {CURE}",
}


def read_archive(path: Path) -> object:
    """What a `.pth` or `.safetensors` file holds: a dictionary of tensors and plain values, on the CPU; nothing in it is executed."""
    content = read_content(path)
    if not content:
        raise CheckpointError(f"{path}: the file is empty; copy or download it again.")
    kind = kind_of(content[:512])
    # The first eight bytes of a safetensors file are a number, and may look like anything.
    if kind in _FOREIGN and content[8:9] != b"{":
        raise CheckpointError(f"{path}: this is {_FOREIGN[kind]}.")
    if content.startswith(b"PK"):
        _check_zip(content, path)
        return _unpickle(content, path)
    if content[257:262] == b"ustar":
        raise CheckpointError(
            f"{path}: this is a tar archive (PyTorch before 0.4, or a packed folder), which cannot be read safely; {CURE}."
        )
    if content.startswith(b"\x80"):
        return _unpickle(content, path)
    if content[8:9] == b"{":
        if _line_ends_converted(content):
            raise CheckpointError(f"{path}: {_damage(content)}.")
        return parse_tensors(content, path)
    raise CheckpointError(f"{path}: neither a PyTorch nor a safetensors file (it starts with {content[:8]!r}); {CURE}.")


def _check_zip(content: bytes, path: Path) -> None:
    if b"PK\x05\x06" not in content[-65557:]:
        raise CheckpointError(
            f"{path}: the archive is truncated (its directory, at the end, is missing); copy or download it again."
        )
    try:
        archive = zipfile.ZipFile(io.BytesIO(content))
        entries = archive.infolist()
    except Exception as error:  # a hostile directory may break the reader anywhere
        raise CheckpointError(f"{path}: {_damage(content)}.") from error
    names = [entry.filename for entry in entries]
    if any("/code/" in name or name.endswith("constants.pkl") for name in names):
        raise CheckpointError(
            f"{path}: this is a TorchScript archive, which carries a program; only tensors are read. Where it can be trusted, "
            "write torch.jit.load(path).state_dict() with torch.save."
        )
    if names and all(name.endswith(".npy") for name in names):
        raise CheckpointError(f"{path}: this is a NumPy .npz archive, not a model's weights; {CURE}.")
    if not any(name.endswith("data.pkl") for name in names):
        raise CheckpointError(
            f"{path}: a zip archive that torch.save did not write ({', '.join(names[:3]) or 'no entries'}); {CURE}."
        )
    declared = sum(entry.file_size for entry in entries)
    if declared > len(content) or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise CheckpointError(
            f"{path}: the archive's entries are compressed or overlap, which torch.save never does; {CURE}."
        )
    _check_sums(archive, entries, content, path)


def _check_sums(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo], content: bytes, path: Path) -> None:
    """Refuse changed bytes, which torch.load does not notice."""
    broken, whole = [], 0
    for entry in entries:
        try:
            archive.read(entry)
            whole += "/data/" in entry.filename
        except zipfile.BadZipFile as error:
            if "CRC" not in str(error):
                raise CheckpointError(f"{path}: {_damage(content)}.") from error
            broken.append(entry.filename)
        except Exception as error:
            raise CheckpointError(f"{path}: {_damage(content)}.") from error
    # torch can be told to write no checksums; then none fits.
    if broken and whole:
        raise CheckpointError(f"{path}: {broken[0]} fails its checksum; {_damage(content)}.")


def _unpickle(content: bytes, path: Path) -> object:
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickle protocols; what cannot be read ends in a sentence below
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if b"torch.nn.modules" in content:
            raise CheckpointError(
                f"{path}: a whole pickled nn.Module, whose loading would run code; {CURE}."
            ) from error
        found = re.search(r"(?:GLOBAL|class|instantiate) ([\w.]+\.\w+)", str(error))
        if found:
            raise CheckpointError(
                f"{path}: besides tensors the file asks for {found[1]}, which is no tensor and could run code; "
                f"nothing was loaded or executed; {CURE}."
            ) from error
        if _line_ends_converted(content):
            raise CheckpointError(f"{path}: {_damage(content)}.") from error
        raise CheckpointError(f"{path}: a pickle that torch.save did not write, or a damaged one; {CURE}.") from error
    except Exception as error:  # whatever else hostile bytes may raise
        raise CheckpointError(f"{path}: {_damage(content)}.") from error


def _damage(content: bytes) -> str:
    if _line_ends_converted(content):
        return (
            "its line ends were converted (every line feed follows a carriage return), as a text-mode transfer or git's autocrlf does; "
            "copy the original again as a binary file"
        )
    return "the file is cut off or damaged; copy or download it again"


def _line_ends_converted(content: bytes) -> bool:
    """In binary data of some length a lone line feed is certain."""
    feeds = content.count(b"\n")
    return feeds >= 4 and feeds == content.count(b"\r\n")
