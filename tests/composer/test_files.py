"""A file is there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.files import write_whole


def test_it_replaces_what_stood_there_and_makes_its_folder(tmp_path: Path) -> None:
    for text in ("one", "another"):
        write_whole(tmp_path / "new" / "file.txt", text)
        assert (tmp_path / "new" / "file.txt").read_text() == text
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.txt"]


def test_what_fails_leaves_what_stood_there(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "half \ud800")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_has_come_to_stand_there_may_be_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(FileExistsError):
        write_whole(path, "after", replace=False)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
