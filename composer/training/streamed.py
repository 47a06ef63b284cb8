"""Stage 1 for models that are larger than memory: one layer after the other, the hidden states between them in files.

Each layer learns from the same batches, in the same order, as when all of them learn in one pass, so the numbers are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from composer.data.packing import Batch, PackedRows, rows_of_step
from composer.errors import TrainingError
from composer.model.attention import ComposedAttention
from composer.model.hosts import attentions
from composer.spec.recipe import Transfer
from composer.system.devices import give_back
from composer.system.files import failing_as, whole_file
from composer.training.calibration import SOLVED_TOKENS, begin_layer, first_rows, join_starts, rows_to_begin, warn_of_sizes
from composer.training.journal import Journal
from composer.training.loop import Outcome, length_of, run_stage
from composer.training.model_on_disk import StoredModel
from composer.training.projections import solve_after, solve_streamed
from composer.training.rows import warn_or_raise
from composer.training.run import TrainingRun
from composer.training.spill import HiddenBatch, Spill
from composer.training.transfer import AttentionTarget, StopForward, layer_unit, layers_alike, target_of, transfer_loss
from composer.training.unit import Course, Losses, Unit, add_gradients
from composer.weights.record import Start
from composer.weights.stream import as_bytes
from converters.bounded import check_file, reason

STAGE = "transfer"
OUTCOME, DIGEST = "outcome", "sha256"
SAVED = 10
"""Copies of the heads' own parameters on the disk at most: the trained ones, four in a checkpoint (parameters, the best of them,
two moments), four in its successor, and the result."""


class LayerCourse(Course):
    """One layer of a student, with that of its teacher."""

    def __init__(
        self, unit: Unit, student: ComposedAttention, teacher: StoredModel, layer: nn.Module, stage: Transfer, backend: str
    ) -> None:
        self.units = [unit]
        self._student, self._teacher, self._stage, self._backend = student, teacher, stage, backend
        self._layer = layer
        self._attention = next(attention for _, attention in attentions(layer))
        self._alike = layers_alike({0: student}, {0: self._attention})

    def count(self, batch: Batch) -> int:
        return int(batch.valid.sum())

    def compute_gradients(self, batch: Batch, total: float) -> Losses:
        loss = self._loss(batch, total)
        add_gradients(loss)
        return {self.units[0].name: loss.detach()}

    @torch.no_grad()
    def compute_losses(self, batch: Batch, total: float) -> Losses:
        return {self.units[0].name: self._loss(batch, total)}

    def begin(self, run: TrainingRun, name: str, rows: PackedRows) -> Start | None:
        """Set the first values of the layer, and warn if its outputs are far from the teacher's in size. name: the full name of the
        layer's attention."""
        stage, batch = self._stage, rows.batch(rows_to_begin(self._stage, rows, run.options.seed))
        assert isinstance(batch, HiddenBatch)
        target = self._lesson(batch)
        beginning = begin_layer(name, self._student, self._attention, target, stage, self._backend, run.untrained)
        warn_or_raise(warn_of_sizes(beginning.sizes, stage), run.options)
        return beginning.start

    def _loss(self, batch: Batch, total: float) -> Tensor:
        assert isinstance(batch, HiddenBatch)
        target = self._lesson(batch)
        if not self._alike:
            target = replace(target, inputs=None)
        return transfer_loss(self._student, self._attention, target, self._stage, total, self._backend)

    @torch.no_grad()
    def _lesson(self, batch: HiddenBatch) -> AttentionTarget:
        """Return the output of the teacher's attention; the rest of its layer is not computed."""

        targets: list[AttentionTarget] = []

        def on_call(*call: Any) -> None:
            targets.append(target_of(*call))
            raise StopForward

        self._attention.listener = on_call
        try:
            with suppress(StopForward):
                self._layer(batch.hidden, **self._teacher.layer_inputs(batch).options[self._attention.layer])
        finally:
            self._attention.listener = None
        return targets[0]


