"""TensorBoard reads what a board has written, at once, and whatever an earlier one has left half-written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from composer.training.event_files import Board


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = EventAccumulator(str(folder)).Reload()
    return {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}


def test_what_is_written_can_be_read_at_once(tmp_path: Path) -> None:
    board = Board(tmp_path / "stage", 0)
    assert curves(tmp_path / "stage") == {}
    board.write(1, {"loss/layer 0": 0.5, "lr": 0.25})
    board.write(2, {"loss/layer 0": 0.125})
    assert curves(tmp_path / "stage") == {"loss/layer 0": [(1, 0.5), (2, 0.125)], "lr": [(1, 0.25)]}


@pytest.mark.parametrize("half", [False, True])
def test_steps_that_are_taken_again(tmp_path: Path, half: bool) -> None:
    """Those of the file before are forgotten, though a full disk has cut it off."""
    first = Board(tmp_path, 0)
    for step in (1, 2, 3):
        first.write(step, {"loss": float(step)})
    (file,) = tmp_path.iterdir()
    if half:
        file.write_bytes(file.read_bytes()[:-5])
    second = Board(tmp_path, 2)
    second.write(2, {"loss": 7.0})
    assert curves(tmp_path) == {"loss": [(1, 1.0), (2, 7.0)]}
