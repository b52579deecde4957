"""Files that are no model: each ends in a sentence that says what is wrong, and nothing in them is executed."""

import argparse
import gzip
import io
import json
import os
import pickle
import re
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from oplens.errors import CheckpointError
from oplens.models import S4D, Preprocessing, S4DConfig, load_checkpoint

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 31880\n"


def model(n_layers=2, **more):
    torch.manual_seed(0)
    return S4D(S4DConfig(3, 2, d_model=8, d_state=12, n_layers=n_layers, architecture="reference", **more))


def weights(**changes):
    """A good state dictionary with some entries replaced (None removes one)."""
    found = {**model().state_dict(), **{name.replace("__", "."): value for name, value in changes.items()}}
    return {name: value for name, value in found.items() if value is not None}


def saved(content, zipped=True):
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    return buffer.getvalue()


def rezipped(content, edit=lambda name, data: data, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(buffer, "w", compression) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, edit(entry.filename, source.read(entry)))
    return buffer.getvalue()


def zipped(names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name in names:
            target.writestr(name, b"x")
    return buffer.getvalue()


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]


class Attack:
    """Creates a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def archive_of_arrays():
    buffer = io.BytesIO()
    np.savez(buffer, C=np.ones(3), D=np.ones(3))
    return buffer.getvalue()


def array():
    buffer = io.BytesIO()
    np.save(buffer, np.ones(30))
    return buffer.getvalue()


def script():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        buffer = io.BytesIO()
        torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), buffer)
    return buffer.getvalue()


def tar():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as target:
        target.addfile(tarfile.TarInfo("storages"))
    return buffer.getvalue()


def declared_larger(name, data):
    """The pickle says that a storage of 8 numbers (encoder.bias) has 2^30."""
    if not name.endswith("data.pkl"):
        return data
    assert data.count(b"K\x08tq") >= 1
    return data.replace(b"K\x08tq", b"J\x00\x00\x00\x40tq", 1)


def legacy_declared_larger():
    content = saved(weights(), zipped=False)
    found = re.search(rb"X\x03\x00\x00\x00cpuq.K\x18", content)  # encoder.weight: 24 numbers
    assert found
    return content[: found.end() - 2] + b"J\x00\x00\x00\x40" + content[found.end() :]


def repeated_entries():
    """A small archive whose directory names its largest entry a thousand times."""
    buffer = io.BytesIO(saved(weights()))
    with zipfile.ZipFile(buffer, "a") as target:
        largest = max(target.filelist, key=lambda entry: entry.file_size)
        target.filelist.extend([largest] * 1000)
        target.writestr("archive/more", b"")
    return buffer.getvalue()


def crlf(content):
    return content.replace(b"\n", b"\r\n")


def quantised():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(8, 3), 0.1, 0, torch.qint8)


NAN, INF = torch.full((8,), float("nan")), torch.zeros(8, 6)
INF[2, 3] = float("inf")
K = "s4_layers__0__kernel__"

FILES = {
    "empty": (lambda: b"", "the file is empty"),
    "lfs pointer": (lambda: LFS, "Git LFS pointer.*git lfs pull"),
    "html": (lambda: b"<!DOCTYPE html><html><body>Not found</body></html>", "HTML page"),
    "html in capitals": (lambda: b"\n\n  <HTML>Sign in</HTML>", "HTML page"),
    "xml": (lambda: b"<?xml version='1.0'?><Error>AccessDenied</Error>", "XML document"),
    "json": (lambda: b'{"error": "not found"}', "JSON text"),
    "text": (lambda: b"hello, this is my model", "neither a PyTorch nor a safetensors file"),
    "random bytes": (lambda: np.random.default_rng(0).bytes(5000), "neither a PyTorch nor a safetensors file"),
    "gzip": (lambda: gzip.compress(saved(weights())), "gzip; unpack"),
    "bzip2": (lambda: b"BZh91AY&SY" + bytes(50), "bzip2"),
    "xz": (lambda: b"\xfd7zXZ\x00" + bytes(50), "xz"),
    "hdf5": (lambda: b"\x89HDF\r\n\x1a\n" + bytes(50), "HDF5"),
    "numpy array": (array, "NumPy array"),
    "numpy archive": (archive_of_arrays, "NumPy .npz"),
    "other zip": (lambda: zipped(["readme.txt"]), "torch.save did not write .readme.txt"),
    "zip without entries": (lambda: zipped([]), "torch.save did not write .no entries"),
    "zip of an unpickled folder": (lambda: zipped(["m/data.pkl"]), "cut off or damaged|torch.save did not write"),
    "tar": (tar, "tar archive"),
    "half": (lambda: saved(weights())[:6000], "truncated"),
    "tail missing": (lambda: saved(weights())[:-30], "truncated"),
    "head missing": (lambda: b"PK\x03\x04" + saved(weights())[500:], "damaged"),
    "middle missing": (lambda: saved(weights())[:3000] + saved(weights())[4000:], "damaged"),
    "line ends": (lambda: crlf(saved(weights())), "line ends were converted.*binary"),
    "line ends, legacy": (lambda: crlf(saved(weights(), zipped=False)), "line ends were converted"),
    "line ends, safetensors": (lambda: crlf(save(weights(D=torch.full((40,), 2.2616e-9)))), "line ends were converted"),
    "line ends back": (
        lambda: saved(weights(D=torch.full((40,), 2.2616e-9))).replace(b"\r", b"").replace(b"\n", b"\n\n"),
        "damaged|truncated",
    ),
    "one bit": (lambda: flipped(saved(weights()), 4100), "checksum"),
    "compressed": (lambda: rezipped(saved(weights()), compression=zipfile.ZIP_DEFLATED), "compressed or overlap"),
    "entries that overlap": (repeated_entries, "compressed or overlap"),
    "legacy, half": (lambda: saved(weights(), zipped=False)[:5000], "damaged"),
    "legacy, pickle cut": (lambda: saved(weights(), zipped=False)[:300], "damaged"),
    "safetensors, half": (lambda: save(weights())[:3000], "damaged safetensors"),
    "safetensors, header length": (lambda: b"\xff\xff\xff\xff" + save(weights())[4:], "damaged safetensors"),
    "safetensors, header": (lambda: save(weights()).replace(b'"shape"', b'"shame"', 1), "damaged safetensors"),
    "safetensors, offsets": (lambda: save(weights()).replace(b"[0,", b"[7,", 1), "damaged safetensors"),
    "script": (script, "TorchScript"),
    "whole module": (lambda: saved(torch.nn.Linear(2, 2)), r"whole pickled nn\.Module.*state_dict"),
    "whole module inside": (lambda: saved({"model": model(), "acc": 1.0}), r"whole pickled nn\.Module"),
    "namespace": (lambda: saved({"model": weights(), "args": argparse.Namespace(lr=1)}), "argparse.Namespace"),
    "numpy scalar": (lambda: saved({"model": weights(), "acc": np.float64(81.0)}), r"numpy\.\S*scalar"),
    "pickle": (lambda: pickle.dumps({"model": [1, 2]}), "torch.save did not write"),
    "pickle of arrays": (lambda: pickle.dumps({"a": np.ones(3)}, protocol=2), "numpy"),
    "storage larger than the archive": (lambda: rezipped(saved(weights()), declared_larger), "damaged"),
    "storage larger than the file": (legacy_declared_larger, "damaged"),
    "expanded": (
        lambda: saved(weights(encoder__bias=torch.zeros(1).expand(10**12))),
        r"encoder\.bias declares shape \(1000000000000,\)",
    ),
    "expanded twice": (
        lambda: saved(weights(encoder__weight=torch.zeros(1, 1).expand(10**6, 10**7))),
        "more than the file holds",
    ),
    "meta": (lambda: saved(weights(D__x=torch.zeros(3, device="meta"))), r"D\.x holds a shape but no values"),
    "sparse": (lambda: saved(weights(encoder__weight=torch.ones(8, 3).to_sparse())), "encoder.weight is stored sparse"),
    "quantised": (lambda: saved(weights(encoder__weight=quantised())), "sparse or quantised"),
    "a tensor": (lambda: saved(torch.ones(3)), "holds a value of type Tensor"),
    "a list": (lambda: saved([weights()]), "holds a value of type list"),
    "a number": (lambda: saved(3), "holds a value of type int"),
    "no weights": (lambda: saved({"epoch": 3, "config": {"lr": 0.1}}), "no weights .its keys: epoch, config"),
    "nothing": (lambda: saved({}), "no weights .its keys: nothing"),
    "under another name": (lambda: saved({"generator": weights()}), "its keys: generator"),
    "two models": (lambda: saved({"model": weights(), "state_dict": weights()}), "'model' and 'state_dict'"),
    "two copies": (lambda: saved({**weights(), "module.encoder.bias": torch.ones(8)}), r"encoder\.bias twice"),
    "not a tensor": (lambda: saved(weights(encoder__bias=[0.0] * 8)), r"encoder\.bias is a list, expected a tensor"),
    "other model": (
        lambda: saved({"conv1.weight": torch.ones(3), "fc.bias": torch.ones(2)}),
        "no key starts with s4_layers .found: conv1.weight",
    ),
    "no encoder": (lambda: saved(weights(encoder__weight=None)), r"'encoder\.weight' is missing"),
    "no encoder bias": (lambda: saved(weights(encoder__bias=None)), r"'encoder\.bias' is missing"),
    "no decoder": (lambda: saved(weights(decoder__weight=None)), r"'decoder\.weight' is missing"),
    "no C": (lambda: saved(weights(**{K + "C": None})), r"'s4_layers\.0\.kernel\.C' is missing"),
    "no A_imag": (lambda: saved(weights(**{K + "A_imag": None})), r"'s4_layers\.0\.kernel\.A_imag' is missing"),
    "no log_dt in the last layer": (
        lambda: saved(weights(s4_layers__1__kernel__log_dt=None)),
        r"'s4_layers\.1\.kernel\.log_dt' is missing",
    ),
    "no norm": (lambda: saved(weights(norms__1__weight=None)), r"'norms\.1\.weight' is missing"),
    "no output": (
        lambda: saved({k: v for k, v in weights().items() if "output" not in k}),
        r"output_linear\.0\.weight' is missing",
    ),
    "a layer missing": (
        lambda: saved({k: v for k, v in weights().items() if not k.startswith("s4_layers.0")}),
        "layer 0 is missing",
    ),
    "a far layer": (
        lambda: saved({k.replace("layers.1.", "layers.4."): v for k, v in weights().items()}),
        "layer 1 is missing .layers 0, 4",
    ),
    "layer number of another form": (
        lambda: saved({**weights(), "s4_layers.01.D": torch.ones(8)}),
        "holds 3 layers|unknown",
    ),
    "a norm too many": (
        lambda: saved(weights(norms__2__weight=torch.ones(8))),
        r"unknown keys norms\.2\.weight; nothing was loaded",
    ),
    "unknown keys": (
        lambda: saved(weights(**{f"extra__{i}": torch.ones(1) for i in range(7)})),
        r"unknown keys extra\.0.* and 2 more",
    ),
    "encoder of one dimension": (
        lambda: saved(weights(encoder__weight=torch.ones(8))),
        r"encoder\.weight has shape \(8,\)",
    ),
    "encoder of no rows": (lambda: saved(weights(encoder__weight=torch.ones(0, 3))), "none of them empty"),
    "decoder of another width": (
        lambda: saved(weights(decoder__weight=torch.ones(2, 9))),
        r"decoder\.weight has shape \(2, 9\), expected \(2, 8\)",
    ),
    "decoder bias": (
        lambda: saved(weights(decoder__bias=torch.ones(3))),
        r"decoder\.bias has shape \(3,\), expected \(2,\)",
    ),
    "D of another width": (
        lambda: saved(weights(s4_layers__1__D=torch.ones(7))),
        r"s4_layers\.1\.D has shape \(7,\), expected \(8,\)",
    ),
    "modes of another number": (
        lambda: saved(weights(s4_layers__1__kernel__A_imag=torch.ones(8, 5))),
        r"A_imag has shape \(8, 5\), expected \(8, 6\)",
    ),
    "C not in pairs": (
        lambda: saved(weights(**{K + "C": torch.ones(8, 6, 3)})),
        r"kernel\.C has shape \(8, 6, 3\), expected \(8, 6, 2\)",
    ),
    "C complex": (
        lambda: saved(weights(**{K + "C": torch.ones(8, 6, dtype=torch.cfloat)})),
        r"kernel\.C has shape \(8, 6\)",
    ),
    "low rank": (
        lambda: saved(weights(**{K + "P": torch.ones(1, 8, 6, 2)})),
        r"kernel\.P belongs to S4 with a low-rank term",
    ),
    "low rank, nested": (
        lambda: saved({"state_dict": {"model.layers.0.layer.kernel.kernel.P": torch.ones(3)}}),
        "low-rank",
    ),
    "inv_dt": (
        lambda: saved(weights(**{K + "inv_dt": torch.ones(8, 1)})),
        "inv_dt belongs to a diagonal kernel of the full S4 repository",
    ),
    "w_imag": (lambda: saved(weights(**{K + "A_imag": None, K + "w_imag": torch.ones(8, 6)})), "w_imag belongs to"),
    "log_w_real": (lambda: saved(weights(**{K + "log_w_real": torch.ones(8, 6)})), "log_w_real belongs to"),
    "B": (lambda: saved(weights(**{K + "B": torch.ones(8, 6, 2)})), "trained input weights"),
    "s5": (lambda: saved({"layers.0.seq.Lambda_re": torch.ones(3)}), "belongs to S5"),
    "lru": (lambda: saved({"layers.0.seq.nu_log": torch.ones(3)}), "belongs to LRU"),
    "mamba": (lambda: saved({"layers.0.mixer.A_log": torch.ones(3)}), "belongs to Mamba"),
    "nan": (lambda: saved(weights(s4_layers__1__D=NAN)), r"s4_layers\.1\.D holds 8 NaN or infinite values.*diverged"),
    "infinite": (lambda: saved(weights(**{K + "log_A_real": INF})), r"log_A_real holds 1 NaN or infinite"),
    "nan in half precision": (lambda: saved(weights(s4_layers__1__D=NAN.half())), r"s4_layers\.1\.D holds 8 NaN"),
    "integers": (
        lambda: saved(weights(encoder__weight=torch.ones(8, 3, dtype=torch.int64))),
        r"encoder\.weight has dtype torch\.int64",
    ),
    "booleans": (
        lambda: saved(weights(encoder__bias=torch.ones(8, dtype=torch.bool))),
        r"encoder\.bias has dtype torch\.bool",
    ),
    "complex": (
        lambda: saved(weights(encoder__bias=torch.ones(8, dtype=torch.cfloat))),
        r"encoder\.bias has dtype torch\.complex64",
    ),
    "a step that overflows": (
        lambda: saved(weights(**{K + "log_dt": torch.full((8,), 1e4)})),
        r"s4_layers\.0\.kernel\.log_dt reaches 10000, whose exponential overflows",
    ),
    "a decay that overflows": (
        lambda: saved(weights(**{K + "log_A_real": torch.full((8, 6), 1e4)})),
        "log_A_real reaches 10000, whose exponential overflows",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_malformed_file_ends_in_a_sentence(tmp_path, case):
    make, words = FILES[case]
    path = tmp_path / "model.pth"
    path.write_bytes(make())
    with pytest.raises(CheckpointError, match=words) as caught:
        load_checkpoint(path, preprocessing="none")
    message = str(caught.value)
    assert message.startswith(str(path))
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 700


@pytest.mark.parametrize("form", ["zip", "legacy", "pickle 2", "pickle 5"])
@pytest.mark.parametrize("where", ["top", "model", "optimizer"])
def test_nothing_in_a_file_is_executed(tmp_path, form, where):
    mark = tmp_path / "executed"
    attack = Attack(mark)
    content = {"top": attack, "model": {"model": attack}, "optimizer": {"model": weights(), "optimizer": attack}}[where]
    if form.startswith("pickle"):
        if where == "optimizer":
            content = {"optimizer": attack}
        made = pickle.dumps(content, protocol=int(form[-1]))
    else:
        made = saved(content, zipped=form == "zip")
    pickled = pickle.dumps(attack)
    pickle.loads(pickled)  # the attack works where it is let
    assert mark.is_dir()
    mark.rmdir()
    (tmp_path / "model.pth").write_bytes(made)
    with pytest.raises(CheckpointError, match=r"posix\.mkdir|torch\.save did not write"):
        load_checkpoint(tmp_path / "model.pth", preprocessing="none")
    assert not mark.exists()


def test_a_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.pth: cannot be read .No such file"):
        load_checkpoint(tmp_path / "none.pth", preprocessing="none")


def test_every_prefix_of_a_checkpoint_is_refused(tmp_path):
    for content in (saved(weights()), saved(weights(), zipped=False), save(weights())):
        for size in np.linspace(0, len(content) - 1, 60).astype(int).tolist():
            (tmp_path / "x.pth").write_bytes(content[:size])
            with pytest.raises(CheckpointError):
                load_checkpoint(tmp_path / "x.pth", preprocessing="none")


def header(**changes):
    def edit(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def config(**changes):
    def edit(folder):
        content = json.loads((folder / "config.json").read_text())
        content["config"].update(changes)
        (folder / "config.json").write_text(json.dumps(content))

    return edit


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def other_tensors(folder):
    save_file(weights(), folder / "model.safetensors")


def other_half(folder):
    """What an overwrite leaves that was interrupted between its two files."""
    model(preprocessing=Preprocessing((5.0,) * 3, (2.0,) * 3), n_layers=1).save_pretrained(folder / "new")
    (folder / "new" / "model.safetensors").replace(folder / "model.safetensors")


DIRECTORIES = {
    "no config": (lambda d: (d / "config.json").unlink(), "without config.json"),
    "no tensors": (lambda d: (d / "model.safetensors").unlink(), r"model\.safetensors: cannot be read"),
    "empty config": (write("config.json", b""), "not valid JSON"),
    "cut config": (lambda d: (d / "config.json").write_bytes((d / "config.json").read_bytes()[:99]), "not valid JSON"),
    "binary config": (write("config.json", b"\xff\xfe\x00\x80"), "not valid JSON"),
    "deep config": (write("config.json", b"[" * 100000), "not valid JSON"),
    "list": (write("config.json", b"[1]"), "expected a JSON object, got list"),
    "foreign config": (write("config.json", b'{"model_type": "llama"}'), "not a model of this library"),
    "a transformer": (write("config.json", b'{"format": "oplens-transformer"}'), "Transformer.from_pretrained"),
    "later version": (header(version=2), "version 2 of the layout"),
    "no inner config": (header(config=None), "key 'config' is missing"),
    "unknown key": (config(colour="red"), "unknown keys colour"),
    "missing key": (header(config={"d_input": 3}), "key 'n_classes' is missing"),
    "text for a number": (config(d_model="8"), r"d_model='8'.*expected an integer"),
    "fraction": (config(d_model=8.5), "expected an integer"),
    "truth value": (config(n_layers=True), "expected an integer"),
    "odd d_state": (config(d_state=11), "even"),
    "no layers": (config(n_layers=0), "at least 1"),
    "negative": (config(d_model=-4), "at least 1"),
    "huge d_model": (config(d_model=10**12), "at most"),
    "large d_model": (config(d_model=10**6), "expected"),
    "huge d_input": (config(d_input=10**15), "at most"),
    "large n_layers": (config(n_layers=10**6), "holds 2 layers, the configuration says 1000000"),
    "other d_state": (config(d_state=14), r"has shape \(8, 6, 2\), expected \(8, 7, 2\)"),
    "other architecture": (config(architecture="transformer"), "plain, reference"),
    "plain of two layers": (config(architecture="plain"), "one layer"),
    "other discretisation": (config(discretisation="euler"), "zoh, bilinear"),
    "names in one text": (config(channels="abc"), "sequence of names"),
    "names missing": (config(channels=["a", "b"]), "2 names of channels"),
    "names twice": (config(classes=["a", "a"]), "must differ"),
    "names of numbers": (config(classes=[1, 2]), "must be strings"),
    "names of lists": (config(classes=[["a"], ["b"]]), "must be strings"),
    "prenorm as text": (config(prenorm="false"), "True or False"),
    "rate as text": (config(sampling_rate="256"), "expected a number"),
    "rate of zero": (config(sampling_rate=0), "positive rate"),
    "dropout of one": (config(dropout=1.0), "below 1"),
    "dt reversed": (config(dt_min=1.0), "dt_min <= dt_max"),
    "infinite dt": (config(dt_max=float("inf")), "dt_min <= dt_max"),
    "scale of zero": (config(preprocessing={"mean": [0, 0, 0], "scale": [1, 0, 1]}), "positive in every channel"),
    "scale missing": (config(preprocessing={"mean": [0, 0, 0]}), "scale"),
    "means of another number": (config(preprocessing={"mean": [0, 0], "scale": [1, 1]}), "holds 2 channels"),
    "mean not finite": (config(preprocessing={"mean": [0, 0, float("nan")], "scale": [1, 1, 1]}), "not finite"),
    "mean as text": (config(preprocessing={"mean": "000", "scale": [1, 1, 1]}), "one number per channel"),
    "mean holds text": (config(preprocessing={"mean": ["a", "b", "c"], "scale": [1, 1, 1]}), "one number per channel"),
    "offset as text": (
        config(preprocessing={"mean": [0] * 3, "scale": [1] * 3, "remove_offset": "no"}),
        "remove_offset='no'",
    ),
    "preprocessing as list": (config(preprocessing=[0, 1]), "expected a Preprocessing"),
    "preprocessing of another form": (config(preprocessing={"kind": "zscore"}), "wrong type"),
    "damaged tensors": (
        lambda d: (d / "model.safetensors").write_bytes(flipped((d / "model.safetensors").read_bytes(), 2000)),
        "SHA-256",
    ),
    "tensors of another model": (other_tensors, "SHA-256"),
    "interrupted overwrite": (other_half, "files of two models"),
    "pointer for tensors": (write("model.safetensors", LFS), "Git LFS pointer"),
}


@pytest.mark.parametrize("case", DIRECTORIES)
def test_a_malformed_model_directory_ends_in_a_sentence(tmp_path, case):
    edit, words = DIRECTORIES[case]
    model().eval().save_pretrained(tmp_path / "m")
    with torch.no_grad():  # one number apart from what `other_tensors` writes
        other = model().eval()
        other.decoder.bias += 1
    other.save_pretrained(tmp_path / "m")
    edit(tmp_path / "m")
    for load in (load_checkpoint, S4D.from_pretrained):
        if case == "no config" and load == S4D.from_pretrained:
            words = r"config\.json: cannot be read"
        with pytest.raises(CheckpointError, match=words) as caught:
            load(tmp_path / "m")
        assert str(caught.value).startswith(str(tmp_path / "m"))
        assert str(caught.value).endswith(".")


def test_a_part_of_a_model_directory_points_to_the_directory(tmp_path):
    model().save_pretrained(tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"give the directory, .*m, which holds its preprocessing"):
        load_checkpoint(tmp_path / "m" / "model.safetensors")


def test_an_empty_directory(tmp_path):
    with pytest.raises(CheckpointError, match="without config"):
        load_checkpoint(tmp_path)
