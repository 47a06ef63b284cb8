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

    found = shutil.which(CHROMIUM)
    if found is None:
        raise SystemExit("there is no Chromium here, which the pages are shown in")
    made = page()
    address = launch(made)
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
            for name in ("view", "view-mistake"):
                mistaken = name == "view-mistake"
                shown = browser.new_page(viewport={"width": WIDE, "height": HIGH}, color_scheme="dark" if mistaken else "light")
                shown.goto(address)
                shown.wait_for_selector("#picture svg")
                if mistaken:
                    _mistaken(shown)
                _keep(shown, name)
            shown = browser.new_page(viewport={"width": WIDE, "height": HIGH})
            shown.goto((DOCS / "gallery" / "index.html").as_uri() + "#lolcats")
            shown.wait_for_function("[...document.images].every(one => one.complete)")
            _keep(shown, "gallery")
            browser.close()
    finally:
        made.close()


def _mistaken(shown: Any) -> None:
    """A mistake typed on the left."""
    text = shipped_specs()["lola"].read_text(encoding="utf-8").replace("keep: self_recall", "keep: self_recal")
    shown.locator("#spec .cm-content").click()
    shown.keyboard.press("Control+a")
    shown.keyboard.press("Delete")
    shown.keyboard.insert_text(text)
    shown.wait_for_selector("#status .wrong")
    shown.wait_for_function("document.querySelector('#status').innerText.includes('self_recall')")
    shown.evaluate("document.querySelector('.cm-scroller').scrollLeft = 0")


def _keep(shown: Any, name: str) -> None:
    shown.wait_for_timeout(500)
    image = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
    image.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(DOCS / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