def disk_needed(run: TrainingRun, stage: Transfer, student: StoredModel) -> int:
    """Return the largest number of bytes of the run folder: checkpoints, and hidden states, of one set of rows for two layers at
    once."""
    spills = _spills(run, stage, student.trunk.hidden_size)
    return sum(spill.bytes for spill in spills) + max(spill.bytes for spill in spills) + SAVED * 4 * student.fresh


def check_disk(run: TrainingRun, stage: Transfer, student: StoredModel) -> None:
    """Print the disk space that the run needs, before it begins. Raise TrainingError if there is less."""
    needed, existing_folder = disk_needed(run, stage, student), next(path for path in run.folder.parents if path.exists())
    # Files of the run folder are free space, too: they count in what is needed, or will be removed.
    free = shutil.disk_usage(existing_folder).free + sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    rows = len(run.rows) if run.held_out is None else len(run.rows) + len(run.held_out)
    needed_space = (
        f"{needed:,} bytes at {run.folder}, for the hidden states of up to {rows:,} rows of {run.rows.sequence:,} tokens and for "
        "checkpoints"
    )
    if needed > free:
        raise TrainingError(
            f"Streaming needs up to {needed_space}, and {free:,} are free. Free some space, choose an --out on a larger disk, or "
            "use fewer steps or rows."
        )
    run.options.tell(f"Streaming needs up to {needed_space}; {free:,} are free.")


def transfer_streamed(
    run: TrainingRun, stage: Transfer, student: StoredModel, teacher: StoredModel, journal: Journal
) -> tuple[Outcome, dict[str, Tensor]]:
    """Run the whole stage. Return its outcome and its final parameters. Finished layers are not trained again. Damaged files of a
    stopped run are computed again, with the same result. Raises TrainingError.
    """
    setting, count = run.setting(journal), teacher.trunk.layers
    spills, trained = _spills(run, stage, teacher.trunk.hidden_size), teacher.with_attention
    finished = [_read_finished(run, index) if index in trained else ({}, None) for index in range(count)]
    for spill in spills:
        wrong = spill.tidy()
        if wrong is not None:
            run.options.tell(f"{wrong}. It is computed again.")
        if spill.at > next((index for index, layer in enumerate(finished) if layer is None), count):
            spill.clear()  # it is ahead of the first layer that is still to be trained
    for index, done in enumerate(finished):
        for spill in spills:
            spill.begin(teacher)
        last = index == count - 1
        if done is None or not (last or all(spill.at > index for spill in spills)):
            teacher_layer = teacher.layer(index)
            if done is None:
                finished[index] = _train(run, stage, index, student, teacher, teacher_layer, spills, journal)
                give_back()
            for spill in () if last else spills:
                spill.advance(index, teacher, teacher_layer, _autocast(setting.autocast))
            del teacher_layer  # before the next one is loaded
            give_back()
    layers = [layer for layer in finished if layer is not None]
    learned = {name: tensor for tensors, _ in layers for name, tensor in tensors.items()}
    outcome = _together([outcome for _, outcome in layers if outcome is not None])
    batch = run.rows.batch(first_rows(run.rows, SOLVED_TOKENS, run.options.seed))
    layers = len(student.with_attention)
    solve = partial(solve_streamed, student, teacher, batch, learned)
    start, solved = solve_after(run, stage, outcome.start, layers, solve)
    return outcome.model_copy(update={"start": start}), learned | solved


Layer = tuple[Mapping[str, Tensor], Outcome | None]
"""The result of a finished layer. No outcome: the layer has nothing to train."""


def _train(
    run: TrainingRun,
    stage: Transfer,
    index: int,
    student: StoredModel,
    teacher: StoredModel,
    layer: nn.Module,
    spills: list[Spill],
    journal: Journal,
) -> Layer:
    """Train one layer, if it has fresh parameters."""
    (name, attention), outcome = student.attention(index), None
    unit = layer_unit(index, name, attention, stage)
    if unit is not None:
        course = LayerCourse(unit, attention, teacher, layer, stage, run.options.backend)
        rows, *held_out = (spill.rows() for spill in spills)
        start = course.begin(run, name, rows)
        outcome = run_stage(f"{STAGE} {index}", course, stage, rows, next(iter(held_out), None), run.setting(journal))
        outcome = outcome.model_copy(update={"start": start})
    parameters = {} if unit is None else unit.parameters
    tensors = {name: parameter.detach().clone().contiguous() for name, parameter in parameters.items()}
    _write_finished(_path(run, index), tensors, outcome)
    return tensors, outcome


