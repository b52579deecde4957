"""A result file becomes one HTML page that needs nothing else: no network, no second file."""

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xarray as xr

from oplens.errors import ResultError
from oplens.files import replacing
from oplens.report import facts
from oplens.report.accuracy import accuracy_section
from oplens.report.blocks import Limits, Picture, Section
from oplens.report.cases import case_section
from oplens.report.certificates import certificate_section
from oplens.report.construction import construction_section
from oplens.report.kernels import kernel_section
from oplens.report.measurement import measurement_sections
from oplens.report.pairs import pair_sections
from oplens.report.partitions import partition_section, partitions
from oplens.report.prediction import prediction_section
from oplens.report.rays import ray_section
from oplens.report.reduction import reduction_section
from oplens.report.ring import ring_section
from oplens.report.robustness import robustness_section
from oplens.report.what_if import what_if_section
from oplens.results import read_results, validate

MAX_BYTES = 8_000_000
_STEPS = (Limits(), Limits(waves=150, variants=9), Limits(cases=6, waves=80, variants=1))


def render(results: "xr.DataTree | str | os.PathLike[str]", out: str | os.PathLike[str]) -> Path:
    """Render a result file as one self-contained HTML page.

    The page embeds its figures, styles and the plotting script, forbids itself any network access, and shows names from
    the file letter by letter, whatever they contain. Pages that would pass 8 MB show fewer waves, choices and cases.

    Parameters
    ----------
    results
        A file written by `oplens.results.write_results`, or the tree itself.
    out
        The page to write; an existing one is replaced when the new one is complete.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    ResultError
        The results are damaged or depart from `docs/schema.md`, or the page cannot be written.

    Examples
    --------
    >>> import tempfile, xarray as xr
    >>> from oplens.report import render
    >>> attrs = {"units": "1", "long_name": "agreement with the model", "claim": "measured"}
    >>> summary = xr.Dataset({"agreement": ("order", [0.9, 1.0], attrs)}, coords={"order": [1, 2]})
    >>> tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "Example"}), "/summary": summary})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = render(tree, folder + "/report.html").read_text(encoding="utf-8")
    >>> "<h1>Example</h1>" in page
    True
    """
    if isinstance(out, xr.DataTree | xr.Dataset) or isinstance(results, xr.Dataset):
        raise ResultError(
            f"render(results={type(results).__name__}, out={type(out).__name__}): give a result file or a DataTree, of "
            "oplens.assemble(operator, X), and then the name of the page."
        )
    target = Path(out)
    if target.is_dir() or not target.parent.is_dir():
        raise ResultError(f"{target}: give the name of a page to write, such as report.html, in a folder that exists.")
    if isinstance(results, xr.DataTree):
        tree = results
        validate(tree)
    else:
        tree = read_results(results)
    page = ""
    for limits in _STEPS:
        page = _page(tree, limits)
        if len(page.encode("utf-8", errors="replace")) < MAX_BYTES:
            break
    try:
        with replacing(target) as temporary:
            temporary.write_text(page, encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise ResultError(f"{target}: could not be written ({error.strerror}).") from error
    return target


def _page(tree: xr.DataTree, limits: Limits) -> str:
    import jinja2
    import markupsafe
    from plotly.offline import get_plotlyjs

    found = partitions(tree)
    sections = [
        *accuracy_section(tree),
        *construction_section(tree, limits),
        *measurement_sections(tree, limits),
        *robustness_section(tree, limits),
        *(partition_section(name, partition, limits) for name, partition in found.items()),
        *pair_sections(tree, limits),
        *ring_section(tree, limits),
        *kernel_section(tree, limits),
        *reduction_section(tree, limits),
        *ray_section(tree, limits),
        *certificate_section(tree, limits),
        *what_if_section(tree, limits),
        *prediction_section(tree, limits),
        *case_section(tree, found, limits),
    ]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("oplens.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def asset(name: str) -> str:
        return str(environment.loader.get_source(environment, name)[0]) if environment.loader else ""

    scripts = [_script_text(get_plotlyjs()), _script_text(asset("page.js"))]
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src "
        + " ".join(_hash(script) for script in scripts)
    )
    return environment.get_template("page.html.j2").render(
        title=tree.attrs["title"],
        headline=facts.headline(tree),
        data_rows=facts.data_rows(tree),
        model_rows=facts.model_rows(tree),
        claims=facts.used_claims(tree),
        check=facts.check(tree),
        kinds=facts.kinds(tree),
        notes=facts.notes(tree),
        deep=any("layer_share" in partition for partition in found.values()),
        sections=sections,
        attribute_tables=facts.attribute_tables(tree),
        policy=policy,
        style=markupsafe.Markup(asset("page.css")),
        plotly=markupsafe.Markup(scripts[0]),
        script=markupsafe.Markup(scripts[1]),
        figures=markupsafe.Markup(_data(sections)),
    )


def _data(sections: Sequence[Section]) -> str:
    """Return all figures as JSON that no HTML parser can mistake for markup."""
    found: dict[str, Any] = {}
    for section in sections:
        for picture in _pictures(section):
            found[picture.id] = {
                "switch": picture.switch,
                "variants": {
                    key: json.loads(str(fig.to_json(validate=False))) for key, fig in picture.variants.items()
                },
            }
    text = json.dumps(found, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _pictures(section: Section) -> list[Picture]:
    return [*section.pictures, *(picture for card in section.cards for picture in card.pictures)]


def _script_text(text: str) -> str:
    """Return a script as a browser will hash it: HTML parsing turns every line end into a line feed."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "</script" in text.lower() or "<!--" in text:
        text = text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return text


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
