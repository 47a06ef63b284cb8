"""Whatever stdin, stdout, stderr, the disk and the environment are, a command ends with its own exit code and a message."""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from composer.cli.entry import main
from composer.cli.main import MISTAKE
from composer.commands import check
from tests.composer.cli.conftest import Compose
from tests.composer.programs import ROOT
from tests.composer.training.processes import ending, forked

TEACHER = ROOT / "examples" / "teacher"
QUICK: Mapping[str, tuple[object, ...]] = {
    "build": ("lolcats", "--from", TEACHER, "--dry-run"),
    "check": ("lolcats",),
    "diff": ("lolcats", "lola"),
    "draw": ("lolcats",),
    "explain": ("lolcats", "--from", TEACHER),
    "parts": ("--json",),
    "schema": (),
    "show": ("lolcats",),
    "tasks": (),
    "verify": ("STUDENT",),
    "distill": ("--help",),
}
"""Commands that end soon, with their arguments, and the help of one of the others: one function prints the help of all."""


def ended(
    folder: Path,
    *arguments: object,
    stdout: int | None = None,
    closed: tuple[int, ...] = (),
    before: Callable[[], Any] = lambda: None,
) -> tuple[int, str, str]:
    """Return the exit code and the output of a command in a fork. stdout: a descriptor; None for a file. closed: the numbers of
    closed streams. before: a function to call in the fork first.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, open(os.devnull) as nothing:

        def child() -> None:
            for number, descriptor in enumerate((nothing.fileno(), out.fileno() if stdout is None else stdout, errors.fileno())):
                os.dup2(descriptor, number)
            # As Python opens them at its start.
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
            for number in closed:
                os.close(number)
                setattr(sys, ("stdin", "stdout", "stderr")[number], None)
            os.chdir(folder)
            sys.argv = ["compose", *map(str, arguments)]
            before()
            main()

        code = ending(forked(child))
        out.seek(0)
        errors.seek(0)
        return code, out.read().decode(), errors.read().decode()


@contextmanager
def without_reader() -> Iterator[int]:
    """Return a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@pytest.mark.parametrize("command", QUICK)
def test_every_command_on_any_streams(command: str, tmp_path: Path, student: Path) -> None:
    arguments = [command, *(student if argument == "STUDENT" else argument for argument in QUICK[command])]
    for closed in ((0,), (1,), (2,), (0, 1, 2)) if command == "show" else ((0, 1, 2),):
        code, _, stderr = ended(tmp_path, *arguments, closed=closed)
        assert (code, "Traceback" in stderr) == (0, False), f"closed: {closed}: {stderr}"
    with without_reader() as pipe:
        code, _, stderr = ended(tmp_path, *arguments, stdout=pipe)
        assert (code, "Traceback" in stderr, "pipe" in stderr) == (0, False, False), stderr
    with open("/dev/full", "w") as full:
        code, _, stderr = ended(tmp_path, *arguments, stdout=full.fileno())
        assert (code, "Traceback" in stderr) == (MISTAKE, False), stderr
        assert "stdout cannot be written: No space left on device" in stderr


def test_mismatches_exit_with_code_1_on_closed_streams(tmp_path: Path, student: Path) -> None:
    """Exit code 1 of verify means a mismatch, even if nobody reads the output."""
    changed = tmp_path / "changed"
    changed.mkdir()
    for path in student.iterdir():
        (changed / path.name).write_bytes(path.read_bytes())
    (changed / "README.md").write_text("another")
    with without_reader() as pipe:
        assert ended(tmp_path, "verify", changed, stdout=pipe)[0] == ended(tmp_path, "verify", changed)[0]
        weights = next(changed.glob("*.safetensors"))
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
        assert ended(tmp_path, "verify", changed, stdout=pipe)[0] == 1


def test_mistakes_exit_with_code_2_on_closed_streams(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        code, _, _ = ended(tmp_path, "check", "nowhere.yaml", before=lambda: os.dup2(full.fileno(), 2))
    assert code == MISTAKE


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    code, _, _ = ended(tmp_path, "draw", "lolcats", "-o", "a.svg", closed=(0, 1, 2))
    assert code == 0
    assert (tmp_path / "a.svg").read_text().endswith("</svg>\n")


def test_commands_in_a_removed_folder_run_or_report_it(tmp_path: Path) -> None:
    """In a removed folder, commands that need no folder run, and others report it."""

    def remove() -> None:
        os.mkdir("gone")
        os.chdir("gone")
        os.rmdir("../gone")

    assert ended(tmp_path, "show", "lolcats", before=remove)[0] == 0
    assert ended(tmp_path, "check", "lolcats", before=remove)[0] == 0
    code, _, stderr = ended(tmp_path, "build", "lolcats", "--from", TEACHER, "-o", "x", before=remove)
    assert (code, "Traceback" in stderr) == (MISTAKE, False)
    assert "No such file or directory" in stderr


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """A limit on file sizes stands for a full disk, since the same call fails."""
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # noqa: E731
    for arguments in (
        ("new", "mine"),
        ("draw", "lolcats", "-o", "a.svg"),
        ("show", "ablations/lawcat-rope", "--expand", "-o", "s"),
    ):
        code, _, stderr = ended(tmp_path, *arguments, before=limit)
        assert code == MISTAKE
        assert "cannot be written: File too large" in stderr
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device", "/x/y"), "/x/y: No space left on device\n"),
        (PermissionError(13, "Permission denied", b"z"), "z: Permission denied\n"),
        (
            FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"),
            "No usable temporary directory found in ['/tmp']\n",
        ),
    ],
)
def test_errors_of_the_machine_are_messages(
    compose: Compose, monkeypatch: pytest.MonkeyPatch, error: OSError, message: str
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(check, "variants_of", broken)
    result = compose("check", "lolcats")
    assert (result.exit_code, result.stderr) == (MISTAKE, message)


ENVIRONMENTS: list[dict[str, str | None]] = [
    {"COLUMNS": "", "HOME": None},
    {"COLUMNS": "wide", "HOME": ""},
    {"COLUMNS": "0", "HOME": "/nowhere"},
    {"COLUMNS": "-5", "HOME": "/\udcff"},
    {"COLUMNS": "1", "TMPDIR": "/nowhere"},
    {"COLUMNS": "9" * 12, "TERM": None},
    {"LANG": "no_SUCH.encoding", "LC_ALL": "no_SUCH.encoding"},
]
"""Different code reads the variables of one environment, so each shows its own fault."""


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=ascii)
def test_commands_run_in_any_environment(tmp_path: Path, environment: dict[str, str | None]) -> None:
    def changed() -> None:
        for name, value in environment.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)

    for arguments in (("--help",), ("tasks",), ("explain", "lolcats", "--from", TEACHER)):
        code, stdout, stderr = ended(tmp_path, *arguments, before=changed)
        assert (code, "Traceback" in stderr) == (0, False), stderr
        assert stdout
