"""A file is linked where that can be, cloned or copied where it cannot, and every way brings the same bytes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from composer.weights import place as place_module
from composer.weights.place import copy_file, place


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3_000_001))
    return path


def refuse(code: int):
    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


def test_a_link_is_the_file_itself(file: Path, tmp_path: Path):
    assert place(file, tmp_path / "target", copy=False, moved=lambda _: None) == "linked"
    assert os.path.samefile(file, tmp_path / "target")


def test_a_symbolic_link_is_followed(file: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(file)
    assert place(tmp_path / "link", tmp_path / "target", copy=False, moved=lambda _: None) == "linked"
    assert not (tmp_path / "target").is_symlink()
    assert os.path.samefile(file, tmp_path / "target")


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_where_no_link_can_be_the_bytes_come_another_way(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    monkeypatch.setattr(os, "link", refuse(code))
    assert place(file, tmp_path / "target", copy=False, moved=lambda _: None) in ("cloned", "copied")
    assert (tmp_path / "target").read_bytes() == file.read_bytes()
    assert not os.path.samefile(file, tmp_path / "target")


@pytest.mark.parametrize("copy", [False, True])
def test_every_way_keeps_the_time_stamp(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: bool):
    """It identifies files that nobody has hashed: a model that is built again from the same source is the same."""
    os.utime(file, ns=(1_000_000_000, 1_234_567_890))
    monkeypatch.setattr(os, "link", refuse(errno.EXDEV))
    place(file, tmp_path / "target", copy=copy, moved=lambda _: None)
    assert (tmp_path / "target").stat().st_mtime_ns == 1_234_567_890


def test_a_clone_is_taken_where_the_file_system_makes_one(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(os, "link", refuse(errno.EXDEV))
    monkeypatch.setattr("fcntl.ioctl", lambda *arguments: asked.append(arguments[1]))
    assert place(file, tmp_path / "target", copy=False, moved=lambda _: None) == "cloned"
    assert asked == [0x40049409]


def test_a_real_failure_of_a_link_is_not_hidden(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "link", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        place(file, tmp_path / "target", copy=False, moved=lambda _: None)


@pytest.mark.parametrize("code", [None, errno.EXDEV, errno.EINVAL, errno.ENOSYS])
def test_a_copy_has_all_bytes_and_counts_them(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None):
    if code is not None:
        monkeypatch.setattr(os, "copy_file_range", refuse(code), raising=False)
    monkeypatch.setattr(place_module, "_COPY_BLOCK", 1_000_000)
    counted: list[int] = []
    assert place(file, tmp_path / "target", copy=True, moved=counted.append) == "copied"
    assert (tmp_path / "target").read_bytes() == file.read_bytes()
    assert sum(counted) == 3_000_001
    assert len(counted) >= 4
    assert (tmp_path / "target").stat().st_nlink == 1


def test_a_source_that_shrinks_is_an_error_and_no_endless_loop(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(place_module, "_copied", lambda *_: 0)
    with pytest.raises(OSError, match="shrank"):
        copy_file(file, tmp_path / "target")
