"""An output appears complete or not at all, whatever fails, and never damages the source or other files. Files of the source are
linked if possible, and copied otherwise.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from composer.building import folder as build_module
from composer.errors import BuildError
from composer.system.files import backup_path, sha256, unique_partial_of
from composer.weights import output, stream
from composer.weights.output import check_output, copy_file, link_or_copy, whole_or_nothing
from composer.weights.sources import open_model
from composer.weights.verify import verify
from tests.checkpoints import fingerprint, llama
from tests.composer.weights.students import LAWCAT, LOLCATS, build, resolved_for


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return llama(tmp_path / "source", sharded=True)


class Failing:
    """A wrapper of a function that raises at the call of a given number."""

    def __init__(self, function: Callable, number: int, error: BaseException) -> None:
        self.function, self.number, self.error, self.calls = function, number, error, 0

    def called(self, *arguments: object, **options: object) -> object:
        self.calls += 1
        if self.calls == self.number:
            raise self.error
        return self.function(*arguments, **options)


class FailingToWrite(Failing):
    """The same for opening files, where only files opened to write count."""

    def called(self, *arguments: object, **options: object) -> object:
        return (
            super().called(*arguments, **options) if "xb" in arguments or "x" in arguments else self.function(*arguments, **options)
        )


def _function(call: Callable) -> Callable:
    """Return a plain function, which replaces methods, too, unlike a bound method."""

    def function(*arguments: object, **options: object) -> object:
        return call(*arguments, **options)

    return function


STEPS = {
    "link": (os, "link"),
    "copy": (output, "blocks"),
    "open": (Path, "open"),
    "fsync": (os, "fsync"),
    "fresh": (build_module, "write_shard"),
    "index and config": (build_module, "write_json"),
    "card": (build_module, "write_text"),
    "check": (build_module, "problems_of"),
    "rename": (Path, "rename"),
}
ERRORS = {
    "no space": (lambda: OSError(errno.ENOSPC, "No space left on device"), BuildError, "No space left for"),
    "denied": (lambda: PermissionError(errno.EACCES, "Permission denied", "there"), BuildError, "Not allowed to write there"),
    "broken": (lambda: OSError(errno.EIO, "Input/output error"), BuildError, "Input/output error"),
    "Ctrl-C": (KeyboardInterrupt, KeyboardInterrupt, ""),
}


FAILURES = [
    (step, error, replaced)
    for replaced, errors in ((False, ERRORS), (True, ("no space", "Ctrl-C")))
    for step, error in product(STEPS, errors)
    if step != "link" or error == "Ctrl-C"  # a link that fails becomes a copy
]
"""A new output with every error; one that is replaced with an OSError and with an exception that is none."""


@pytest.mark.parametrize(("step", "error", "replaced"), FAILURES)
def test_failures_at_any_step_leave_no_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: str, replaced: bool
):
    make, raised, message = ERRORS[error]
    out, (module, name) = tmp_path / "outputs" / "student", STEPS[step]
    if replaced:
        build(source, out, LOLCATS)
    resolved, opened = resolved_for(source, LAWCAT), open_model(source)
    before, old = fingerprint(source), fingerprint(out)
    failures = 0
    for number in (1, 2, 4, 10_000):
        with monkeypatch.context() as patch:
            failing = (FailingToWrite if step == "open" else Failing)(getattr(module, name), number, make())
            patch.setattr(module, name, _function(failing.called))
            try:
                build_module.build_folder(resolved, opened, out, spec_document=LAWCAT, force=replaced, copy=step == "copy")
                caught = None
            except raised as error_raised:
                caught = error_raised
        if caught is None:
            assert failing.calls < number
            break
        failures += 1
        assert message in str(caught)
        assert fingerprint(source) == before
        assert fingerprint(out) == old
        assert sorted(os.listdir(tmp_path)) == (["outputs", "source"] if replaced else ["source"])
        assert not replaced or os.listdir(out.parent) == ["student"]
    assert failures
    assert verify(out).ok
    assert os.listdir(out.parent) == ["student"]
    assert fingerprint(source) == before


def test_force_replaces_the_whole_of_the_old_output(source: Path, tmp_path: Path):
    out = tmp_path / "out"
    build(source, out, LOLCATS)
    left_over = next(path.name for path in out.iterdir() if path.name.startswith("source-"))
    with pytest.raises(BuildError, match=r"exists already\. Use --force"):
        build(source, out, LAWCAT)
    before = (out / left_over).stat().st_ctime_ns, (out / "fresh.safetensors").stat().st_ino
    build(source, out, LAWCAT, force=True)
    assert before != ((out / left_over).stat().st_ctime_ns, (out / "fresh.safetensors").stat().st_ino)
    assert verify(out).ok
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_force_does_not_replace_folders_without_a_model(source: Path, tmp_path: Path):
    out = tmp_path / "home"
    out.mkdir()
    (out / "thesis.tex").write_text("")
    with pytest.raises(BuildError, match="no build wrote it"):
        build(source, out, force=True)
    assert (out / "thesis.tex").exists()


def test_force_does_not_replace_files_added_after_the_build(source: Path, tmp_path: Path):
    """An example is a trained checkpoint that was saved into a built folder."""
    out = tmp_path / "out"
    build(source, out)
    (out / "checkpoint-100").mkdir()
    (out / "train.log").write_text("")
    with pytest.raises(BuildError, match=r"no build wrote \(checkpoint-100, train\.log\)"):
        build(source, out, force=True)
    assert (out / "train.log").exists()


def test_an_empty_folder_is_filled(source: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    build(source, tmp_path / "out")
    assert verify(tmp_path / "out").ok


def test_parent_folders_are_created(source: Path, tmp_path: Path):
    build(source, tmp_path / "a" / "b" / "out")
    assert (tmp_path / "a" / "b" / "out" / "config.json").exists()


@pytest.mark.parametrize("force", [False, True])
def test_outputs_inside_or_equal_to_the_source_are_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
):
    before = fingerprint(source)
    (tmp_path / "link").symlink_to(source)
    for out in (source, source / "inside", source / "in" / "side", tmp_path / "link", source / ".." / "source"):
        with pytest.raises(BuildError, match="is the source, or lies inside it"):
            build(source, out, force=force)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BuildError, match="lies inside the output"):
        build(source, tmp_path, force=force)
    monkeypatch.chdir(source)
    with pytest.raises(BuildError, match="is the source"):
        build(source, Path(), force=force)
    assert fingerprint(source) == before


def test_an_output_that_holds_the_files_a_source_links_to_is_not_replaced(source: Path, tmp_path: Path):
    snapshot = tmp_path / "model" / "snapshots" / "0"
    snapshot.mkdir(parents=True)
    blobs = source.rename(tmp_path / "model" / "blobs")
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    with pytest.raises(BuildError, match="lies inside the output"):
        build(snapshot, blobs, force=True)


def test_files_are_refused_as_output_folders(source: Path, tmp_path: Path):
    (tmp_path / "out").write_text("")
    with pytest.raises(BuildError, match="is a file; expected a folder"):
        build(source, tmp_path / "out", force=True)
    with pytest.raises(BuildError, match=f"lies below a file, {tmp_path}/out; expected a folder"):
        build(source, tmp_path / "out" / "of" / "reach")


def test_too_small_disks_are_refused_before_writing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = shutil.disk_usage(tmp_path)
    total = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=total // 2))
    monkeypatch.setattr(build_module, "whole_or_nothing", None)
    with pytest.raises(BuildError, match=f"needs .* bytes, and {total // 2:,} are free"):
        build(source, tmp_path / "out", copy=True)
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=total // 2))
    build(source, tmp_path / "out")


SLOW = """
import signal, sys, time
from pathlib import Path
from composer.weights.output import whole_or_nothing
signal.signal(signal.SIGINT, signal.default_int_handler)
with whole_or_nothing(Path(sys.argv[1])) as folder:
    (folder / "file").write_text("half")
    print("writing", flush=True)
    for _ in range(6000):
        time.sleep(0.01)
