"""The ring's animation in a real browser, under the page's own policy: play, pause, scrub by key and pointer, at both widths."""

import numpy as np
import pytest
import xarray as xr

from browsing import opened, until
from oplens.report import render
from synthetic_rings import invented_ring

PLACE = "document.getElementById('ring-animation')"
PLAYER = "document.querySelector('.player')"
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    ds = invented_ring().assign_coords(label=("case", np.array([HOSTILE, "right"], dtype=object)))
    tree = xr.DataTree.from_dict({"/": xr.Dataset(attrs={"title": "Rings"}), "/ring": ds})
    return render(tree, tmp_path_factory.mktemp("ring") / "report.html")


@pytest.fixture(scope="module", params=[390, 1280])
def page(request, browser, path):
    """Opened once per width; every test leaves it as it should be at rest, and without an error."""
    with opened(browser, path, request.param) as (page, seen):
        yield page
        assert seen.errors == []
        assert seen.dialogs == []
        assert [url for url in seen.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= request.param


@pytest.fixture
def player(page):
    """Button and slider of the page, in sight and at rest."""
    page.locator(".player").scroll_into_view_if_needed()
    button, slider = page.locator(".player button"), page.locator(".player input")
    assert button.inner_text() == "Play"
    return button, slider


def frames(page, key="2|7"):
    """Frames of a variant as the page holds them."""
    script = "key => JSON.parse(document.getElementById('figures').textContent)['ring-animation'].variants[key].frames"
    return page.evaluate(script, key)


def expect(page, frame, index, count):
    """The slider, its words and the picture are all at one frame."""
    until(page, f"{PLACE}._fullData[5].text.toString() === {frame['name']!r}")
    colours, cursor = page.evaluate(f"[Array.from({PLACE}._fullData[1].marker.color), {PLACE}._fullData[4].x[0]]")
    assert colours == frame["data"][0]["marker"]["color"]
    assert cursor == pytest.approx(frame["data"][2]["x"][0], abs=1e-6)
    slider = page.locator(".player input")
    assert (slider.input_value(), slider.get_attribute("max")) == (str(index), str(count - 1))
    assert slider.get_attribute("aria-valuetext") == frame["name"] == page.locator(".player output").inner_text()
    # Drawn, not only kept in memory: the first site's path starts at its radius (the input and its cursor are drawn before).
    circle = page.locator("#ring-animation .scatterlayer .trace").nth(3).locator("path.point").first.get_attribute("d")
    radius = frame["data"][0]["marker"]["size"][0] / 2
    assert float(circle[1:].split(",")[0].split("A")[0]) == pytest.approx(radius, abs=0.01)


def test_the_picture_starts_at_its_fullest_frame_and_stands_still(page, player):
    held = frames(page)
    start = page.evaluate(f"{PLACE}.layout.meta.frame")
    assert start > 0
    expect(page, held[start], start, len(held))
    page.wait_for_timeout(250)
    expect(page, held[start], start, len(held))


def test_keys_scrub(page, player):
    held = frames(page)
    player[0].focus()
    page.keyboard.press("Tab")
    assert page.evaluate(f"document.activeElement === {PLAYER}.querySelector('input')")
    for key, index in (("Home", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", len(held) - 1)):
        page.keyboard.press(key)
        expect(page, held[index], index, len(held))


def test_the_pointer_scrubs(page, player):
    held = frames(page)
    box = player[1].bounding_box()
    assert box["width"] > 120
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    middle = int(player[1].input_value())
    assert abs(middle - (len(held) - 1) / 2) <= 2
    expect(page, held[middle], middle, len(held))


def test_play_goes_on_past_the_end_until_pause(page, player):
    button, slider = player
    held = frames(page)
    slider.focus()
    page.keyboard.press("End")
    record_pauses(page)
    button.click()
    assert button.inner_text() == "Pause"
    until(page, f"0 < {PLAYER}.querySelector('input').value && {PLAYER}.querySelector('input').value < {len(held) - 1}")
    assert 70 in page.evaluate("window.asked")
    assert 600 not in page.evaluate("window.asked")
    button.focus()
    page.keyboard.press("Space")
    assert button.inner_text() == "Play"
    page.wait_for_timeout(100)
    stopped = int(slider.input_value())
    page.wait_for_timeout(250)
    expect(page, held[stopped], stopped, len(held))


def test_scrubbing_pauses(page, player):
    button, slider = player
    button.click()
    slider.focus()
    page.keyboard.press("Home")
    assert button.inner_text() == "Play"
    page.wait_for_timeout(200)
    assert slider.input_value() == "0"


def test_choosing_another_ring_pauses_at_its_fullest_frame(page, player):
    player[0].click()
    page.locator("#ring input[value='5']").check(force=True)
    page.locator("#ring input[value='3']").check(force=True)
    assert player[0].inner_text() == "Play"
    other = frames(page, "5|3")
    start = page.evaluate(f"{PLACE}.layout.meta.frame")
    expect(page, other[start], start, len(other))
    page.locator("#ring input[value='2']").check(force=True)
    page.locator("#ring input[value='7']").check(force=True)


def test_what_nobody_sees_pauses(page, player):
    player[0].click()
    assert player[0].inner_text() == "Pause"
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    until(page, f"{PLAYER}.querySelector('button').textContent === 'Play'")


def test_only_what_moves_has_a_player_and_paper_has_none(page, player):
    assert page.locator(".player").count() == 1
    assert page.locator("#ring .plot").count() == 4
    assert page.locator("img").count() == 0  # the label of a case is text, whatever it says
    page.emulate_media(media="print")
    assert not page.locator(".player").is_visible()
    page.emulate_media(media="screen")


def test_who_asks_for_less_motion_gets_slow_frames(browser, path):
    with opened(browser, path, 390, reduced_motion="reduce") as (page, seen):
        page.locator(".player").scroll_into_view_if_needed()
        record_pauses(page)
        at = page.locator(".player input").input_value()
        page.locator(".player button").click()
        until(page, f"{PLAYER}.querySelector('input').value !== '{at}'")
        asked = page.evaluate("window.asked")
        assert 600 in asked
        assert 70 not in asked
        assert seen.errors == []


def record_pauses(page):
    """Keep what the page asks its timers to wait, in milliseconds."""
    page.evaluate("""() => {
        const own = window.setTimeout;
        window.asked = [];
        window.setTimeout = (call, wait, ...rest) => { window.asked.push(wait); return own(call, wait, ...rest); };
    }""")
