"""In a real browser, a mistake shows its line, a size changes the state, and no other host is contacted."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer.commands import view
from composer.drawing.picture import TYPICAL
from composer.errors import ComposerError
from composer.reporting.terminal import say
from composer.spec.shipped import shipped_specs
from composer.viewing import page as page_module
from composer.viewing.page import launch, made_with, page
from composer.viewing.reading import EditorContext
from tests.composer.cli.conftest import Compose, compose  # noqa: F401
from tests.composer.viewing.browser import NARROW, NOTHING_HANGS_OUT, Watched, gradio_or_skip, opened

ROOT = Path(__file__).parents[3]
SPACE, GALLERY = ROOT / "examples" / "space", ROOT / "docs" / "gallery"
OUTSIDE = """() => [...document.querySelectorAll('.cd-box')].flatMap(box => {
    const shape = box.querySelector('.cd-shape').getBBox();
    const beyond = own => own.x < shape.x || own.x + own.width > shape.x + shape.width
        || own.y < shape.y - 1 || own.y + own.height > shape.y + shape.height + 1;
    return [...box.querySelectorAll('text')].filter(text => beyond(text.getBBox())).map(text => text.textContent);
})"""
"""Texts that leave their boxes, as the browser lays them out."""
LOLCATS = shipped_specs()["lolcats"].read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the served page."""
    gradio_or_skip()
    made = page(None, EditorContext(base=TYPICAL))
    yield launch(made)
    made.close()


def typed(watched: Watched, text: str) -> None:
    """Replace the editor's text as by typing."""
    watched.page.locator("#spec .cm-content").click()
    watched.page.keyboard.press("Control+a")
    watched.page.keyboard.press("Delete")
    watched.page.keyboard.insert_text(text)


def states(watched: Watched) -> list[str]:
    """Return the bytes shown at the memories and in total."""
    return watched.page.locator("#picture .cd-state").all_text_contents()


def until(watched: Watched, condition: str) -> None:
    watched.page.wait_for_function(f"() => {condition}")


def test_a_mistake_shows_its_line_and_a_size_changes_the_state(address: str) -> None:
    with opened(address) as watched:
        watched.page.wait_for_selector("#picture svg")
        first = states(watched)
        assert "state 256.5 KiB" in first
        typed(watched, LOLCATS.replace("feature_map:", "feature_mop:"))
        watched.page.wait_for_selector("#status .wrong")
        line = 1 + LOLCATS[: LOLCATS.index("feature_map:")].count("\n")
        until(watched, f"document.querySelector('#status').innerText.includes('line {line} ')")
        assert 'did you mean "feature_map"?' in watched.page.locator("#status").inner_text()
        typed(watched, LOLCATS.replace("size: 64", "size: 128"))
        watched.page.wait_for_selector("#status .right")
        until(watched, "document.querySelector('#picture').textContent.includes('size 128')")
        assert "state 513.0 KiB" in states(watched)
        assert states(watched)[0] != first[0]
        assert watched.words == []
        assert watched.hosts == {re.split("/+", address)[1]}


def test_typed_sizes_and_shipped_specs_show_at_once(address: str) -> None:
    with opened(address, dark=True) as watched:
        watched.page.wait_for_selector("#picture svg")
        watched.page.locator("#layers input").fill("4")
        until(watched, "document.querySelector('#picture').textContent.includes('4 layers · 32 query')")
        watched.page.locator("#key_heads input").fill("5")
        until(watched, "document.querySelector('#status').innerText.includes('cannot share 5 key heads evenly')")
        watched.page.locator("#key_heads input").fill("8")
        watched.page.wait_for_selector("#status .right")
        watched.page.locator("#shipped input").click()
        watched.page.get_by_role("option", name="lawcat", exact=True).click()
        until(watched, "document.querySelector('#picture').textContent.includes('LAWCAT')")
        watched.page.get_by_role("tab", name="Costs").click()
        until(watched, "document.querySelector('#costs').innerText.includes('compression')")
        watched.page.get_by_role("tab", name="Program").click()
        until(watched, "document.querySelector('#program').innerText.includes('def head')")
        assert watched.words == []


def test_the_gallery_opens_without_errors() -> None:
    for wide, dark in ((1280, False), (1280, True), (NARROW, False)):
        with opened((GALLERY / "index.html").as_uri(), wide=wide, dark=dark) as watched:
            until(watched, "[...document.images].every(one => one.complete && one.naturalWidth > 0)")
            assert watched.page.locator("img").count() == len(list(GALLERY.glob("*.svg")))
            assert watched.page.evaluate(NOTHING_HANGS_OUT)
            assert watched.page.evaluate("[...document.images].every(one => one.width === Number(one.getAttribute('width')))")
            watched.page.locator("details").first.locator("summary").click()
            assert "compose: 1" in watched.page.locator("details pre").first.inner_text()
            assert watched.words == []
            assert watched.hosts == {""}


