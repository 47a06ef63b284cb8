"""Writes docs/view.png, docs/view-mistake.png and docs/gallery.png: the pages in a headless Chromium. ``make screenshots``."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image

from composer.spec.shipped import shipped_specs
from composer.viewing.page import launch, page

DOCS = Path(__file__).parent
CHROMIUM = "chromium"
WIDE, HIGH = 1280, 860
COLOURS = 256
"""Colours of a PNG, which make it small: the most distinct ones, not the most frequent."""


def main() -> None:
    from playwright.sync_api import sync_playwright

    executable = shutil.which(CHROMIUM)
    if executable is None:
        raise SystemExit("there is no `chromium` on the PATH: install it to take pictures of the pages")
    app = page()
    address = launch(app)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
            for name in ("view", "view-mistake"):
                has_mistake = name == "view-mistake"
                browser_page = browser.new_page(
                    viewport={"width": WIDE, "height": HIGH}, color_scheme="dark" if has_mistake else "light"
                )
                browser_page.goto(address)
                browser_page.wait_for_selector("#picture svg")
                if has_mistake:
                    _type_mistake(browser_page)
                _keep(browser_page, name)
            browser_page = browser.new_page(viewport={"width": WIDE, "height": HIGH})
            browser_page.goto((DOCS / "gallery" / "index.html").as_uri() + "#lolcats")
            browser_page.wait_for_function("[...document.images].every(image => image.complete)")
            _keep(browser_page, "gallery")
            browser.close()
    finally:
        app.close()


def _type_mistake(browser_page: Any) -> None:
    """Type a mistake into the editor on the left."""
    text = shipped_specs()["lola"].read_text(encoding="utf-8").replace("keep: self_recall", "keep: self_recal")
    browser_page.locator("#spec .cm-content").click()
    browser_page.keyboard.press("Control+a")
    browser_page.keyboard.press("Delete")
    browser_page.keyboard.insert_text(text)
    browser_page.wait_for_selector("#status .wrong")
    browser_page.wait_for_function("document.querySelector('#status').innerText.includes('self_recall')")
    browser_page.evaluate("document.querySelector('.cm-scroller').scrollLeft = 0")


def _keep(browser_page: Any, name: str) -> None:
    browser_page.wait_for_timeout(500)
    image = Image.open(io.BytesIO(browser_page.screenshot())).convert("RGB")
    image.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(DOCS / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
