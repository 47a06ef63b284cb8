"""Replacements of a file: pipes, devices, links, folders, and unreadable files."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 30
"""Seconds after which a command that waits for a pipe, or reads a device, fails."""
UNREADABLE = "unreadable"


def _replace_by_link(path: Path, target: str) -> None:
    path.symlink_to(target)


IRREGULAR: dict[str, Any] = {
    "pipe": os.mkfifo,
    "device": lambda path: _replace_by_link(path, "/dev/zero"),
    "kernel": lambda path: _replace_by_link(path, "/proc/self/environ"),
    "folder": os.mkdir,
    "lost": lambda path: _replace_by_link(path, "nowhere"),
    "circle": lambda path: _replace_by_link(path, path.name),
}
"""Makes each kind of irregular path, by name."""
DAMAGE = (*IRREGULAR, UNREADABLE)


def damage(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a file by this kind. Root can read any file, so ``os.open`` is replaced to deny permission."""
    if kind != UNREADABLE:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        IRREGULAR[kind](path)
        return
    opened, refused = os.open, os.path.abspath(path)

    def refuse(name: Any, *arguments: Any, **options: Any) -> int:
        if not isinstance(name, int) and os.path.abspath(os.fspath(name)) == refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(name))
        return opened(name, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Fail if the block waits for a pipe or reads an endless device."""

    def stop(*_: object) -> None:
        raise AssertionError(f"still busy after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
