"""The log of a training run: a line of JSON for each step, the same for TensorBoard, and a plot of the losses at the end."""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

from blocks.part import Closed
from composer.errors import TrainingError
from composer.system.files import write_whole
from composer.system.json_files import Count, Measured, read_log
from composer.training.options import AGAIN
from composer.training.processes import by_first
from composer.training.tracking import Tracker
from converters.bounded import appending, problem_with

LOG = "log.jsonl"
CURVE = "curve.png"
BOARD = "tensorboard"
MOST_NAMED = 12
"""The most curves that a plot's legend names; of more, it names every second, third and so on."""
EVENTS: Any = event_pb2
SUMMARIES: Any = summary_pb2
"""The classes of TensorBoard's protocol are generated at import, so type checkers cannot see them."""
VERSION = "brain.Event:2"
"""The first event of every file has it: tensorboard/compat/proto/event.proto."""


class Board:
    """One event file. TensorBoard reads the files of a folder in the order of their names, which begin with the time.

    torch's SummaryWriter writes in another thread, which reports a full disk by a separate traceback, minutes later.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """step: TensorBoard drops the events of earlier files in the folder from this step on. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        started = EVENTS.SessionLog(status=EVENTS.SessionLog.START)
        self._append(EVENTS.Event(file_version=VERSION), EVENTS.Event(step=step, session_log=started))

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Numbers by the names of their curves. Raises OSError."""
        values = [SUMMARIES.Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
        self._append(EVENTS.Event(step=step, summary=SUMMARIES.Summary(value=values)))

    def _append(self, *events: Any) -> None:
        with appending(self._file) as stream:
            records = RecordWriter(stream)
            for event in events:
                event.wall_time = time.time()
                records.write(event.SerializeToString())


class LogLine(Closed):
    """A line of the log after ``step`` steps of a stage: losses and gradient norms by unit, the learning rate, and the tokens so
    far. held_out: losses on the held-out rows; None is a loss that was not finite."""

    stage: str
    step: Count
    loss: dict[str, Measured] = Field(default_factory=dict)
    norm: dict[str, Measured] = Field(default_factory=dict)
    held_out: dict[str, Measured | None] = Field(default_factory=dict)
    lr: Measured | None = None
    tokens: Count | None = None


class Journal:
    """The log of one run; a continued run appends to it. Of several processes only the first writes. again: how the user continues.
    trackers: get the same figures; only those of the first process are used. If writing fails, all processes raise TrainingError,
    here and in the methods.
    """

    def __init__(self, folder: Path, again: str = AGAIN, trackers: Sequence[Tracker] = ()) -> None:
        self._folder, self._again, self._trackers = folder, again, trackers
        self._boards: dict[str, Board] = {}
        by_first(self._make)

    def rewind(self, stage: str, step: int) -> None:
        """Begin a stage, or continue it after ``step``: lines of later steps, which a killed run has left, are dropped."""
        by_first(lambda: self._rewind(stage, step))

    def write(self, stage: str, step: int, **figures: Any) -> None:
        """Add a line after ``step`` steps of a stage: numbers, and mappings of names to numbers."""
        by_first(lambda: self._write(stage, step, figures))

    def _make(self) -> None:
        with _writable("log", self._folder, self._again):
            self._folder.mkdir(parents=True, exist_ok=True)

    def _rewind(self, stage: str, step: int) -> None:

        log = self._folder / LOG
        with _writable("log", self._folder, self._again):
            if os.path.lexists(log):
                lines = [line for line in _lines(log) if line.stage != stage or line.step <= step]
                write_whole(log, "".join(f"{json.dumps(line.model_dump(exclude_unset=True))}\n" for line in lines))
            # TensorBoard drops later steps of whatever stage, so each stage has its own folder.
            self._boards[stage] = Board(self._folder / BOARD / stage, step + 1)
        for tracker in self._trackers:
            tracker.begin_stage(stage)

    def _write(self, stage: str, step: int, figures: Mapping[str, Any]) -> None:
        with _writable("log", self._folder, self._again):
            with appending(self._folder / LOG) as stream:
                stream.write((json.dumps({"stage": stage, "step": step, **_finite(figures)}, allow_nan=False) + "\n").encode())
            self._boards[stage].write(step, dict(_flat(figures)))
        for tracker in self._trackers:
            tracker.write(stage, step, dict(_flat(figures)))


def draw(log: Path, target: Path, again: str = AGAIN) -> None:
    """Plot the losses of each stage over its steps: thin lines on training data, dots on held-out rows. Layers that were streamed,
    whose stages are called ``transfer 0`` and so on, are one stage. An empty log has no plot. again: how to continue. Raises
    TrainingError if it cannot be written.
    """
    with _writable("curve", target.parent, again):
        from composer.reporting.plotting import WIDTH, add_title, by_powers, plotting, save, whole_ticks

        lines = _lines(log)
        if not lines:
            return
        stages: dict[str, list[LogLine]] = {}
        for line in lines:
            stages.setdefault(line.stage.partition(" ")[0], []).append(line)
        with plotting() as pyplot:
            figure, axes = pyplot.subplots(1, len(stages), figsize=(WIDTH, 4), squeeze=False, layout="constrained")
            for axis, (stage, lines) in zip(axes[0], stages.items(), strict=True):
                _draw(axis, lines)
                axis.set(title=stage, xlabel="step", ylabel="loss")
                by_powers(axis, max_decades=2)
                whole_ticks(axis, limit=6)
            add_title(figure, "Losses: thin lines at each step, dots on held-out rows")
            save(figure, target)


def _draw(axis: Any, lines: list[LogLine]) -> None:
    """The losses of one stage: separate colours, or, of many layers, from dark to light."""
    from matplotlib import colormaps

    from composer.reporting.plotting import COLOURS, MAP, colour

    units = list(dict.fromkeys(name for line in lines for name in line.loss))
    every = -(-len(units) // MOST_NAMED)
    for index, unit in enumerate(units):
        shade = colour(index) if len(units) <= len(COLOURS) else colormaps[MAP](0.9 * index / (len(units) - 1))
        axis.plot(*_series((line.step, line.loss.get(unit)) for line in lines), linewidth=0.8, alpha=0.6, color=shade)
        label = unit if index % every == 0 else None
        axis.plot(*_series((line.step, line.held_out.get(unit)) for line in lines), "o-", markersize=3, label=label, color=shade)
    axis.legend()


def _series(points: Iterable[tuple[int, float | None]]) -> tuple[list[int], list[float]]:
    """Return the steps and the losses of a curve, without missing losses."""
    losses = [(step, loss) for step, loss in points if loss is not None]
    return [step for step, _ in losses], [loss for _, loss in losses]


def _lines(log: Path) -> list[LogLine]:
    """Return the lines, without an incomplete last one, which a kill may leave. Raises TrainingError if another one is
    damaged."""
    return read_log(log, LogLine, TrainingError, "Remove it to continue without its curves, or start again with --force.")


def _finite(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures as JSON, which has no NaN and no infinity: None replaces them."""
    return {
        name: {part: number if math.isfinite(number) else None for part, number in figure.items()}
        if isinstance(figure, Mapping)
        else figure
        for name, figure in figures.items()
    }


def _flat(figures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the figures as numbers by the names of their curves."""
    for name, figure in figures.items():
        for part, number in figure.items() if isinstance(figure, Mapping) else [("", figure)]:
            yield name + (f"/{part}" if part else ""), number


@contextmanager
def _writable(file_kind: str, folder: Path, again: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        mend = "Free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Fix that"
        raise TrainingError(
            f"The {file_kind} in {folder} could not be written: {problem_with(error)}. {mend}, and {again}."
        ) from error
