"""What `oplens build` leaves: a model with its proof, results and page, all of it or nothing."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xarray as xr

from oplens.cli.terminal import tell
from oplens.construction import Certificate
from oplens.models import S4D, Transformer
from oplens.report import render
from oplens.results import write_results


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder to write into; its files take their places in `out` when the block ends well, else nothing is left of it."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".building-", dir=out))
    try:
        yield stage
        for path in sorted(path for path in stage.rglob("*") if path.is_file()):
            target = out / path.relative_to(stage)
            target.parent.mkdir(exist_ok=True)
            os.replace(path, target)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        for folder in made:
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()


def write_model(folder: Path, model: Transformer | S4D, certificate: Certificate, verification: dict[str, Any]) -> None:
    """Weights, certificate.json and verification.json."""
    model.save_pretrained(folder)
    for name, content in (("certificate", certificate.to_dict()), ("verification", verification)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_page(folder: Path, tree: xr.DataTree) -> None:
    """results.nc and report.html."""
    write_results(tree, folder / "results.nc")
    render(tree, folder / "report.html")


def conclude(out: Path, tree: xr.DataTree) -> None:
    """The two lines a reader wants at the terminal."""
    tell(str(tree.attrs["headline"]))
    tell(f"wrote {out}: model, certificate.json, verification.json, results.nc; open {out / 'report.html'}")