def test_the_page_on_a_narrow_screen_scrolls_its_picture_alone(address: str) -> None:
    with opened(address, wide=NARROW) as watched:
        watched.page.wait_for_selector("#picture svg")
        assert watched.page.evaluate(NOTHING_HANGS_OUT)
        picture, frame = watched.page.locator("#picture svg"), watched.page.locator("#picture")
        assert picture.bounding_box()["width"] == float(picture.get_attribute("width")) > NARROW
        assert frame.bounding_box()["width"] < NARROW
        frame.evaluate("one => one.scrollLeft = 10000")
        right = picture.bounding_box()["x"] + picture.bounding_box()["width"]
        assert right <= frame.bounding_box()["x"] + frame.bounding_box()["width"], "its right side can be scrolled to"
        watched.page.get_by_role("tab", name="Costs").click()
        watched.page.wait_for_selector("#costs td")
        assert watched.page.locator("#costs").bounding_box()["width"] < NARROW
        assert watched.page.locator("#costs").evaluate("one => getComputedStyle(one).overflowX") == "auto"


def test_text_fits_its_box_in_the_browsers_font() -> None:
    """Text also fits if the browser has another font than DejaVu Sans."""
    with opened("about:blank") as watched:
        for name in ("lola", "mixed-heads", "latte-macchiato"):
            watched.page.goto((GALLERY / f"{name}.svg").as_uri())
            assert watched.page.evaluate("() => document.querySelectorAll('.cd-box text').length") > 10
            assert watched.page.evaluate(OUTSIDE) == []
            assert watched.words == []


def test_the_hugging_face_space_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The space's own `app.py` is launched as the Hub launches it."""
    gradio_or_skip()
    files = {path.name: path.read_text(encoding="utf-8") for path in SPACE.iterdir() if path.is_file()}
    assert set(files) == {"README.md", "app.py", "requirements.txt"}
    assert "app_file: app.py" in files["README.md"]
    assert "sdk: gradio" in files["README.md"]
    monkeypatch.chdir(SPACE)
    app = runpy.run_path("app.py", run_name="app")
    app["demo"].launch(**app["look"](), prevent_thread_lock=True, quiet=True)
    try:
        with opened(app["demo"].local_url) as watched:
            watched.page.wait_for_selector("#picture svg")
            typed(watched, "compose: 1\nname: mine\nextends: /etc/passwd\n")
            until(watched, "document.querySelector('#status').innerText.includes('extends shipped ones alone')")
            assert watched.words == []
    finally:
        app["demo"].close()


def test_a_missing_gradio_gives_the_install_command(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(page_module, "version_of", lambda name: None)
    result = compose("view")
    assert result.exit_code == 2
    assert "pip install '.[view]'" in result.stderr
    monkeypatch.setattr(page_module, "version_of", lambda name: "3.18.0")
    with pytest.raises(ComposerError, match=r"Gradio 6 or later, and 3\.18\.0 is installed"):
        made_with()


def test_the_command_refuses_invalid_arguments(compose: Compose) -> None:  # noqa: F811
    Path("latin.yaml").write_bytes(b"compose: 1\nname: \xff\n")
    for arguments, expected in (
        (["nothing"], 'no file "nothing" here'),
        (["latin.yaml"], "not UTF-8"),
        (["lolcats", "--from", "nowhere"], "nowhere"),
    ):
        result = compose("view", *arguments)
        assert result.exit_code == 2, arguments
        assert expected in result.stderr


def test_the_command_opens_a_file_with_the_sizes_of_its_source(
    compose: Compose,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(view, "page", lambda text, place: seen.append((text, place)) or _Made())
    monkeypatch.setattr(view, "launch", lambda made, **options: seen.append(options) or "http://here/")
    Path("mine.yaml").write_text(LOLCATS)
    monkeypatch.setattr(view.webbrowser, "open_new_tab", lambda address: say(f"opened {address}"))
    result = compose("view", "mine.yaml", "--from", ROOT / "examples" / "teacher", "--port", "7999")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == ["http://here/  (Ctrl-C ends it)", "opened http://here/"], "the address is printed first"
    (text, place), options = seen
    assert text == LOLCATS
    assert (place.called, place.folder, place.base.hidden_size) == ("mine.yaml", Path(), 128)
    assert options == {"port": 7999, "open_browser": False}


class _Made:
    def block_thread(self) -> None:
        """Do not serve."""
