"""A folder is taken only where nothing else stands, before anything is timed, and what is written is the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.benching import standing
from composer.benching.report import Report
from composer.benching.standing import BENCH, TABLE, prepare, write_report
from composer.benching.table import markdown
from composer.errors import BenchError
from tests.composer.benching.made_up import report


def test_the_files(tmp_path: Path) -> None:
    write_report(report(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [BENCH, "decode.png", "prefill.png", TABLE]
    assert Report.model_validate_json((tmp_path / BENCH).read_text()) == report()
    assert (tmp_path / TABLE).read_text() == markdown(report())


def test_pictures_of_another_bench_go(tmp_path: Path) -> None:
    write_report(report(), tmp_path)
    whole = report()
    write_report(whole.model_copy(update={"cells": tuple(cell for cell in whole.cells if cell.kind == "decode")}), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [BENCH, "decode.png", TABLE]


def test_where_it_may_stand(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden").touch()
    for folder in (tmp_path / "empty", tmp_path / "deep" / "new"):
        prepare(folder, force=False)
        assert folder.is_dir()
    write_report(report(), tmp_path / "empty")
    prepare(tmp_path / "empty", force=True)
    assert (tmp_path / "empty" / BENCH).is_file(), "nothing goes before there is something to take its place"


@pytest.mark.parametrize("force", [False, True])
def test_where_something_else_stands(tmp_path: Path, force: bool) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BenchError, match=rf"holds no {BENCH}, so no bench wrote it"):
        prepare(tmp_path, force=force)
    with pytest.raises(BenchError, match=r"notes\.txt is a file"):
        prepare(tmp_path / "notes.txt", force=force)
    with pytest.raises(BenchError, match=r"notes\.txt/deeper cannot be written to: Not a directory"):
        prepare(tmp_path / "notes.txt" / "deeper", force=force)


def test_a_bench_is_not_added_to(tmp_path: Path) -> None:
    write_report(report(), tmp_path)
    with pytest.raises(BenchError, match="holds a bench, and times are not added to.*--force"):
        prepare(tmp_path, force=False)


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(standing.tempfile, "TemporaryFile", full)
    with pytest.raises(BenchError, match="cannot be written to: Read-only file system. Choose another --out"):
        prepare(tmp_path / "new", force=False)
