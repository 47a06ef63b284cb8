"""A file is written completely or not at all, and a failure gives its reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from composer.errors import BenchError
from composer.system.files import (
    backup_path,
    failing_as,
    move_folder,
    read_text_file,
    recover,
    sha256,
    unique_partial_of,
    write_whole,
)


def test_writing_replaces_files_and_creates_folders(tmp_path: Path) -> None:
    for text in ("one", "another"):
        write_whole(tmp_path / "new" / "file.txt", text)
        assert (tmp_path / "new" / "file.txt").read_text() == text
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file.txt"]


def test_failed_writes_keep_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "half \ud800")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def folder_with(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def test_a_folder_moves_to_its_place(tmp_path: Path) -> None:
    place = tmp_path / "place"
    assert move_folder(folder_with(tmp_path / ".place.partial", "one"), place) is None
    replaced = move_folder(folder_with(tmp_path / ".place.partial", "another"), place)
    assert replaced is not None
    assert [(path / "file").read_text() for path in (place, replaced)] == ["another", "one"]
    assert set(tmp_path.iterdir()) == {place, replaced}


def test_failed_folder_moves_keep_the_earlier_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, partial = folder_with(tmp_path / "place", "one"), folder_with(tmp_path / ".place.partial", "another")
    rename = Path.rename

    def fails(path: Path, target: Path) -> Path:
        if path == partial:
            raise OSError("no")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(OSError, match="no"):
        move_folder(partial, place)
    with pytest.raises(OSError, match="no"):
        move_folder(partial, place, replace=False)
    assert [(path / "file").read_text() for path in (place, partial)] == ["one", "another"]
    assert set(tmp_path.iterdir()) == {place, partial}


@pytest.mark.parametrize("place", ["free", "empty", "taken"])
def test_a_folder_set_aside_by_a_killed_process_returns_to_its_place(tmp_path: Path, place: str) -> None:
    """It does not return if another folder exists there. Folders with other names stay."""
    folder = tmp_path / "a[1]"
    aside = folder_with(backup_path(unique_partial_of(folder)), "old")
    folder_with(unique_partial_of(folder), "half")
    other = folder_with(tmp_path / ".a[1].0123.replaced", "other")
    if place == "taken":
        folder_with(folder, "new")
    if place == "empty":
        folder.mkdir()
    recover(folder)
    assert (folder / "file").read_text() == ("new" if place == "taken" else "old")
    assert set(tmp_path.iterdir()) == {folder, other}
    assert not aside.exists()


def test_files_created_meanwhile_may_be_kept(tmp_path: Path) -> None:
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
def test_write_errors_always_have_a_reason(error: OSError, why: str) -> None:
    with pytest.raises(BenchError) as caught, failing_as(BenchError, "{out} cannot be written to", "Choose another."):
        raise error
    assert str(caught.value) == f"{{out}} cannot be written to: {why}. Choose another."
    assert caught.value.__cause__ is error
    with pytest.raises(BenchError, match=f"^here: {why}$"), failing_as(BenchError, "here"):
        raise error


def test_other_errors_are_raised() -> None:
    with pytest.raises(KeyError, match="a"), failing_as(BenchError, "out cannot be written to"):
        raise KeyError("a")


def test_a_text_is_read_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\0")
    assert read_text_file(path, BenchError, 99) == "one\ntwo\nthree\0"
    for most, content, problem in (
        (3, b"four", "cannot be read as text: larger than 3 bytes"),
        (9, b"caf\xe9", "cannot be read as text: unexpected end of data at byte 3; expected UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(BenchError, match=problem):
            read_text_file(path, BenchError, most)


def test_pipes_devices_and_folders_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "zero", tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BenchError, match="the text cannot be read as text: (no regular file|a folder|No such file)"):
            read_text_file(path, BenchError, 99, "the text")
        with pytest.raises(OSError, match="no regular file|a folder|No such file"):
            sha256(path)
