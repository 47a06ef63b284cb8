"""Every picture of a report's folder has its numbers, the page is self-contained, and files of others are not replaced."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.errors import InspectionError
from composer.inspection import folder
from composer.inspection.folder import PAGE, SUMMARY
from composer.inspection.pictures import draw_all
from tests.composer.inspection.conftest import TEACHER
from tests.composer.viewing.browser import NARROW, NOTHING_HANGS_OUT, opened

QUICK: dict[str, Any] = {"length": 96, "queries": 8}


@pytest.fixture(scope="module")
def report(lola: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reports") / "lola"
    composer.inspect(lola, teacher=TEACHER, out=out, **QUICK)
    return out


@pytest.mark.drawn
def test_every_picture_has_its_numbers(report: Path) -> None:
    summary = json.loads((report / SUMMARY).read_text())
    pictures = summary["pictures"]
    layers = [f"{kind}-{layer}" for kind in ("weights", "shares", "stands") for layer in (0, 1)]
    assert set(pictures) == {"answers", "likeness", "norms", "recall", "spectra", *layers}
    files = {path.name for path in report.iterdir() if not path.name.startswith(".")}
    assert files == {SUMMARY, PAGE, *(f"{name}.{kind}" for name in pictures for kind in ("png", "json"))}
    for name in pictures:
        assert json.loads((report / f"{name}.json").read_text())
        assert (report / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    weights = json.loads((report / "weights-1.json").read_text())
    assert len(weights["heads"][0]["weights"]["sparse"][0]) == len(weights["queries"])


@pytest.mark.drawn
def test_the_page_is_one_file(report: Path) -> None:
    page = (report / PAGE).read_text()
    assert page.count('src="data:image/png;base64,') == page.count("<img") == page.count("<figure")
    assert not re.findall(r'(?:src|href)="(?!data:|#)|url\(|@import|<script', page)
    assert "Inside lola" in page
    assert "<mark>" in page


@pytest.mark.drawn
def test_on_a_narrow_page_pictures_stay_large_and_scroll(report: Path) -> None:
    for wide, least in ((1280, 900), (NARROW, 700)):
        with opened((report / PAGE).as_uri(), wide=wide) as watched:
            watched.page.wait_for_function("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
            assert watched.page.evaluate(NOTHING_HANGS_OUT)
            assert watched.page.evaluate(f"[...document.images].every(one => one.width >= {least})")
            assert watched.words == []


def test_interrupted_reports_leave_no_damaged_files(lola: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while pictures are drawn leaves nothing. After one while they are written, --force may replace them."""
    out, whole, written = tmp_path / "out", folder.files.whole_file, list[str]()

    def stopped(findings: Any) -> Any:
        yield next(draw_all(findings))
        raise KeyboardInterrupt

    def third(path: Path, **options: Any) -> Any:
        written.append(path.name)
        if len(written) == 3:
            raise KeyboardInterrupt
        return whole(path, **options)

    for name, patched in (("draw_all", stopped), ("files.whole_file", third)):
        with monkeypatch.context() as now:
            now.setattr(f"composer.inspection.folder.{name}", patched)
            with pytest.raises(KeyboardInterrupt):
                composer.inspect(lola, alone=True, layers=[0], out=out, force=True, **QUICK)
        left = {path.name for path in out.iterdir() if not path.name.startswith(".")}
        assert left == ({SUMMARY, *written[:2]} if written else set())
    composer.inspect(lola, alone=True, layers=[0], out=out, force=True, **QUICK)
    assert (out / PAGE).is_file()


@pytest.mark.drawn
def test_reports_are_replaced_only_on_request(report: Path, lola: Path, tmp_path: Path) -> None:
    report = Path(shutil.copytree(report, tmp_path / "report"))  # the other tests read the fixture's
    with pytest.raises(InspectionError, match="has the results of an earlier inspection"):
        composer.inspect(lola, out=report, **QUICK)
    other = tmp_path / "mine"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(InspectionError, match="no inspection wrote it"):
        composer.inspect(lola, out=other, force=True, **QUICK)
    (tmp_path / "file").write_text("")
    with pytest.raises(InspectionError, match="is a file"):
        composer.inspect(lola, out=tmp_path / "file", **QUICK)
    (report / "notes.txt").write_text("mine")
    composer.inspect(lola, alone=True, layers=[0], out=report, force=True, **QUICK)
    assert (report / "notes.txt").read_text() == "mine"
    assert not (report / "weights-1.png").exists()
    assert not (report / "likeness.png").exists()
