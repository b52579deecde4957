"""The page in a real browser: offline, no error, no sideways scrolling on a phone, names inert, controls alive."""

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import synthetic_results
from browsing import opened, too_wide
from oplens import S4D, S4DConfig, assemble, expand
from oplens.data import Sinusoid
from oplens.report import render
from oplens.views import VIEWS

HOSTILE = "</script><img src=x onerror=alert(1)><b>$x$"


class Marks(HTMLParser):
    """What a page has sections of, and what its table of contents leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.sections, self.links = False, set[str](), set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = self.inside or tag == "nav"
        found = dict(attrs)
        if tag == "section" and found.get("id"):
            self.sections.add(str(found["id"]))
        if tag == "a" and self.inside:
            self.links.add(str(found.get("href")))

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag != "nav"


@pytest.fixture(scope="module")
def hostile() -> xr.DataTree:
    tree = synthetic_results.two_class(
        channels=[HOSTILE + str(k) for k in range(6)], classes=(HOSTILE + "a", HOSTILE + "b"), title=HOSTILE, n_cases=30
    )
    tree.attrs["headline"] = HOSTILE
    return tree


@pytest.fixture(scope="module")
def every_view() -> xr.DataTree:
    """A real result with everything a page can show, of a model and data whose names are hostile."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    classes = (HOSTILE + "a", HOSTILE + "b")
    X = rng.normal(size=(12, 2, 40))
    labels = np.array(classes)[rng.integers(0, 2, 12)]
    names = {"channels": (HOSTILE + "0", HOSTILE + "1"), "classes": classes, "sampling_rate": 40.0}
    op = expand(S4D(S4DConfig(2, 2, d_model=4, d_state=8, **names)), X, labels)
    views = [name for name, view in VIEWS.items() if view.fits(op)]
    tree = assemble(op, X, labels, views=views, title=HOSTILE)
    signals = {name: Sinusoid(f, 40, 40.0) for name, f in zip(classes, (5.0, 9.0), strict=True)}
    tree["/prediction/discrimination"] = xr.DataTree(op.discriminate(signals, 0.5, simulate=20))
    tree["/prediction/sweep"] = xr.DataTree(op.sweep([3.0, 5.0, 9.0], 0.5, marks={HOSTILE: 5.0}))
    return tree


@pytest.fixture(scope="module")
def stack() -> xr.DataTree:
    """The same of a stack, which has rays."""
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(6, 2, 30))
    config = S4DConfig(2, 2, d_model=4, d_state=8, n_layers=2, architecture="reference", classes=(HOSTILE, "b"))
    return assemble(expand(S4D(config), X), X, title=HOSTILE)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["two_class", "four_class", "deep", "hostile", "every_view", "stack"])
def test_page_opens_offline_and_fits(
    name: str, width: int, browser: Any, page_of_fixture: Callable[[str], Path]
) -> None:
    path = page_of_fixture(name)
    with opened(browser, path, width) as (page, seen):
        assert [url for url in seen.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
        assert seen.errors == []
        assert seen.dialogs == []
        assert too_wide(page, width) == []
        assert page.locator(".plot").count() == page.locator(".plot .main-svg:first-child").count()


def test_everything_has_its_section(page_of_fixture: Callable[[str], Path]) -> None:
    wanted = {"ring", "kernels", "reduction", "certificates", "what-if", "ablation", "prediction"}
    for name, sections in (("every_view", wanted), ("stack", {"ring", "ray"})):
        found = Marks()
        found.feed(page_of_fixture(name).read_text(encoding="utf-8"))
        assert sections <= found.sections
        assert {f"#{section}" for section in sections} <= found.links


@pytest.mark.parametrize("name", ["hostile", "every_view"])
def test_hostile_names_are_shown_and_do_nothing(
    name: str, browser: Any, page_of_fixture: Callable[[str], Path], request: pytest.FixtureRequest
) -> None:
    tree = request.getfixturevalue(name)
    with opened(browser, page_of_fixture(name), 1280) as (page, seen):
        assert page.locator("img").count() == 0
        assert page.locator("h1").inner_text() == HOSTILE
        ticks = page.locator("#by-channels_bands-0 .ytick text").all_text_contents()
        assert len(ticks) == tree["channels_bands"].sizes["channel"]
        assert set(ticks) == {HOSTILE[:13] + "…"}
        page.locator("#by-channels_bands-0").scroll_into_view_if_needed()
        box = page.locator("#by-channels_bands-0 .nsewdrag").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#by-channels_bands-0 .hoverlayer text")
        assert (
            "</script><img src=x onerror=alert(1)>" in page.locator("#by-channels_bands-0 .hoverlayer").text_content()
        )
        assert page.locator("img").count() == 0
        assert seen.dialogs == []


def test_choosing_an_order_redraws_the_figures_of_its_section(
    two_class: xr.DataTree, browser: Any, page_of_fixture: Callable[[str], Path]
) -> None:
    with opened(browser, page_of_fixture("two_class"), 1280) as (page, seen):
        read = "Array.from(document.getElementById('by-channels_bands-0').calcdata[0][0].z).map(row => Array.from(row))"
        dataset = two_class["channels_bands"].to_dataset()
        label = dataset["label"].values
        for order, share in (("1", dataset["share"].values[0]), ("full", dataset["full_share"].values)):
            page.locator(f"#by-channels_bands input[value='{order}']").check(force=True)
            expected = share[label == "negativity"].mean(0) - share[label == "positivity"].mean(0)
            drawn = page.evaluate(read)
            np.testing.assert_allclose(np.array(drawn), expected, atol=1e-6)
        before = page.locator("#by-windows-0 svg").first.inner_html()
        page.locator("#by-channels_bands input[value='2']").check(force=True)
        assert page.locator("#by-windows-0 svg").first.inner_html() == before
        assert seen.errors == []


def test_more_than_four_classes_are_chosen_from_a_list(browser: Any, tmp_path: Path) -> None:
    draw = synthetic_results.Draw(2, 30, ["x", "y"], [f"class {k}" for k in range(6)], margin=False, rate=None)
    root = draw.root("Six classes", "Six classes.", synthetic_results.MODEL)
    tree = xr.DataTree.from_dict({"/": root, "/windows": draw.windows(), "/inputs": draw.inputs(80)})
    with opened(browser, render(tree, tmp_path / "report.html"), 390) as (page, seen):
        page.locator("#by-windows select").select_option("class 4")
        page.wait_for_function("document.getElementById('by-windows-0').data[5].name === 'the other classes'")
        assert page.evaluate("document.getElementById('by-windows-0').data[2].name") == "class 4"
        assert seen.errors == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
