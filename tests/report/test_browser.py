"""The page in a real browser: offline, no error, no sideways scrolling on a phone, names inert, controls alive."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import synthetic_results
from oplens.report import render

HOSTILE = "</script><img src=x onerror=alert(1)><b>$x$"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@dataclass
class Seen:
    """What the browser reported while a page was open."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if program is None:
        reason = "no chromium on PATH: the page is not tried in a browser"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def hostile() -> xr.DataTree:
    tree = synthetic_results.two_class(
        channels=[HOSTILE + str(k) for k in range(6)], classes=(HOSTILE + "a", HOSTILE + "b"), title=HOSTILE, n_cases=30
    )
    tree.attrs["headline"] = HOSTILE
    return tree


def opened(browser: Any, path: Path, width: int) -> tuple[Any, Seen]:
    """Open a page and scroll through it, so that every figure is drawn."""
    seen = Seen()
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on(
        "console", lambda message: seen.errors.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    count = page.locator(".plot").count()
    for index in range(count):
        page.locator(".plot").nth(index).scroll_into_view_if_needed()
    page.wait_for_function(f"document.querySelectorAll('.plot .main-svg').length >= {count}", timeout=30_000)
    return page, seen


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["two_class", "four_class", "deep", "hostile"])
def test_page_opens_offline_and_fits(
    name: str, width: int, browser: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = render(request.getfixturevalue(name), tmp_path / "report.html")
    page, seen = opened(browser, path, width)
    try:
        assert [url for url in seen.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
        assert seen.errors == []
        assert seen.dialogs == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # Nothing is wider than its column except inside boxes that scroll themselves.
        wide = page.evaluate(
            "Array.from(document.querySelectorAll('main *, header *')).filter(e => !e.closest('.table-box, svg, .plot'))"
            f".filter(e => e.getBoundingClientRect().right > {width} + 0.5).map(e => e.tagName + '.' + e.className)"
        )
        assert wide == []
        assert page.locator(".plot").count() == page.locator(".plot .main-svg:first-child").count()
    finally:
        page.close()


def test_hostile_names_are_shown_and_do_nothing(hostile: xr.DataTree, browser: Any, tmp_path: Path) -> None:
    page, seen = opened(browser, render(hostile, tmp_path / "report.html"), 1280)
    try:
        assert page.locator("img").count() == 0
        assert page.locator("h1").inner_text() == HOSTILE
        ticks = page.locator("#by-channels_bands-0 .ytick text").all_text_contents()
        assert len(ticks) == 6
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
    finally:
        page.close()


def test_choosing_an_order_redraws_the_figures_of_its_section(
    two_class: xr.DataTree, browser: Any, tmp_path: Path
) -> None:
    page, seen = opened(browser, render(two_class, tmp_path / "report.html"), 1280)
    try:
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
    finally:
        page.close()


def test_more_than_four_classes_are_chosen_from_a_list(browser: Any, tmp_path: Path) -> None:
    draw = synthetic_results.Draw(2, 30, ["x", "y"], [f"class {k}" for k in range(6)], margin=False, rate=None)
    root = draw.root("Six classes", "Six classes.", synthetic_results.MODEL)
    tree = xr.DataTree.from_dict({"/": root, "/windows": draw.windows(), "/inputs": draw.inputs(80)})
    page, seen = opened(browser, render(tree, tmp_path / "report.html"), 390)
    try:
        page.locator("#by-windows select").select_option("class 4")
        page.wait_for_function("document.getElementById('by-windows-0').data[5].name === 'the other classes'")
        assert page.evaluate("document.getElementById('by-windows-0').data[2].name") == "class 4"
        assert seen.errors == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    finally:
        page.close()
