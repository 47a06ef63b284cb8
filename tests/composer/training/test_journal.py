"""The log survives interruptions, a full disk is reported, and the curve is drawn from any log."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from composer.errors import TrainingError
from composer.training import journal as journal_module
from composer.training.journal import BOARD, LOG, Board, Journal, draw
from tests.composer.legible import assert_legible, kept_open
from tests.composer.training.stages import StoppedError, log
from tests.damage import no_waiting

pytestmark = pytest.mark.drawn


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path)
    for stage in ("one", "two"):
        journal.rewind(stage, -1)
        journal.write(stage, 0, held_out={"model": 2.0})
        for step in (1, 2, 3):
            journal.write(stage, step, loss={"model": 1.0 / step}, lr=0.1)
    return journal


def test_steps_after_the_checkpoint_are_dropped(journal: Journal, tmp_path: Path) -> None:
    journal.rewind("one", 1)
    assert [(line["stage"], line["step"]) for line in log(tmp_path)] == [
        *[("one", 0), ("one", 1)],
        *[("two", 0), ("two", 1), ("two", 2), ("two", 3)],
    ]
    journal.rewind("two", -1)
    assert [line["stage"] for line in log(tmp_path)] == ["one", "one"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOG, BOARD]


def test_incomplete_last_lines_are_dropped(journal: Journal, tmp_path: Path) -> None:
    before = log(tmp_path)
    with (tmp_path / LOG).open("a") as stream:
        stream.write('{"stage": "two", "step": 4, "lo')
    journal.rewind("two", 99)
    assert log(tmp_path) == before


DAMAGED = [
    *("{", "[]", '{"step": 1}', '{"stage": 1, "step": 1}', "[" * 200_000, "\udcff"),
    *('{"stage": "one", "step": true}', '{"stage": "one", "step": -1}', '{"stage": "one", "step": 1, "loss": 2.0}'),
    *('{"stage": "one", "step": 1, "loss": {"model": NaN}}', '{"stage": "one", "step": 1, "loss": {"model": 1e308}}'),
    '{"stage": "one", "step": 1, "more": 1}',
]


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_lines_are_an_error(journal: Journal, tmp_path: Path, line: str) -> None:
    """A damaged line that is not the last is an error, since later lines would be lost."""
    lines = (tmp_path / LOG).read_bytes().splitlines()
    (tmp_path / LOG).write_bytes(b"\n".join([*lines[:2], line.encode(errors="surrogateescape"), *lines[2:], b""]))
    for act in (lambda: journal.rewind("one", 99), lambda: draw(tmp_path / LOG, tmp_path / "curve.png")):
        with pytest.raises(
            TrainingError, match=rf"{LOG}, line 3 is damaged: .*\. Remove it to continue without its curves, or start again"
        ):
            act()
    assert (tmp_path / LOG).read_bytes().count(b"\n") == len(lines) + 1


def test_losses_that_are_not_finite_are_read_back(journal: Journal, tmp_path: Path) -> None:
    """A diverged evaluation is logged before the run ends with an error."""
    journal.write("one", 4, held_out={"model": float("nan")})
    journal.rewind("one", 4)
    assert {"stage": "one", "step": 4, "held_out": {"model": None}} in log(tmp_path)
    draw(tmp_path / LOG, tmp_path / "curve.png")


def test_a_kill_during_rewinding_loses_nothing(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, original = log(tmp_path), Path.write_text

    def write_text(path: Path, text: str, **options: Any) -> int:
        original(path, text[:20], **options)
        raise StoppedError

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(StoppedError):
        journal.rewind("one", 99)
    assert log(tmp_path) == before


def test_curves_of_any_losses_are_drawn(journal: Journal, tmp_path: Path) -> None:
    """Losses may be 0, and a stage may have no evaluation."""
    journal.rewind("three", -1)
    journal.write("three", 1, loss={"layer 0": 0.0, "layer 1": 3.0})
    draw(tmp_path / LOG, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_runs_continue_without_their_log(journal: Journal, tmp_path: Path) -> None:
    """The curve is missing, and the run continues."""
    (tmp_path / LOG).unlink()
    draw(tmp_path / LOG, tmp_path / "curve.png")
    (tmp_path / LOG).write_text("")
    draw(tmp_path / LOG, tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


@pytest.mark.parametrize("count", [2, 7, 8, 40])
def test_the_curve_is_legible(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    figures = kept_open(monkeypatch)
    journal.rewind("three", -1)
    for step in range(3):
        losses = {f"layer {layer}": 10.0 ** (layer - step) for layer in range(count)}
        journal.write("three", step, loss=losses, held_out=losses)
    draw(tmp_path / LOG, tmp_path / "curve.png")
    figure = figures["curve.png"]
    assert_legible(figure)
    *_, last = figure.axes
    assert len({str(line.get_color()) for line in last.lines}) == count
    named = [text.get_text() for text in last.get_legend().get_texts()]
    assert named[0] == "layer 0"
    assert len(named) == min(count, 10 if count == 40 else 12)


def test_streamed_layers_are_drawn_in_one_picture(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer is a stage in the log. 24 separate plots would be unreadable."""
    figures = kept_open(monkeypatch)
    for layer in range(24):
        journal.rewind(f"transfer {layer}", -1)
        for step in (1, 2):
            journal.write(f"transfer {layer}", step, loss={f"layer {layer}": 1.0 / step}, held_out={f"layer {layer}": 2.0 / step})
    draw(tmp_path / LOG, tmp_path / "curve.png")
    assert_legible(figures["curve.png"])
    assert len(figures["curve.png"].axes) == 3, "two of the journal, and one of all layers"
    assert len(figures["curve.png"].axes[-1].lines) == 2 * 24