def _spills(run: TrainingRun, stage: Transfer, width: int) -> list[Spill]:
    spills = [Spill(run.folder, "rows", run.rows, _rows_of_stage(run.rows, stage, run.options.seed), width)]
    if run.held_out is not None:
        spills.append(Spill(run.folder, "held-out", run.held_out, np.arange(len(run.held_out)), width))
    return spills


def _autocast(dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Autocast as in the training loop: projections compute in ``dtype``, hidden states between layers are float32."""
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype=dtype)


def _rows_of_stage(rows: PackedRows, stage: Transfer, seed: int) -> np.ndarray:
    """Return the rows of the stage's steps, and those that parts start from."""
    steps = [row for step in range(length_of(stage, rows)) for row in rows_of_step(step, stage.batch, len(rows), seed)]
    return np.unique([*steps, *rows_to_begin(stage, rows, seed)])


def _path(run: TrainingRun, index: int) -> Path:
    return run.folder / f"layer-{index}.safetensors"


def _write_finished(target: Path, tensors: dict[str, Tensor], outcome: Outcome | None) -> None:
    """Writes the result of a layer into a file that marks it as finished. Raises TrainingError."""
    metadata = {} if outcome is None else {OUTCOME: outcome.model_dump_json()}
    try:
        with whole_file(target) as partial:
            save_file(tensors, partial, {**metadata, DIGEST: _digest(tensors, metadata.get(OUTCOME))})
    except OSError as error:
        raise TrainingError(
            f"The result of {target.stem} could not be written to {target.parent}: {reason(error)}. Free some space, and continue "
            "with --resume."
        ) from error


def _read_finished(run: TrainingRun, index: int) -> Layer | None:
    """Return the result of a layer, if it is finished. A damaged file is removed: the layer's last checkpoint still has it."""
    path = _path(run, index)
    if not os.path.lexists(path):
        return None
    try:
        check_file(path)
        with safe_open(path, "pt") as stored:
            tensors, metadata = {name: stored.get_tensor(name) for name in stored.keys()}, stored.metadata() or {}  # noqa: SIM118 - no dict
        if metadata.get(DIGEST) == _digest(tensors, metadata.get(OUTCOME)):
            return tensors, Outcome.model_validate_json(metadata[OUTCOME], strict=True) if OUTCOME in metadata else None
    except (OSError, SafetensorError, ValueError):
        pass
    run.options.tell(f"{path} is damaged. It is computed again from the layer's last checkpoint.")
    with failing_as(TrainingError, f"{path} cannot be removed", "Remove it, and continue with --resume."):
        path.unlink()
    return None


def _digest(tensors: Mapping[str, Tensor], outcome: str | None) -> str:
    """SHA-256 of the tensors' names, types and numbers, and of the outcome, as hexadecimal digits."""
    digest = hashlib.sha256(json.dumps(outcome).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(as_bytes(tensor))
    return digest.hexdigest()


def _together(outcomes: list[Outcome]) -> Outcome:
    """Return the outcomes of the layers as one of the stage. Every layer has seen all tokens, so they are not added up."""
    return Outcome(
        stage=STAGE,
        steps=max(outcome.steps for outcome in outcomes),
        tokens=max(outcome.tokens for outcome in outcomes),
        seconds=sum(outcome.seconds for outcome in outcomes),
        before={name: loss for outcome in outcomes for name, loss in outcome.before.items()},
        after={name: loss for outcome in outcomes for name, loss in outcome.after.items()},
        start=join_starts([outcome.start for outcome in outcomes if outcome.start is not None]),
    )
