"""Pages in a real browser: the chromium on the PATH, and what it reported while a page was open."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

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


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """Chromium, driven by Playwright; without one the test is skipped, or fails in continuous integration."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := shutil.which(name))), None)
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


@contextlib.contextmanager
def opened(browser: Any, path: Path, width: int, **options: Any) -> Iterator[tuple[Any, Seen]]:
    """A page, scrolled through so that every figure is drawn, and what the browser reports while it is open."""
    seen = Seen()
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on(
        "console", lambda message: seen.errors.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: seen.errors.append(str(error)))
    page.on("dialog", lambda dialog: (seen.dialogs.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    for index in range(page.locator(".plot").count()):
        # Playwright's own scrolling waits for frames, of which a busy machine may give none for long.
        plot = f"document.querySelectorAll('.plot')[{index}]"
        page.evaluate(f"{plot}.scrollIntoView()")
        until(page, f"{plot}.querySelector('.main-svg') !== null")
    try:
        yield page, seen
    finally:
        page.close()


def too_wide(page: Any, width: int) -> list[str]:
    """What reaches beyond the right edge, but inside boxes that scroll themselves; the page itself, if it scrolls sideways."""
    found = page.evaluate(
        "Array.from(document.querySelectorAll('main *, header *')).filter(e => !e.closest('.table-box, svg, .plot'))"
        f".filter(e => e.getBoundingClientRect().right > {width} + 0.5).map(e => e.tagName + '.' + e.className)"
    )
    return found + ["the page"] * (page.evaluate("document.documentElement.scrollWidth") > width)


def until(page: Any, condition: str, seconds: float = 30) -> None:
    """Wait until an expression is true; Playwright's own wait would evaluate text inside the page, whose policy forbids that."""
    for _ in range(int(seconds / 0.02)):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(20)
    pytest.fail(f"after {seconds:g} s still not true: {condition}")
