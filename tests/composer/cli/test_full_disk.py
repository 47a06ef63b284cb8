"""On a full disk each command that writes ends in one sentence and exit code 2, and leaves no half-written file. A run folder,
which a later call resumes, may remain.

A limit on the size of files stands in for the disk.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.composer.cli.conftest import Compose

COMMANDS = {
    "read": "read STUDENT --text TEXT -o out",
    "generate": "generate STUDENT --prompt once --max-new-tokens 2 --state-out out",
    "logits": "logits TEACHER --data TEXT,limit=4 --sequence 16 -o out",
    "build": "build lolcats --from TEACHER -o out",
    "draw": "draw lolcats -o out.svg",
    "new": "new out.yaml",
}
BYTES = 300
RUNS = {"logits"}
"""Commands that keep a run folder."""


@contextmanager
def full_disk() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("command", COMMANDS)
def test_full_disks_are_reported(compose: Compose, teacher: Path, student: Path, tmp_path: Path, command: str) -> None:
    text = tmp_path / "book.txt"
    text.write_text("once upon a time there was a cat and it slept " * 40)
    names = {"TEACHER": str(teacher), "STUDENT": str(student), "TEXT": str(text)}
    words = COMMANDS[command]
    for name, path in names.items():
        words = words.replace(name, path)
    with full_disk():
        result = compose(*words.split())
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    message = result.stderr.strip().splitlines()[-1]
    assert os.strerror(27) in message or "No space left" in message
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file() and path != text}
    assert not {name for name in left if not name.endswith((".lock", ".log")) and command not in RUNS}, left
    assert not {name for name in left if name.endswith((".partial", ".safetensors", ".jsonl"))}, left