"""
"""Ctrl-C reaches it also where the tests run in the background, whose shell has it ignored. It sleeps in short spells: a signal
that comes just before a sleep begins does not end that sleep."""


def ended_by(number: signal.Signals, out: Path) -> int:
    """Return the exit status of a build that receives a signal while it writes."""
    child = subprocess.Popen([sys.executable, "-c", SLOW, str(out)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "writing\n"
    assert [path.name for path in out.parent.rglob("file")] == ["file"]
    child.send_signal(number)
    status = child.wait()
    child.stdout.close()
    return status


def test_an_interrupt_in_the_middle_cleans_up(tmp_path: Path):
    assert ended_by(signal.SIGINT, tmp_path / "a" / "out") == -signal.SIGINT
    assert os.listdir(tmp_path) == []


def test_files_of_terminated_builds_are_removed_by_the_next(tmp_path: Path):
    assert ended_by(signal.SIGTERM, tmp_path / "out") == -signal.SIGTERM
    assert not (tmp_path / "out").exists()
    with whole_or_nothing(tmp_path / "out") as folder:
        (folder / "whole").write_text("")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "whole"]


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path: Path):
    """The next build moves the old folder back to its place first."""
    out = tmp_path / "out"
    with whole_or_nothing(out) as folder:
        (folder / "old").write_text("")
    out.rename(backup_path(unique_partial_of(out)))
    with pytest.raises(BuildError, match="exists already"), whole_or_nothing(out):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old"]


def test_the_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert check_output(Path("out"), None, force=False) == tmp_path / "out"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3_000_001))
    return path


def refused(code: int) -> Callable[..., None]:
    def call(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


def test_files_are_hard_linked_also_through_a_symbolic_link(file: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(file)
    for number, source in enumerate((file, tmp_path / "link")):
        assert link_or_copy(source, tmp_path / str(number)) == ("linked", None)
        assert not (tmp_path / str(number)).is_symlink()
        assert os.path.samefile(file, tmp_path / str(number))


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_without_links_a_file_is_copied(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int):
    monkeypatch.setattr(os, "link", refused(code))
    assert link_or_copy(file, tmp_path / "target") == ("copied", sha256(file))
    assert (tmp_path / "target").read_bytes() == file.read_bytes()
    assert not os.path.samefile(file, tmp_path / "target")


@pytest.mark.parametrize("copy", [False, True])
def test_a_copy_keeps_the_time_stamp(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: bool):
    """Time stamps identify files that were not hashed, so a rebuild from the same source is recognised."""
    os.utime(file, ns=(1_000_000_000, 1_234_567_890))
    monkeypatch.setattr(os, "link", refused(errno.EXDEV))
    link_or_copy(file, tmp_path / "target", copy=copy)
    assert (tmp_path / "target").stat().st_mtime_ns == 1_234_567_890


def test_a_copy_has_all_bytes_and_counts_them(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream, "BLOCK", 1_000_000)
    counted: list[int] = []
    assert link_or_copy(file, tmp_path / "target", copy=True, moved=counted.append) == ("copied", sha256(file))
    assert (tmp_path / "target").read_bytes() == file.read_bytes()
    assert counted == [1_000_000, 1_000_000, 1_000_000, 1]
    assert (tmp_path / "target").stat().st_nlink == 1


def test_a_source_that_shrinks_is_an_error_and_no_endless_loop(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream, "BLOCK", 1_000_000)
    with pytest.raises(OSError, match="file ends 2,000,001 bytes early"):
        copy_file(file, tmp_path / "target", lambda _: os.truncate(file, 1_000_000))