def test_tensorboard_has_each_step_once(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds also for a continued run and beside other stages."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60)  # TensorBoard reads files in the order of the seconds in their names
    later = Journal(tmp_path)
    later.rewind("one", 1)
    for step in (2, 3):
        later.write("one", step, loss={"model": 5.0})
    for stage, losses in (("one", [1.0, 5.0, 5.0]), ("two", [1.0, 1 / 2, 1 / 3])):
        board = EventAccumulator(str(tmp_path / BOARD / stage)).Reload()
        events = board.Scalars("loss/model")
        assert [event.step for event in events] == [1, 2, 3]
        assert [event.value for event in events] == pytest.approx(losses)


def no_room(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disks_are_reported(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails on any of the files is reported at once."""
    for owner, name, write in (
        (journal_module, "appending", lambda: journal.write("one", 4, lr=0.1)),
        (Path, "write_text", lambda: journal.rewind("one", 2)),
        (journal_module.RecordWriter, "write", lambda: journal.write("two", 4, lr=0.1)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, no_room)
            with pytest.raises(TrainingError) as caught:
                write()
        assert str(caught.value) == (
            f"The log in {tmp_path} could not be written: No space left on device. Free some space, and run the same command with "
            "--resume."
        )
    monkeypatch.setattr(Path, "replace", no_room)
    with pytest.raises(
        TrainingError,
        match=r"^The curve in .* could not be written: No space left on device\. Free some space, and run the same command",
    ):
        draw(tmp_path / LOG, tmp_path / "curve.png")


@pytest.mark.parametrize("name", [LOG, f".{LOG}.partial"])
def test_nothing_is_written_to_a_device_or_a_pipe(journal: Journal, tmp_path: Path, name: str) -> None:
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with no_waiting():
        if name == LOG:
            with pytest.raises(TrainingError, match=rf"The log in .* could not be written: {LOG}: no regular file"):
                journal.write("one", 4, lr=0.1)
        else:
            journal.rewind("one", 2)
            assert max(line["step"] for line in log(tmp_path) if line["stage"] == "one") == 2


def test_removed_folders_are_reported(journal: Journal, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / BOARD)
    with pytest.raises(
        TrainingError, match=r"The log in .* could not be written: .*No such file .*\. Fix that, and run the same command"
    ):
        journal.write("one", 4, lr=0.1)
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"The log in .* could not be written: .*Not a directory\. Fix that"):
        Journal(tmp_path / "file" / "run")


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = EventAccumulator(str(folder)).Reload()
    return {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}


def test_written_lines_can_be_read_at_once(tmp_path: Path) -> None:
    board = Board(tmp_path / "stage", 0)
    assert curves(tmp_path / "stage") == {}
    board.write(1, {"loss/layer 0": 0.5, "lr": 0.25})
    board.write(2, {"loss/layer 0": 0.125})
    assert curves(tmp_path / "stage") == {"loss/layer 0": [(1, 0.5), (2, 0.125)], "lr": [(1, 0.25)]}


@pytest.mark.parametrize("half", [False, True])
def test_repeated_steps_replace_old_steps_in_tensorboard(tmp_path: Path, half: bool) -> None:
    """Old steps are removed, also if a full disk cut the file off."""
    first = Board(tmp_path, 0)
    for step in (1, 2, 3):
        first.write(step, {"loss": float(step)})
    (file,) = tmp_path.iterdir()
    if half:
        file.write_bytes(file.read_bytes()[:-5])
    second = Board(tmp_path, 2)
    second.write(2, {"loss": 7.0})
    assert curves(tmp_path) == {"loss": [(1, 1.0), (2, 7.0)]}
