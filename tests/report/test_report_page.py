"""The page as text: self-contained, inert whatever the names, small enough, and true to the file."""

import html
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from plotly.offline import get_plotlyjs

import synthetic_results
from oplens.errors import ResultError
from oplens.report import render
from oplens.results import write_results

HOSTILE = "</script><img src=x onerror=alert(1)>"


class Reader(HTMLParser):
    """Elements, attributes and visible text as an HTML parser sees them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.inside: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if self.inside[-1:] == ["script"]:
            self.scripts.append(data)
        elif not self.inside and data.strip():
            self.words.append(data.strip())


def page_of(tree: xr.DataTree, folder: Path) -> str:
    return render(tree, folder / "report.html").read_text(encoding="utf-8")


def test_page_from_a_file_is_the_page_from_its_tree(
    two_class: xr.DataTree, tmp_path: Path, page_of_fixture: Callable[[str], Path]
) -> None:
    path = write_results(two_class, tmp_path / "r.nc")
    assert render(path, tmp_path / "a.html").read_bytes() == page_of_fixture("two_class").read_bytes()


@pytest.mark.parametrize("name", ["two_class", "four_class", "deep"])
def test_page_is_one_small_self_contained_file(name: str, page_of_fixture: Callable[[str], Path]) -> None:
    page = page_of_fixture(name).read_text(encoding="utf-8")
    assert len(page.encode()) < 8_000_000
    reader = Reader(page)
    for tag, attrs in reader.elements:
        for key in ("src", "href", "action", "data", "poster", "srcset"):
            assert not re.match(r"(?!#|data:,)", attrs.get(key) or "#"), (tag, key, attrs[key])
        assert not any(key.startswith("on") for key in attrs), (tag, attrs)
    css = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in css
    assert "@import" not in css
    assert page.count(get_plotlyjs()[:200]) == 1
    assert [tag for tag, _ in reader.elements].count("script") == 3


def test_headline_comes_before_everything_but_the_title(
    two_class: xr.DataTree, page_of_fixture: Callable[[str], Path]
) -> None:
    words = Reader(page_of_fixture("two_class").read_text(encoding="utf-8")).words
    headline = two_class.attrs["headline"]
    assert words[:3] == [two_class.attrs["title"], two_class.attrs["title"], headline]  # <title>, <h1>, headline


def test_page_gives_the_numbers_of_the_file(two_class: xr.DataTree, page_of_fixture: Callable[[str], Path]) -> None:
    words = Reader(page_of_fixture("two_class").read_text(encoding="utf-8")).words
    summary = two_class["summary"].to_dataset()
    for name in ("accuracy", "relative_accuracy", "agreement"):
        for value in summary[name].values:
            assert f"{100 * value:.1f} %" in words
    text = " ".join(words)
    assert "explains 94 % of the variance" in text
    assert "256 Hz" in words
    assert "negativity (60), positivity (60)" in words
    assert "adds up" in words
    for case in two_class["inputs"]["case"].values:
        assert f"Case {case}" in words
    assert two_class["inputs"].attrs["rule"] in text
    for path, node in ((n.path, n) for n in two_class.subtree):
        for attribute in node.attrs:
            assert attribute in words, (path, attribute)


def test_sections_follow_the_groups(
    two_class: xr.DataTree, tmp_path: Path, page_of_fixture: Callable[[str], Path]
) -> None:
    sections = [
        a["id"] for t, a in Reader(page_of_fixture("two_class").read_text(encoding="utf-8")).elements if t == "section"
    ]
    expected = [
        "accuracy",
        "by-channels_bands",
        "by-windows",
        "by-waves",
        "by-pairs_channels",
        "by-pairs_waves",
        "cases",
        "reading",
        "provenance",
    ]
    assert sections == expected
    less = xr.DataTree.from_dict(
        {
            n.path: n.to_dataset(inherit=False)
            for n in two_class.subtree
            if n.name not in ("windows", "baselines", "pairs_waves")
        }
    )
    sections = [a["id"] for t, a in Reader(page_of(less, tmp_path)).elements if t == "section"]
    assert sections == [s for s in expected if s not in ("by-windows", "by-pairs_waves")]
    words = " ".join(Reader(page_of_fixture("deep").read_text(encoding="utf-8")).words)
    assert "What does each layer contribute?" in words
    assert "conditional" in words
    assert "order 1" not in words


def test_sums_that_do_not_add_up_are_called_out(two_class: xr.DataTree, tmp_path: Path) -> None:
    tree = two_class.copy()
    windows = tree["windows"].to_dataset()
    tree["windows"] = xr.DataTree(
        windows.assign(remainder=windows["remainder"].copy(data=windows["remainder"] + 1e-6 * windows["sum_abs_terms"]))
    )
    words = Reader(page_of(tree, tmp_path)).words
    assert "does not add up" in words
    assert any("do NOT add up" in word for word in words)


def test_unequal_lengths_are_said(two_class: xr.DataTree, tmp_path: Path) -> None:
    tree = two_class.copy()
    tree.attrs["data"] = json.dumps({**json.loads(tree.attrs["data"]), "length": 24, "shortest": 7})
    assert "7 to 24 steps" in Reader(page_of(tree, tmp_path)).words


def test_a_variance_that_a_single_case_lacks_is_not_mentioned(two_class: xr.DataTree, tmp_path: Path) -> None:
    tree = two_class.copy(deep=True)
    tree["summary"]["channel_mean_r2"].values[()] = np.nan
    assert "of the variance" not in " ".join(Reader(page_of(tree, tmp_path)).words)


def of_one_class(tree: xr.DataTree, name: str) -> xr.DataTree:
    """The tree as if only cases of class `name` had been explained."""
    groups = {}
    for node in tree.subtree:
        dataset = node.to_dataset(inherit=False)
        if "label" in dataset.coords:
            dataset = dataset.isel(case=np.flatnonzero(dataset["label"].values == name))
        if "pair_share" in dataset and "case" not in dataset["pair_share"].dims:  # class means
            dataset = dataset.isel({"class": np.flatnonzero(dataset["class"].values == name)})
        groups[node.path] = dataset
    return xr.DataTree.from_dict(groups)


@pytest.mark.parametrize("name", ["two_class", "four_class", "deep"])
def test_a_class_without_cases_leaves_a_page_without_comparisons(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tree = request.getfixturevalue(name)
    label = str(tree["inputs"]["label"].values[0])
    page = page_of(of_one_class(tree, label), tmp_path)
    words = " ".join(Reader(page).words)
    drawn = json.loads(next(script for script in Reader(page).scripts if script.startswith("{")))
    titles = [attrs.get("aria-label") or "" for _, attrs in Reader(page).elements]
    assert "cannot be compared" in words
    assert not any(title.startswith("Difference between the classes") for title in titles)
    for picture, figure in drawn.items():
        for variant in figure["variants"].values():
            assert "null" not in json.dumps(variant["layout"]), picture
    assert "nan" not in words.lower().split()


def test_a_product_of_three_is_a_map_of_sums(two_class: xr.DataTree, tmp_path: Path) -> None:
    tree = two_class.copy()
    plane = tree["channels_bands"].to_dataset(inherit=False)
    halves = np.array([0.25, 0.75])
    cubes = {
        name: (plane[name] * xr.DataArray(halves, dims="window")).assign_attrs(plane[name].attrs)
        for name in ("share", "full_share")
    }
    edges = {"window_start": ("window", [0.0, 0.5]), "window_stop": ("window", [0.5, 1.0])}
    tree["channels_bands_windows"] = xr.DataTree(plane.assign(cubes).assign_coords(window=[0, 1], **edges))
    page = page_of(tree, tmp_path)
    assert "Where, at which frequencies, and when?" in Reader(page).words
    assert "summed over time windows" in " ".join(Reader(page).words)
    assert "channels × bands × time windows" in Reader(page).words
    drawn = json.loads(next(script for script in Reader(page).scripts if script.startswith("{")))
    for measure in "01":
        whole, summed = (
            drawn[f"by-{group}-{measure}"]["variants"]["sum"]["data"][0]["z"]
            for group in ("channels_bands", "channels_bands_windows")
        )
        assert whole == summed


def test_a_stack_is_not_said_to_be_cut(deep: xr.DataTree, tmp_path: Path) -> None:
    words = " ".join(Reader(page_of(deep, tmp_path)).words)
    assert "cut after" not in words
    assert "remainder of the truncation" not in words


def hostile_tree() -> xr.DataTree:
    """Every name a user can choose is an attack, and so is every text of the file."""
    tree = synthetic_results.two_class(
        channels=[HOSTILE + str(k) for k in range(6)],
        classes=(HOSTILE + "a", HOSTILE + "b"),
        title=HOSTILE + " title",
        n_cases=30,
    )
    tree.attrs["headline"] = HOSTILE + " headline"
    tree["inputs"].attrs["rule"] = HOSTILE + " rule"
    tree["windows"].attrs["note"] = HOSTILE + " note"
    baselines = tree["baselines"].to_dataset()
    tree["baselines"] = xr.DataTree(baselines.assign_coords(baseline=[HOSTILE + str(k) for k in range(5)]))
    tree[HOSTILE.replace("/", "")] = xr.DataTree(tree["windows"].to_dataset())
    return tree


def test_names_with_markup_stay_text(tmp_path: Path) -> None:
    page = page_of(hostile_tree(), tmp_path)
    reader = Reader(page)
    assert [tag for tag, _ in reader.elements].count("img") == 0
    assert [tag for tag, _ in reader.elements].count("script") == 3
    assert reader.words[1:3] == [HOSTILE + " title", HOSTILE + " headline"]
    data = next(script for script in reader.scripts if script.startswith("{"))
    assert "<" not in data
    figures = json.loads(data)
    drawn = json.dumps([figure for entry in figures.values() for figure in entry["variants"].values()])
    assert html.escape(HOSTILE)[:20] in drawn
    assert "<img" not in drawn


def test_policy_forbids_network_and_lists_the_scripts_by_hash(page_of_fixture: Callable[[str], Path]) -> None:
    policy = next(
        a["content"] or ""
        for t, a in Reader(page_of_fixture("two_class").read_text(encoding="utf-8")).elements
        if a.get("http-equiv")
    )
    assert policy.startswith("default-src 'none'")
    assert policy.count("'sha256-") == 2
    assert "unsafe-inline" not in policy[policy.index("script-src") :]
    assert "http" not in policy


def many_classes() -> xr.DataTree:
    """Nine classes, 2048 waves, 40 channels: what a page of a large model must still fit."""
    draw = synthetic_results.Draw(
        1, 90, [f"EEG {k:03d}" for k in range(40)], [f"speaker {k}" for k in range(9)], margin=False, rate=500.0
    )
    return xr.DataTree.from_dict(
        {
            "/": draw.root("Large: nine speakers", "A large file.", synthetic_results.MODEL),
            "/channels_bands": draw.channels_bands(),
            "/windows": draw.windows(32),
            "/waves": draw.waves(64, 32),
            "/inputs": draw.inputs(3000),
        }
    )


def test_a_large_result_still_gives_a_page_below_eight_megabytes(tmp_path: Path) -> None:
    page = page_of(many_classes(), tmp_path)
    assert len(page.encode()) < 8_000_000
    assert "speaker 8" in page
    assert re.search(r"largest of 2048 waves, holding \d+ % of all absolute shares", page)


def test_names_with_lone_surrogates_and_controls_do_not_break_the_page(tmp_path: Path) -> None:
    tree = synthetic_results.two_class(channels=["a\u202eb", "c\x07", "\ud800", "e\u2028", "f\n", "日本"], n_cases=20)
    page = page_of(tree, tmp_path)
    data = next(script for script in Reader(page).scripts if script.startswith("{"))
    json.loads(data)
    assert "日本" in page


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_undefined_numbers_are_shown_as_such(value: float, two_class: xr.DataTree, tmp_path: Path) -> None:
    tree = two_class.copy()
    summary = tree["summary"].to_dataset().copy(deep=True)
    summary["margin_r2"].values[0] = value
    tree["summary"] = xr.DataTree(summary)
    words = Reader(page_of(tree, tmp_path)).words
    assert ("–" if np.isnan(value) else "∞") in words


def test_a_file_of_attributes_alone_gives_a_page(tmp_path: Path) -> None:
    words = Reader(page_of(xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "Bare"})}), tmp_path)).words
    assert "not checked" in words


@pytest.mark.parametrize(
    ("results", "out", "words"),
    [
        ("absent.nc", "report.html", "there is no such file"),
        ("page.html", "report.html", "this is a web page"),
        (None, "absent/report.html", "in a folder that exists"),
        (None, "", "give the name of a page"),
    ],
)
def test_what_cannot_be_rendered_gets_a_sentence(
    results: str | None, out: str, words: str, two_class: xr.DataTree, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text("<html></html>")
    source: Any = two_class if results is None else tmp_path / results
    with pytest.raises(ResultError, match=words):
        render(source, tmp_path / out)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html"]


def test_what_is_no_result_is_refused_by_its_kind(two_class: xr.DataTree, tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    for results, out in ((two_class["windows"].to_dataset(), page), (page, two_class)):
        with pytest.raises(
            ResultError, match=rf"render\(results={type(results).__name__}, out=.*give a result file or a DataTree"
        ):
            render(results, out)


def test_an_old_page_is_replaced_whole(two_class: xr.DataTree, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("old")
    render(two_class, out)
    assert out.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
