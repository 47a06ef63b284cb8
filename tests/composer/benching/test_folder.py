"""A folder is checked for other files before anything is timed, and receives the report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from composer.benching.report import BenchReport
from composer.benching.runner import BENCH, STORE, write_report
from composer.errors import BenchError
from composer.runs.store import TABLE
from tests.composer.benching.made_up import report


def test_the_folder_contains_report_tables_and_pictures(tmp_path: Path) -> None:
    write_report(report(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [BENCH, "decode.png", "prefill.png", TABLE]
    assert BenchReport.model_validate_json((tmp_path / BENCH).read_text()) == report()
    assert (tmp_path / TABLE).read_text() == report().view().markdown()


def test_pictures_of_an_earlier_bench_are_removed(tmp_path: Path) -> None:
    write_report(report(), tmp_path)
    whole = report()
    write_report(whole.model_copy(update={"cells": tuple(cell for cell in whole.cells if cell.kind == "decode")}), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [BENCH, "decode.png", TABLE]


def take(folder: Path, *, force: bool) -> None:
    with STORE.hold(folder, force=force):
        assert folder.is_dir()


def test_new_and_empty_folders_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden").touch()
    for folder in (tmp_path / "empty", tmp_path / "deep" / "new"):
        take(folder, force=False)
        assert folder.is_dir()
    write_report(report(), tmp_path / "empty")
    take(tmp_path / "empty", force=True)
    assert (tmp_path / "empty" / BENCH).is_file(), "nothing goes before there is something to take its place"


@pytest.mark.parametrize("force", [False, True])
def test_folders_with_other_files_are_refused(tmp_path: Path, force: bool) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(BenchError, match=rf"holds no {BENCH}, so no bench wrote it"):
        take(tmp_path, force=force)
    with pytest.raises(BenchError, match=r"notes\.txt is a file"):
        take(tmp_path / "notes.txt", force=force)
    with pytest.raises(BenchError, match=r"notes\.txt/deeper cannot be written to: Not a directory"):
        take(tmp_path / "notes.txt" / "deeper", force=force)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_existing_benches_are_not_extended(tmp_path: Path) -> None:
    write_report(report(), tmp_path)
    with pytest.raises(BenchError, match="has the results of an earlier bench. Choose another --out, or replace it: --force"):
        take(tmp_path, force=False)


def test_a_second_bench_of_a_folder_is_refused(tmp_path: Path) -> None:
    """A second bench of one folder is refused, with and without --force."""
    with STORE.hold(tmp_path, force=False):
        for force in (False, True):
            with pytest.raises(BenchError, match="Another bench writes to .*Wait until it has ended, or choose another --out"):
                take(tmp_path, force=force)
    take(tmp_path, force=False)


def test_unwritable_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(BenchError, match="cannot be written to: Read-only file system. Choose another --out"):
        take(tmp_path / "new", force=False)
