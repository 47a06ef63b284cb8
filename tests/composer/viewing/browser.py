"""A real headless browser that opens pages and records its console and its requests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from composer.errors import ComposerError
from composer.viewing.page import made_with

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NARROW = 420
"""Dots across: a telephone."""
NOTHING_HANGS_OUT = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
"""On no side of the page is there more to scroll to."""
PATIENCE = 20_000
"""Milliseconds that a page may take on a busy machine."""


def gradio_or_skip() -> Any:
    """Return Gradio, or skip the test with the reason if it is missing or too old."""
    try:
        return made_with()
    except ComposerError as error:
        pytest.skip(str(error))


class Watched:
    """A page and its events while it was open. words: errors and warnings of its console. hosts: the hosts of its requests."""

    def __init__(self, page: Any) -> None:
        self.page, self.words, self.hosts = page, list[str](), set[str]()
        page.set_default_timeout(PATIENCE)
        page.on(
            "console",
            lambda message: self.words.append(f"{message.type}: {message.text}") if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: self.words.append(f"uncaught: {error}"))
        page.on("request", lambda request: self.hosts.add(request.url.partition("://")[2].partition("/")[0]))

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.words.append(f"{message.type}: {message.text}")


@contextmanager
def opened(address: str, *, wide: int = 1280, high: int = 900, dark: bool = False) -> Iterator[Watched]:
    """Open a page in Chromium. The test is skipped without Chromium or its driver."""
    api = pytest.importorskip("playwright.sync_api", reason="no playwright is installed, which steers the browser")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page(viewport={"width": wide, "height": high}, color_scheme="dark" if dark else "light")
            watched = Watched(page)
            page.goto(address)
            yield watched
        finally:
            browser.close()
