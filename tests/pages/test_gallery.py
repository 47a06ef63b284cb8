"""The committed gallery equals the generated one and is complete."""

from __future__ import annotations

import statistics
from html.parser import HTMLParser
from pathlib import Path

from composer.spec.shipped import shipped_specs
from evidence.kept import read_runs
from pages.gallery import GALLERY, render_files

ADVICE = "docs/gallery is not that of the specs as they are: write it anew with `make gallery`"
MOST = 18 * 2**10
"""Bytes of the gallery for each spec, as a mean."""


class _Read(HTMLParser):
    """A parser of a page's references and the text of its sections."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.links: list[str] = []
        self.sections: dict[str, str] = {}
        self.tags: list[str] = []
        self._section = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append(tag)
        if attributes.get("src"):
            self.sources.append(attributes["src"] or "")
        if attributes.get("href"):
            self.links.append(attributes["href"] or "")
        if tag == "section":
            self._section = attributes["id"] or ""
            self.sections[self._section] = ""

    def handle_data(self, data: str) -> None:
        if self._section:
            self.sections[self._section] += data


def test_the_gallery_is_up_to_date() -> None:
    files = render_files()
    gallery_files = {path.name: path.read_text(encoding="utf-8") for path in GALLERY.iterdir()}
    stale = sorted(name for name in {*files, *gallery_files} if files.get(name) != gallery_files.get(name))
    assert not stale, f"{ADVICE} ({', '.join(stale[:3])})"
    assert sum(len(text.encode()) for text in files.values()) < MOST * len(shipped_specs())


def test_each_spec_has_its_picture_text_and_figures() -> None:
    read = _Read()
    read.feed((GALLERY / "index.html").read_text(encoding="utf-8"))
    assert set(read.sections) == {name.replace("/", "-") for name in shipped_specs()}
    for name, path in shipped_specs().items():
        text = read.sections[name.replace("/", "-")]
        assert path.read_text(encoding="utf-8") in text
        assert "memory" in text
    assert "S_t = D_t S_{t-1} + φ(k_t)ᵀ v_t" in read.sections["lawcat"]
    scores = [run.figures["passkey 2,048"] for run in read_runs() if (run.experiment, run.variant) == ("students", "lawcat")]
    assert f"{statistics.fmean(scores):.2f} ± {statistics.stdev(scores):.2f}" in read.sections["lawcat"]
    assert "students/lolcats" in read.sections["lolcats"]
    assert "measured" not in read.sections["gla"]


def test_the_page_loads_nothing_from_other_sites() -> None:
    read = _Read()
    read.feed((GALLERY / "index.html").read_text(encoding="utf-8"))
    assert all((GALLERY / source).is_file() for source in read.sources)
    assert len(read.sources) == len(list(GALLERY.glob("*.svg")))
    assert "script" not in read.tags
    for link in read.links:
        assert link == "data:," or link.removeprefix("#") in read.sections or (GALLERY / link).is_file(), link
    for path in GALLERY.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "url(" not in text
        assert text.count("http") == 1, "but for the name of SVG's name space"


def test_the_short_page_shows_every_picture() -> None:
    text = (GALLERY / "README.md").read_text(encoding="utf-8")
    assert all(f"]({path.name})" in text for path in GALLERY.glob("*.svg"))
    assert all((Path(GALLERY) / link).is_file() for link in [part.partition(")")[0] for part in text.split("](")[1:]])
