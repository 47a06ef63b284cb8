"""Stage 1 for models that are larger than memory: one layer after the other, the hidden states between them in files.

Each layer learns from the same batches, in the same order, as when all of them learn in one pass, so the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from composer.data.order import rows_of_step
from composer.data.packing import Batch, Rows
from composer.model.modeling import ComposedDecoderLayer
from composer.spec.recipe import Transfer
from composer.training.course import Losses
from composer.training.journal import Journal
from composer.training.loop import Outcome, length_of, run_stage
from composer.training.run import Run
from composer.training.stored import StoredModel
from composer.training.transfer import layer_unit, lesson_of, tokens_of, transfer_loss
from composer.training.unit import Unit

ROWS = 8
"""Rows that go through a layer of the teacher at a time, on their way to the next."""
STAGE = "transfer"


@dataclass(frozen=True, eq=False)
class HiddenBatch(Batch):
    """Rows, and what the layer is handed for them: hidden B T C float32."""

    hidden: Tensor

    def _tensors(self) -> tuple[Tensor, ...]:
        return (*super()._tensors(), self.hidden)


@dataclass(frozen=True, eq=False)
class HiddenRows(Rows):
    """Rows whose hidden states lie in a file, N T C float32. place: N, where in it; -1 for a row that no step takes."""

    hidden: np.ndarray = None  # pyright: ignore[reportAssignmentType] - there is one, behind fields that may be left out
    place: np.ndarray = None  # pyright: ignore[reportAssignmentType]

    def batch(self, indices: list[int]) -> HiddenBatch:  # pyright: ignore[reportIncompatibleMethodOverride]
        plain = super().batch(indices)
        return HiddenBatch(
            plain.ids, plain.labels, plain.position, plain.valid, torch.from_numpy(self.hidden[self.place[np.asarray(indices)]])
        )


class LayerCourse:
    """One layer of a student, with that of its teacher."""

    def __init__(self, unit: Unit, student: ComposedDecoderLayer, teacher: ComposedDecoderLayer, stage: Transfer) -> None:
        self.units = [unit]
        self._student, self._teacher, self._stage = student, teacher, stage

    def count(self, batch: Batch) -> int:
        return int(batch.valid.sum())

    def learn(self, batch: Batch, total: float) -> Losses:
        loss = self._loss(batch, total)
        loss.backward()
        return {self.units[0].name: loss.detach()}

    @torch.no_grad()
    def judge(self, batch: Batch, total: float) -> Losses:
        return {self.units[0].name: self._loss(batch, total)}

    def _loss(self, batch: Batch, total: float) -> Tensor:
        assert isinstance(batch, HiddenBatch)
        with torch.no_grad():
            lesson = lesson_of(self._teacher, batch.hidden, tokens_of(batch), "torch")
        return transfer_loss(self._student.self_attn, self._teacher.self_attn, lesson, self._stage, total, "torch")


def transfer_streamed(
    run: Run, stage: Transfer, student: StoredModel, teacher: StoredModel, journal: Journal
) -> tuple[Outcome, dict[str, Tensor]]:
    """The stage as a whole, and the parameters that it ends with. Layers that are finished are not trained again."""
    used = _used(run.rows, stage, run.options.seed)
    spills = [_Spill(run.folder, "rows", run.rows, used)]
    if run.held_out is not None:
        spills.append(_Spill(run.folder, "held-out", run.held_out, None))
    outcomes, learned = [], {}
    for index in range(teacher.trunk.layers):
        finished, last = run.folder / f"layer-{index}.safetensors", index == teacher.trunk.layers - 1
        for spill in spills:
            spill.begin(teacher)
        if not finished.is_file() or not (last or all(spill.at > index for spill in spills)):
            above = teacher.layer(index)
            if not finished.is_file():
                _finish(finished, *_train(run, stage, index, student, above, spills, journal))
            for spill in () if last else spills:
                spill.advance(index, above)
        learned |= load_file(finished)
        with safe_open(finished, "pt") as stored:
            outcomes += [Outcome.model_validate_json(said) for said in (stored.metadata() or {}).values()]
    return _together(outcomes), learned


def _train(
    run: Run,
    stage: Transfer,
    index: int,
    student: StoredModel,
    teacher: ComposedDecoderLayer,
    spills: list[_Spill],
    journal: Journal,
) -> tuple[Unit | None, Outcome | None]:
    """One layer, if it has anything to train."""
    own = student.layer(index, attention_alone=True)
    unit = layer_unit(index, own.self_attn, stage)
    if unit is None:
        return None, None
    course = LayerCourse(unit, own, teacher, stage)
    rows, *held_out = (spill.rows() for spill in spills)
    return unit, run_stage(f"{STAGE} {index}", course, stage, rows, next(iter(held_out), None), run.setting(journal))


class _Spill:
    """The hidden states of some rows in a file: those that the next layer is handed."""

    def __init__(self, folder: Path, name: str, rows: Rows, used: np.ndarray | None) -> None:
        self._folder, self._name, self._rows = folder, name, rows
        self._used = np.arange(len(rows)) if used is None else used
        self._place = np.full(len(rows), -1)
        self._place[self._used] = np.arange(len(self._used))

    @property
    def at(self) -> int:
        """The layer that is handed what the newest file holds; -1 where there is none."""
        found = (int(path.stem.rpartition("-")[2]) for path in self._folder.glob(f"{self._name}-*.hidden"))
        return max(found, default=-1)

    def begin(self, teacher: StoredModel) -> None:
        """The embeddings, where nothing is there yet."""
        if self.at < 0:
            self._fill(0, teacher.trunk.hidden_size, lambda batch, _: teacher.embedded(batch.ids))

    def rows(self) -> HiddenRows:
        """The rows with what the next layer is handed."""
        given = {field.name: getattr(self._rows, field.name) for field in fields(Rows)}
        return HiddenRows(**given, hidden=self._open(self.at), place=self._place)

    @torch.no_grad()
    def advance(self, index: int, teacher: ComposedDecoderLayer) -> None:
        """Let all rows go through one layer of the teacher, and forget what it was handed."""
        if self.at > index:
            return
        before = self._open(index)

        def answered(batch: Batch, places: slice) -> Tensor:
            hidden = torch.from_numpy(np.array(before[places]))
            lesson = lesson_of(teacher, hidden, tokens_of(batch), "torch")
            return teacher.after(hidden, lesson.attended)

        self._fill(index + 1, before.shape[2], answered)
        self._path(index).unlink(missing_ok=True)

    def _fill(self, index: int, width: int, make: Callable[[Batch, slice], Tensor]) -> None:
        """Write a file; it appears whole or not at all."""
        target = self._path(index)
        partial = target.with_suffix(".partial")
        written = np.memmap(partial, np.float32, "w+", shape=(len(self._used), self._rows.sequence, width))
        for places in _slices(len(self._used)):
            written[places] = make(self._rows.batch(self._used[places].tolist()), places).numpy()
        written.flush()
        del written
        partial.rename(target)

    def _open(self, index: int) -> np.memmap:
        path = self._path(index)
        width = path.stat().st_size // (4 * len(self._used) * self._rows.sequence)
        return np.memmap(path, np.float32, "r", shape=(len(self._used), self._rows.sequence, width))

    def _path(self, index: int) -> Path:
        return self._folder / f"{self._name}-{index}.hidden"


def _slices(count: int) -> Iterator[slice]:
    for start in range(0, count, ROWS):
        yield slice(start, min(start + ROWS, count))


def _used(rows: Rows, stage: Transfer, seed: int) -> np.ndarray:
    """The rows that the stage's steps take."""
    steps = range(length_of(stage, rows))
    return np.unique([row for step in steps for row in rows_of_step(step, stage.batch, len(rows), seed)])


def _finish(target: Path, unit: Unit | None, outcome: Outcome | None) -> None:
    """What a layer ends with, in a file that says that it is finished."""
    tensors = {} if unit is None else {name: parameter.detach().contiguous() for name, parameter in unit.parameters.items()}
    partial = target.with_suffix(".partial")
    save_file(tensors, partial, None if outcome is None else {"outcome": outcome.model_dump_json()})
    partial.rename(target)


def _together(outcomes: list[Outcome]) -> Outcome:
    """The layers' outcomes as that of one stage. Each has seen all of the tokens."""
    return Outcome(
        stage=STAGE,
        steps=max(outcome.steps for outcome in outcomes),
        tokens=max(outcome.tokens for outcome in outcomes),
        seconds=sum(outcome.seconds for outcome in outcomes),
        before={name: loss for outcome in outcomes for name, loss in outcome.before.items()},
        after={name: loss for outcome in outcomes for name, loss in outcome.after.items()},
    )
