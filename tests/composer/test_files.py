"""A file is there as a whole or not at all; why one could not be written is always said."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.errors import BenchError
from composer.files import failing_as, write_whole


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


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("the disk is gone"), "the disk is gone"),  # which has no strerror
        (OSError(), "OSError"),
    ],
)
def test_why_a_file_could_not_be_written_is_always_said(error: OSError, why: str) -> None:
    with pytest.raises(BenchError) as found, failing_as(BenchError, "{out} cannot be written to", "Choose another."):
        raise error
    assert str(found.value) == f"{{out}} cannot be written to: {why}. Choose another."
    assert found.value.__cause__ is error
    with pytest.raises(BenchError, match=f"^here: {why}$"), failing_as(BenchError, "here"):
        raise error


def test_what_is_no_matter_of_files_passes() -> None:
    with pytest.raises(KeyError, match="a"), failing_as(BenchError, "out cannot be written to"):
        raise KeyError("a")
