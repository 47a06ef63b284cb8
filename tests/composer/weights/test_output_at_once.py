"""Only one build of an output runs at a time, and the next one removes what a killed build left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from composer.errors import BuildError
from composer.system import files
from composer.weights import output
from composer.weights.output import whole_or_nothing
from tests.composer.training.processes import ending, forked


def build(out: Path, name: str, act: Callable[[], None] = lambda: None, *, force: bool = False) -> None:
    """Write a file of this name, and run something meanwhile."""
    with whole_or_nothing(out, force=force) as folder:
        (folder / name).touch()
        act()


def test_files_of_killed_builds_are_removed_by_the_next(tmp_path: Path) -> None:
    """Files of running builds, which refuse others, and files of other names stay."""
    out, begun = tmp_path / "out[1]", tmp_path / "begun"

    def child() -> None:
        with whole_or_nothing(out) as folder:
            (folder / "half").touch()
            begun.touch()
            time.sleep(60)

    def listed() -> set[str]:
        return {path.name for path in tmp_path.iterdir()} - {begun.name}

    others = {".out[1].more.0123abcd.partial", ".out[1].run.partial", ".out1.0123abcd.partial", ".out[1].more.0123abcd.replaced"}
    for name in others:
        (tmp_path / name).mkdir()
    process = forked(child)
    while not begun.exists():
        time.sleep(0.01)
    for force in (False, True):
        with pytest.raises(BuildError, match=r"Another build is at work on .*out\[1\]\. Wait until it"):
            build(out, "beside", force=force)
    (going,) = listed() - {*others, ".out[1].lock"}
    assert (tmp_path / going / "half").exists()
    build(tmp_path / "out", "another")
    os.kill(process, signal.SIGKILL)
    assert ending(process) == -signal.SIGKILL
    assert (tmp_path / going / "half").exists()
    build(out, "whole")
    assert listed() == {*others, out.name, "out"}
    assert [path.name for path in out.iterdir()] == ["whole"]


def test_only_one_of_many_simultaneous_builds_succeeds(tmp_path: Path) -> None:
    """The others are refused at any time."""
    out, go = tmp_path / "new" / "out", tmp_path / "go"

    def child(number: int) -> None:
        while not go.exists():
            time.sleep(0.001)
        try:
            build(out, str(number), lambda: time.sleep(0.05))
        except BuildError as error:
            raise SystemExit(2) from error

    started = [forked(lambda number=number: child(number)) for number in range(6)]
    go.touch()
    endings = [ending(process) for process in started]
    assert sorted(endings) == [0, 2, 2, 2, 2, 2]
    assert [path.name for path in out.iterdir()] == [str(endings.index(0))]
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("late", ["before it is looked for", "behind that"])
def test_outputs_created_meanwhile_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    """This holds also without a lock, if something else than a build or another machine created it."""
    out = tmp_path / "out"

    def come() -> None:
        out.mkdir()
        (out / "mine").touch()

    move_folder = files.move_folder

    def taken(partial: Path, out: Path, *, replace: bool) -> Path | None:
        come()
        return move_folder(partial, out, replace=replace)

    if late == "behind that":
        monkeypatch.setattr(output, "move_folder", taken)
    with pytest.raises(
        BuildError, match=r"out (exists already|was created while this build ran; it was not overwritten)\. Use --force"
    ):
        build(out, "theirs", come if late != "behind that" else lambda: None)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_a_file_that_is_written_twice_is_not_called_another_build(tmp_path: Path) -> None:
    def write_twice() -> None:
        for _ in range(2):
            output.write_text(tmp_path / "file", "")

    with pytest.raises(BuildError, match="File exists") as caught:
        build(tmp_path / "out", "mine", write_twice)
    assert "while this build ran" not in str(caught.value)


def test_force_does_not_replace_outputs_created_meanwhile(tmp_path: Path) -> None:
    """The new folder is not from a build."""
    out = tmp_path / "out"

    def come() -> None:
        out.mkdir()
        (out / "mine").touch()

    with pytest.raises(BuildError, match="so no build wrote it, and --force does not replace it"):
        build(out, "theirs", come, force=True)
    assert [path.name for path in out.iterdir()] == ["mine"]
