"""The training loop: one stage, from its first step or its last checkpoint to its end."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, JsonValue

from blocks.part import Closed
from composer.data.packing import Batch, PackedRows, rows_of_step, steps_of
from composer.errors import Stopped, TrainingError
from composer.reporting.words import duration
from composer.spec.recipe import Stage
from composer.system.devices import keep_freed_memory, seed_for_block
from composer.system.json_files import Count, Elapsed, Measured
from composer.training import checkpoint
from composer.training.journal import Journal
from composer.training.options import AGAIN
from composer.training.processes import add_over_processes, broadcast_from_first, rank, shares
from composer.training.signals import await_signals
from composer.training.unit import RECENT, Course, Losses, warn_if_risen
from composer.weights.record import Start

SLOW = 10.0
"""Seconds of a step from which its time is announced after its first part."""
EVALUATIONS = 10
"""Evaluations in a stage whose recipe does not set how often to evaluate."""


@dataclass(frozen=True)
class StepProgress:
    """The progress of the loop after a step.

    loss: None without training. tokens_per_second: of training; seconds_left: with evaluations; evaluating: their share of it.
    """

    stage: str
    step: int
    steps: int
    loss: float | None
    tokens_per_second: float
    seconds_left: float
    evaluating: float


def counter_of(stage: str, steps: int, watch: Callable[[StepProgress], None] | None) -> Callable[[], None]:
    """Return a function that reports the progress of work without training. It is called after each of its ``steps``."""
    began, done = time.perf_counter(), count(1)

    def advance() -> None:
        step = next(done)
        if watch is not None:
            seconds_left = (time.perf_counter() - began) / step * (steps - step)
            watch(StepProgress(stage, step, steps, None, 0.0, seconds_left, 0.0))

    return advance


@dataclass(frozen=True)
class StageSetting:
    """How a stage is run."""

    folder: Path
    """The folder of the run. The stage's checkpoints are in a folder of its name there."""
    journal: Journal
    """The run's log."""
    seed: int = 0
    """The seed of the order of the rows."""
    checkpoint_seconds: float = 60.0
    """The smallest time between two checkpoints."""
    autocast: torch.dtype | None = None
    """The dtype of the projections; None: float32."""
    part_tokens: int | None = None
    """The most tokens of a step that are processed at once, by whole rows; None: all, or as the recipe sets."""
    watch: Callable[[StepProgress], None] | None = None
    """Called after each step."""
    tell: Callable[[str], None] = lambda message: None
    """Called with messages to the user."""
    warn: Callable[[Iterable[str]], None] = lambda warnings: None
    """Called with warnings."""
    again: str = AGAIN
    """How the user continues a stage that was stopped, for messages."""
    finish: bool = False
    """End a stage at its last checkpoint."""


class Outcome(Closed):
    """The result of a stage. before, after: losses on the held-out rows, by unit; empty where nothing is held out."""

    stage: str
    steps: Count
    planned: Count | None = Field(default=None, exclude_if=lambda planned: planned is None)
    """The steps of the recipe, if the stage was ended at a checkpoint before."""
    tokens: Count
    """The number of tokens of all training steps."""
    seconds: Elapsed
    before: dict[str, Measured]
    after: dict[str, Measured]
    start: Start | None = Field(default=None, exclude_if=lambda start: start is None)
    """The parts whose first values were calibrated, if the recipe sets it."""


class StageState(Closed):
    """The progress of a stage, as its checkpoint stores it beside the units. identity: what a resumed stage must share."""

    identity: dict[str, JsonValue]
    step: Count
    tokens: Count
    seconds: Elapsed
    learning: Elapsed
    done: bool
    before: dict[str, Measured]
    after: dict[str, Measured]


def run_stage(
    name: str, course: Course, stage: Stage, rows: PackedRows, held_out: PackedRows | None, setting: StageSetting
) -> Outcome:
    """Run a stage, or the rest of a stopped one; its units end with the parameters that the recipe keeps. Raises TrainingError."""
    return _StageRun(name, course, stage, rows, held_out, setting).run()


