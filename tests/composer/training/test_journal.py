"""The log survives what interrupts it, and the curve is drawn from whatever is in it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from composer.training.journal import BOARD, LOG, Journal, draw
from tests.composer.training.stages import StoppedError, log


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    journal = Journal(tmp_path)
    for stage in ("one", "two"):
        journal.write(stage, 0, held_out={"model": 2.0})
        for step in (1, 2, 3):
            journal.write(stage, step, loss={"model": 1.0 / step}, lr=0.1)
    yield journal
    journal.close()


def test_steps_that_will_be_taken_again_are_forgotten(journal: Journal, tmp_path: Path) -> None:
    journal.rewind("one", 1)
    assert [(line["stage"], line["step"]) for line in log(tmp_path)] == [
        *[("one", 0), ("one", 1)],
        *[("two", 0), ("two", 1), ("two", 2), ("two", 3)],
    ]
    journal.rewind("two", -1)
    assert [line["stage"] for line in log(tmp_path)] == ["one", "one"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOG, BOARD]


def test_half_a_line_is_no_line(journal: Journal, tmp_path: Path) -> None:
    before = log(tmp_path)
    with (tmp_path / LOG).open("a") as stream:
        stream.write('{"stage": "two", "step": 4, "lo')
    journal.rewind("two", 99)
    assert log(tmp_path) == before


def test_a_kill_while_it_is_rewound_costs_nothing(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, original = log(tmp_path), Path.write_text

    def write_text(path: Path, text: str, **options: Any) -> int:
        original(path, text[:20], **options)
        raise StoppedError

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(StoppedError):
        journal.rewind("one", 99)
    assert log(tmp_path) == before


def test_a_curve_of_anything(journal: Journal, tmp_path: Path) -> None:
    """Losses of nothing, and a stage without an evaluation."""
    journal.write("three", 1, loss={"layer 0": 0.0, "layer 1": 3.0})
    draw(tmp_path / LOG, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_tensorboard_has_each_step_once(journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a run that goes on, and whatever other stages have written."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    journal.close()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60)  # TensorBoard reads files in the order of the seconds in their names
    later = Journal(tmp_path)
    later.rewind("one", 1)
    for step in (2, 3):
        later.write("one", step, loss={"model": 5.0})
    later.close()
    for stage, losses in (("one", [1.0, 5.0, 5.0]), ("two", [1.0, 1 / 2, 1 / 3])):
        board = EventAccumulator(str(tmp_path / BOARD / stage)).Reload()
        events = board.Scalars("loss/model")
        assert [event.step for event in events] == [1, 2, 3]
        assert [event.value for event in events] == pytest.approx(losses)
