"""The page of a measured model in a real browser: hostile names and tokens shown letter by letter, no error, no sideways scrolling."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import synthetic_measurements as invented
from browsing import opened, too_wide, until

HOSTILE = "</script><img src=x onerror=alert(1)>%{x}<b>$x$"
TOKENS = (
    "<b>x</b>",
    "%{z}",
    "$x$",
    "\u202eabc",
    " a",
    "\n",
    "",
    "日本語",
    "<img src=x>",
    "&lt;",
    "\x07",
    "_{i}^2",
    "1",
    "1",
)


@pytest.fixture(scope="module")
def hostile() -> xr.DataTree:
    """Every group there is, every text of it an attack."""
    others = {"errors": invented.errors().assign_attrs(target=HOSTILE), "neural": invented.neural(3, 6)}
    tree = invented.measured(3, 4, name=HOSTILE, texts=TOKENS, **others)
    tree.attrs |= {"headline": HOSTILE, "notes": json.dumps([HOSTILE])}
    tree.attrs["model"] = json.dumps({"architecture": HOSTILE, "causal": True, "attention": HOSTILE})
    maps = tree["attention_maps"].to_dataset()
    maps["why"] = ("rank", [HOSTILE] * maps.sizes["rank"])
    tree["attention_maps"] = xr.DataTree(maps.assign_attrs(case=HOSTILE))
    tree["representations"] = xr.DataTree(tree["representations"].to_dataset().assign_attrs(undefined=[HOSTILE]))
    return tree


@pytest.fixture(scope="module")
def large() -> xr.DataTree:
    texts = tuple(f" token{k}" for k in range(64))
    return invented.measured(24, 16, missing=((3, 2),), tokens=64, texts=texts)


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["hostile", "large"])
def test_page_opens_offline_and_fits(
    name: str, width: int, browser: Any, page_of_fixture: Callable[[str], Path]
) -> None:
    path = page_of_fixture(name)
    with opened(browser, path, width) as (page, seen):
        assert [url for url in seen.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
        assert (seen.errors, seen.dialogs) == ([], [])
        assert too_wide(page, width) == []
        left = page.evaluate(
            "Array.from(document.querySelectorAll('#attention-maps figure')).map(f => f.getBoundingClientRect().left)"
        )
        assert len(set(left)) == (1 if width == 390 else 3)
        # No label of a token is cut off by the edge of its map.
        cut = page.evaluate(
            "Array.from(document.querySelectorAll('#attention-maps .plot')).flatMap(p => Array.from(p.querySelectorAll('.xtick text, .ytick text'))"
            ".map(t => [t.getBoundingClientRect(), p.getBoundingClientRect()])"
            ".filter(([t, box]) => t.left < box.left - 0.5 || t.bottom > box.bottom + 0.5)).length"
        )
        assert cut == 0


def test_hostile_names_and_tokens_are_shown_letter_by_letter(
    hostile: xr.DataTree, browser: Any, page_of_fixture: Callable[[str], Path]
) -> None:
    with opened(browser, page_of_fixture("hostile"), 1280) as (page, seen):
        assert page.locator("img").count() == 0
        assert page.locator("h1").inner_text() == f"{HOSTILE}, measured"
        assert page.locator(".headline").inner_text() == HOSTILE
        assert page.locator("#attention-maps h3").first.inner_text() == f"Layer 2, head 0: {HOSTILE}"
        assert f"One case ({HOSTILE})" in page.locator("#attention-maps .finding").inner_text()
        assert f"misses {HOSTILE} by" in page.locator("#scores").inner_text()
        shown = [
            "<b>x</b>",
            "%{z}",
            "$x$",
            "\\u202eabc",
            "␣a",
            "↵",
            "∅",
            "日本語",
            "<img␣src…",
            "&lt;",
            "\\x07",
            "_{i}^2",
            "1",
            "1",
        ]
        for axis in ("x", "y"):
            assert page.locator(f"#attention-map-0 .{axis}tick text").all_text_contents() == shown
        box = page.locator("#attention-map-0 .nsewdrag").first.bounding_box()
        side = np.array([box["width"], box["height"]]) / 14
        page.locator("#attention-map-0").scroll_into_view_if_needed()
        box = page.locator("#attention-map-0 .nsewdrag").first.bounding_box()
        page.mouse.move(box["x"] + 0.5 * side[0], box["y"] + 1.5 * side[1])
        page.wait_for_selector("#attention-map-0 .hoverlayer text")
        weight = hostile["attention_maps"].weight.values[0, 1, 0]
        assert (
            page.locator("#attention-map-0 .hoverlayer").text_content()
            == f"1 %{{z}}looks at 0 <b>x</b>weight {weight:.3f}"
        )
        assert page.locator("img").count() == 0
        assert (seen.errors, seen.dialogs) == ([], [])


def test_heads_become_a_map_and_likeness_changes_its_kind(
    hostile: xr.DataTree, browser: Any, page_of_fixture: Callable[[str], Path]
) -> None:
    with opened(browser, page_of_fixture("hostile"), 1280) as (page, seen):
        ds = hostile["attention"].to_dataset()
        page.locator("#attention input[value='map']").check(force=True)
        for name in ("distance", "previous_mass"):
            until(page, f"document.getElementById('attention-{name}').data[0].type === 'heatmap'")
            drawn = page.evaluate(
                f"Array.from(document.getElementById('attention-{name}').calcdata[0][0].z).map(row => Array.from(row))"
            )
            np.testing.assert_allclose(drawn, ds[name].values.T, rtol=1e-6)
        read = "Array.from(document.getElementById('similarity').calcdata[0][0].z).map(row => Array.from(row))"
        for kind in ("cka", "cka_unbiased"):
            page.locator(f"#representations input[value='{kind}']").check(force=True)
            np.testing.assert_allclose(page.evaluate(read), hostile["similarity"][kind].values, rtol=1e-6)
        assert seen.errors == []


def test_panels_share_their_axis_of_layers(
    large: xr.DataTree, browser: Any, page_of_fixture: Callable[[str], Path]
) -> None:
    with opened(browser, page_of_fixture("large"), 1280) as (page, _):
        for view in ("map", "dots"):
            page.locator(f"#attention input[value='{view}']").check(force=True)
            until(
                page,
                f"document.getElementById('attention-distance').data[0].type === '{'heatmap' if view == 'map' else 'scatter'}'",
            )
            offsets = page.evaluate(
                "Array.from(document.querySelectorAll('#attention .plot')).map(p => {"
                "const inside = p.querySelector('.nsewdrag').getBoundingClientRect(), box = p.getBoundingClientRect();"
                "return [inside.left - box.left, inside.width].map(Math.round).join(' ');})"
            )
            assert len(offsets) == 6
            assert len(set(offsets)) == 1