def seed_of(seed: int, stage: str) -> int:
    """Return the seed of what a stage draws in this process, as a host's dropout does; a checkpoint has how far it has drawn."""
    return zlib.crc32(f"{seed} {stage} {rank()}".encode())


class _StageRun:
    def __init__(
        self, name: str, course: Course, stage: Stage, rows: PackedRows, held_out: PackedRows | None, setting: StageSetting
    ) -> None:
        self.name, self.course, self.stage, self.rows, self.held_out, self.setting = name, course, stage, rows, held_out, setting
        self.steps = length_of(stage, rows)
        self.evaluation_interval = evaluation_interval(stage, self.steps)
        self.folder = setting.folder / name
        self.device = next(iter(course.units[0].parameters.values())).device
        self.parts_per_step = _count_parts(stage, rows, setting.part_tokens)
        self.signalled: Callable[[], int] = lambda: 0
        self.saved = 0
        """The step of the last checkpoint, 0 before the first one."""
        self.steps_done, self.tokens, self.seconds, self.learning, self.done = 0, 0, 0.0, 0.0, False
        self.before: dict[str, float] = {}
        self.after: dict[str, float] = {}

    def run(self) -> Outcome:
        with seed_for_block(seed_of(self.setting.seed, self.name), str(self.device)):
            self._resume()
            with await_signals(self.setting.tell) as self.signalled, keep_freed_memory():
                is_finished_early = self.setting.finish and not self.done
                if is_finished_early:
                    self._finish_early()
                else:
                    self._run_remaining_steps()
        return Outcome(
            stage=self.name,
            steps=self.steps_done,
            planned=self.steps if is_finished_early else None,
            tokens=self.tokens,
            seconds=self.seconds,
            before=self.before,
            after=self.after,
        )

    def _finish_early(self) -> None:
        """End the stage at its checkpoint, which is kept."""
        self._evaluate_and_update()
        self._restore_best()

    def _run_remaining_steps(self) -> None:
        """Run the remaining steps. Raises Stopped after the part of a step in which a signal was received."""
        began = saved = time.monotonic()
        before = self.seconds
        if not self.steps_done:
            self._evaluate_and_update()  # before the first step, too: then no unit ends worse than it began
            self.before = dict(self.after)
            self.setting.warn(self.course.warn_at_start(self.before))
        while not self.done:
            losses = self._step()
            self.seconds = before + time.monotonic() - began
            self._watch(losses)
            if self.steps_done == RECENT:
                self.setting.warn(warn_if_risen(self.course.units, self.before))
            self.done = self.steps_done == self.steps or all(unit.progress.stopped for unit in self.course.units)
            if self.steps_done % self.evaluation_interval == 0 or self.done:
                self._evaluate_and_update()
            if self.done:
                self._restore_best()
            since = broadcast_from_first(-float(self.signalled()) or time.monotonic() - saved)
            if self.done or since < 0 or since >= self.setting.checkpoint_seconds:
                self._save()
                saved = time.monotonic()
            if since < 0:
                raise self._stopped(-int(since))

    def _stopped(self, number: int) -> Stopped:
        """Return the error of a run that a signal has stopped. Its last checkpoint is of the last complete step."""
        reached = (
            f"after step {self.steps_done:,} of {self.steps:,}"
            if self.steps_done
            else f"before the end of step 1 of {self.steps:,}"
        )
        checkpoint_folder = f" Checkpoint: {self.setting.folder}." if self.steps_done else ""
        return Stopped(f"Stopped {reached} of {self.name}.{checkpoint_folder} To continue, {self.setting.again}.", number)

    def _check_signal(self, random: RandomState) -> None:
        """Raise Stopped if a signal was received within a step, whose finished parts are dropped. The last complete step is saved.

        random: the state of random numbers before the step, with which it runs again.
        """
        number = int(broadcast_from_first(float(self.signalled())))
        if number:
            if self.steps_done > self.saved:
                random.restore()
                self._save()
            raise self._stopped(number)

    def _step(self) -> dict[str, float]:
        """Run one step of every unit that has not stopped. Return their losses."""
        stage, step, began = self.stage, self.steps_done, time.monotonic()
        indices = rows_of_step(step, stage.batch, len(self.rows), self.setting.seed)
        batch = self.rows.batch(indices)
        total = max(1, self.course.count(batch))
        sums: Losses = {}
        random = RandomState(self.device)
        for index, (part, divisor) in enumerate(shares(batch, self.parts_per_step, total)):
            if index:
                self._check_signal(random)
            if index == 1 and not self.learning:
                self._announce((time.monotonic() - began) * self.parts_per_step, batch)
            with self._autocast():
                for name, loss in self.course.compute_gradients(part.to(self.device), divisor).items():
                    sums[name] = sums[name] + loss if name in sums else loss
        losses = add_over_processes({name: float(loss) for name, loss in sums.items()})
        norms = {unit.name: unit.update(step, self.steps, losses[unit.name]) for unit in self.course.units if unit.name in losses}
        self.steps_done, self.tokens = step + 1, self.tokens + int(batch.valid.sum())
        rate = max(unit.rate(step, self.steps) for unit in self.course.units) * stage.lr
        self.setting.journal.write(self.name, self.steps_done, loss=losses, norm=norms, lr=rate, tokens=self.tokens)
        self.learning += time.monotonic() - began
        return losses

    def _announce(self, step_seconds: float, batch: Batch) -> None:
        """Print the tokens and the time of a step, estimated from its first part, if it is slow."""
        if step_seconds >= SLOW:
            self.setting.tell(
                f"{self.name}: a step has {int(batch.valid.sum()):,} tokens and needs about {duration(step_seconds)}, and "
                f"{self.steps:,} steps need about {duration(step_seconds * self.steps)}, without evaluations. "
                "Shorter: fewer steps, a smaller batch, or a smaller recipe.sequence."
            )

    def _evaluate(self) -> dict[str, float]:
        """Return the mean losses of the held-out rows."""
        if self.held_out is None:
            return {}
        sums: dict[str, float] = {}
        for part, divisor in (share for batch in self._held_out_batches() for share in shares(batch, 1, self._held_out_count)):
            if not self.steps_done:
                self._check_signal(RandomState(self.device))
            with self._autocast():
                for name, loss in self.course.compute_losses(part.to(self.device), divisor).items():
                    sums[name] = sums.get(name, 0.0) + float(loss)
        sums = add_over_processes(sums)
        if not self.setting.finish:  # the log is that of the run, which may go on
            self.setting.journal.write(self.name, self.steps_done, held_out=sums)
        return sums

    @cached_property
    def _held_out_count(self) -> int:
        """The number of held-out tokens, or rows, that evaluations are averaged over."""
        return max(1, sum(map(self.course.count, self._held_out_batches())))

    def _held_out_batches(self) -> Iterator[Batch]:
        """Yield the held-out rows in batches of the size of training. No more rows are in memory: they may have hidden states."""
        size = max(1, self.stage.batch // self.parts_per_step)
        return iter(()) if self.held_out is None else self.held_out.in_order(size)

    def _evaluate_and_update(self) -> None:
        self.after = self._evaluate()
        for unit in self.course.units:
            if unit.name in self.after and not unit.progress.stopped:
                unit.update_after_evaluation(self.after[unit.name])

    def _restore_best(self) -> None:
        for unit in self.course.units:
            if unit.best:
                unit.finish()
                assert unit.progress.best is not None, "its best parameters are those of an evaluation"
                self.after[unit.name] = unit.progress.best

    def _watch(self, losses: dict[str, float]) -> None:
        if self.setting.watch is not None:
            mean = sum(losses.values()) / max(1, len(losses))
            seconds_left = self.seconds / self.steps_done * (self.steps - self.steps_done)
            evaluating = max(0.0, 1 - self.learning / self.seconds)
            self.setting.watch(
                StepProgress(self.name, self.steps_done, self.steps, mean, self.tokens / self.learning, seconds_left, evaluating)
            )

    def _identity(self) -> dict[str, Any]:
        return {"recipe": self.stage.model_dump(mode="json"), "data": self.rows.hash, "seed": self.setting.seed}

    def _save(self) -> None:
        reached = StageState(
            identity=self._identity(),
            step=self.steps_done,
            tokens=self.tokens,
            seconds=self.seconds,
            learning=self.learning,
            done=self.done,
            before=self.before,
            after=self.after,
        )
        checkpoint.save(self.folder, self.steps_done, self.course.units, reached.model_dump(), self.setting.again)
        self.saved = self.steps_done

    def _resume(self) -> None:
        newest = checkpoint.newest(self.folder)
        if newest is None:
            self.setting.journal.rewind(self.name, -1)
            return
        reached = checkpoint.read_state(newest, StageState)
        different = [name for name, now in self._identity().items() if reached.identity.get(name) != now]
        if different:
            raise TrainingError(
                f"{self.folder} was begun with another {' and another '.join(different)}. Use the same to continue, or start "
                "again with --force."
            )
        problem = self._problem_of(reached, newest.name)
        if problem is not None:
            raise checkpoint.damaged_error(newest, problem)
        checkpoint.restore(newest, self.course.units)
        self.steps_done, self.tokens, self.done = reached.step, reached.tokens, reached.done
        self.saved = self.steps_done
        self.seconds, self.learning = reached.seconds, reached.learning
        self.before, self.after = reached.before, reached.after
        self.setting.journal.rewind(self.name, self.steps_done)
        if not self.done and not self.setting.finish:
            self.setting.tell(f"Continuing after step {self.steps_done:,} of {self.steps:,} of {self.name}.")

    def _problem_of(self, reached: StageState, name: str) -> str | None:
        """Return why the counters of a checkpoint cannot be those of this stage; None where they can. name: of its folder."""
        if checkpoint.NAME.format(reached.step) != name:
            return f"its folder is {name}, and its step {reached.step:,}"
        if reached.step > self.steps:
            return f"step {reached.step:,} of a stage of {self.steps:,} steps"
        if reached.before.keys() != reached.after.keys():
            return "its losses before and after are of different units"
        return None

    def _autocast(self) -> AbstractContextManager[Any]:
        kind = self.setting.autocast
        return nullcontext() if kind is None else torch.autocast(self.device.type, dtype=kind)


class RandomState:
    """The state of this process's random numbers at one time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._cpu = device, torch.get_rng_state()
        self._gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        """Return to this state."""
        torch.set_rng_state(self._cpu)
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu, self._device)


def _count_parts(stage: Stage, rows: PackedRows, part_tokens: int | None) -> int:
    """Return the number of parts of a step's rows: as the recipe sets, or more, so that no part of several rows has more than
    ``part_tokens``."""
    rows_of_part = stage.batch if part_tokens is None else max(1, part_tokens // rows.sequence)
    return max(stage.accumulate, math.ceil(stage.batch / rows_of_part))


def evaluation_interval(stage: Stage, steps: int) -> int:
    """Return the steps from one evaluation of a stage to the next."""
    return stage.evaluate or max(1, steps // EVALUATIONS)


def length_of(stage: Stage, rows: PackedRows) -> int:
    """Return the steps of a stage on these rows."""
    lengths = [] if stage.steps is None else [stage.steps]
    if stage.tokens is not None:
        lengths.append(max(1, stage.tokens * len(rows) // (rows.tokens * stage.batch)))
    if stage.epochs is not None:
        lengths.append(steps_of(stage.epochs, len(rows), stage.batch))
    return min(lengths)
