"""A training run of any stages: its inputs, its run folder, and the result that it writes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from blocks.part import Closed
from composer.building.rewrite import Adapter, Trained, write_trained
from composer.data.packing import PackedRows
from composer.errors import TrainingError
from composer.graph.lowering import check_backend
from composer.model.hosts import layers_of
from composer.model.modeling import ComposedForCausalLM
from composer.reporting.tables import Readable, Table, View
from composer.reporting.words import plural, quantity
from composer.runs.identity import fingerprint
from composer.spec.inherit import short_path
from composer.spec.recipe import Finetune, Stage
from composer.spec.resolve import graphs_of
from composer.training.finetune import warn_if_worse_than_uniform
from composer.training.folder import STORE, DataReferences, RunSettings, TeacherFingerprint, check_run_folder, run_folder
from composer.training.journal import CURVE, LOG, Journal, draw
from composer.training.loop import Outcome, StageSetting
from composer.training.options import TrainingOptions
from composer.training.processes import by_first, gather_shards, is_first, loading_device, shard
from composer.training.rows import (
    bound_held_out,
    rows_of,
    too_few,
    warn_if_nothing_learned,
    warn_if_unwritable,
    warn_or_raise,
    within_windows,
)
from composer.training.stored_logits import StoredLogits, TaughtRows
from composer.training.student import CALIBRATE, Student, check_held_out, learns_from_teacher
from composer.training.teacher import Teacher, tokens_of
from composer.training.tracking import Tracker, tracking
from composer.weights.config import check_positions
from composer.weights.load import load_model
from composer.weights.output import check_output
from composer.weights.record import HeldOut, TrainedStage, adapter_in, read_record, steps_in_words

PART = 2**38
"""Tokens times parameters that a CPU processes at once: seconds of a core."""


class TrainingReport(Readable, Closed):
    """The result of a run. loss, teacher_loss: next-token losses on the held-out rows, in nats, averaged over tokens or rows by the
    recipe. None if nothing is held out, or if no stage learns the next token."""

    out: Path
    stages: tuple[Outcome, ...]
    loss: float | None
    teacher_loss: float | None
    data: dict[str, Any]

    def view(self) -> View:
        table = losses(self)
        stages = " and ".join(outcome.stage for outcome in self.stages)
        return View(f"{short_path(self.out)}, after {stages}", (table,) if table.rows else (), remarks(self))


@dataclass(frozen=True)
class TrainingRun:
    """The state that all stages of a run share. held_out: None where no rows are held out. folder: the run folder, which is removed
    once the result is written."""

    student: Student
    teacher: Teacher | None
    stages: Mapping[str, Stage]
    out: Path
    options: TrainingOptions
    rows: PackedRows
    held_out: PackedRows | None
    folder: Path
    settings: RunSettings

    @property
    def untrained(self) -> frozenset[str]:
        """The names of the student's parameters that no run has trained."""
        return frozenset(self.student.record.untrained)

    @property
    def vocabulary(self) -> int:
        """The number of tokens that the student predicts."""
        return self.student.record.trunk["vocabulary_size"]

    @contextmanager
    def in_folder(self) -> Iterator[Journal]:
        """Make the run's folder, lock it against other runs until the end of the block, and yield its log. Raises TrainingError."""
        with ExitStack() as stack:
            trackers: list[Tracker] = []
            by_first(lambda: self._take(stack, trackers))
            yield Journal(self.folder, self.options.again, trackers)

    def _take(self, stack: ExitStack, trackers: list[Tracker]) -> None:
        stack.enter_context(run_folder(self.folder, self.settings, resume=self.options.takes_up, force=self.options.force))
        check_output(self.out, self.student.source, force=self.options.force)  # again: another run may have written there meanwhile
        if not self.options.finish:  # which trains nothing
            config = {"model": self.student.record.resolved.name, "recipe": self.settings.recipe, "seed": self.options.seed}
            trackers += stack.enter_context(tracking(self.options.track, self.folder, self.out.name, config, self.options.again))

    def setting(self, journal: Journal) -> StageSetting:
        """Return the settings of its stages."""
        setting = setting_of(self.options, self.folder, journal, self._part_tokens)
        return setting if is_first() else replace(setting, watch=None, tell=lambda _: None)

    @property
    def _part_tokens(self) -> int | None:
        """The most tokens that a CPU processes before it can report and stop."""
        numbers = sum(math.prod(entry.shape) for entry in self.student.record.plan.parameters.values())
        return max(1, PART // numbers) if self.options.device == "cpu" else None

    def finish(
        self,
        outcomes: Sequence[Outcome],
        changed: Mapping[str, Tensor],
        *,
        model: ComposedForCausalLM | None = None,
        adapter: Adapter | None = None,
        loss: float | None = None,
        teacher_loss: float | None = None,
    ) -> TrainingReport:
        """Write the result, whole or not at all, and remove the run folder. Raises BuildError, and TrainingError if the run has
        learned nothing and ``strict`` makes that an error.

        changed: parameters by their names in ``model``. None: all of them are heads' own, or the model is one of this project.
        """
        warn_or_raise(warn_if_nothing_learned(outcomes, self.stages, self.rows), self.options)
        warn_or_raise(warn_if_worse_than_uniform(loss, self.vocabulary, "At the end"), self.options)
        changed = gather_shards(changed, for_first=True)
        if adapter is not None:
            adapter = replace(adapter, tensors=gather_shards(adapter.tensors, for_first=True))
        data = self.rows.report.model_dump(mode="json") if self.rows.report is not None else {}
        records = tuple(
            TrainedStage(
                recipe=self.stages[outcome.stage].model_dump(
                    mode="json", include={"start"} if outcome.stage == CALIBRATE else None
                ),
                data=data,
                held_out=_held_out(self.options),
                bfloat16=self.options.bfloat16,
                teacher=self._teacher_reference(),
                seed=self.options.seed,
                backend=self.options.backend,
                **outcome.model_dump(),
            )
            for outcome in outcomes
        )
        logs = {name: self.folder / name for name in (LOG, CURVE)} if any(outcome.steps for outcome in outcomes) else {}
        by_first(lambda: self._write(Trained(changed, adapter, records, logs, model)))
        return TrainingReport(out=self.out, stages=tuple(outcomes), loss=loss, teacher_loss=teacher_loss, data=data)

    def _teacher_reference(self) -> str | None:
        """Return the teacher as the user named it, here or for the stored logits."""
        if isinstance(self.rows, TaughtRows) and self.rows.stored is not None:
            return self.rows.stored.record.teacher
        return None if self.teacher is None else self.teacher.reference

    def _write(self, trained: Trained) -> None:
        if trained.documents:
            draw(self.folder / LOG, self.folder / CURVE, self.options.again)
        write_trained(self.student.source.folder, self.out, trained, force=self.options.force)
        if trained.stages[-1].planned is None and len(trained.stages) == len(self.stages):
            STORE.remove(self.folder)
        elif is_first():
            self.options.tell(f"The run is kept in {short_path(self.folder)}. To train on: the same command with --resume --force.")


def setting_of(options: TrainingOptions, folder: Path, journal: Journal, part_tokens: int | None = None) -> StageSetting:
    """Return the settings of stages in this folder."""
    return StageSetting(
        folder=folder,
        journal=journal,
        seed=options.seed,
        checkpoint_seconds=options.checkpoint_seconds,
        autocast=torch.bfloat16 if options.bfloat16 else None,
        part_tokens=part_tokens,
        watch=options.watch,
        tell=options.tell,
        warn=lambda warnings: warn_or_raise(warnings, options),
        again=options.again,
        finish=options.finish,
    )


def read_finished_run(
    student: Student, stages: Mapping[str, Stage], out: str | os.PathLike[str], options: TrainingOptions
) -> TrainingReport | None:
    """Return the report of a finished run of these stages that is to be continued, from the record of its result; None if there is
    none. Next-token losses are not in records.
    """
    target = Path(out).expanduser()
    record = read_record(target) if options.takes_up and not options.force and target.is_dir() else None
    if record is None or (options.merge and adapter_in(record) is not None):
        return None
    before, done = student.record.training, record.training[len(student.record.training) :]
    of_student = (record.spec_hash, record.source, record.seed, record.training[: len(before)])
    if of_student != (student.record.spec_hash, student.record.source, student.record.seed, before):
        return None
    reached = {stage.stage: stage.recipe for stage in done if stage.planned is None}
    if reached != {name: stage.model_dump(mode="json") for name, stage in stages.items()}:
        return None
    data = done[0].data
    named = tuple(reference["reference"] for reference in data.get("references", ()))
    wanted = (options.data, _held_out(options), options.bfloat16, options.seed, options.backend)
    if any((named, stage.held_out, stage.bfloat16, stage.seed, stage.backend) != wanted for stage in done):
        return None
    if options.teacher is not None and done[0].teacher != options.teacher:
        return None
    if is_first():
        options.tell(f"This run has finished, and its result is in {short_path(target)}. To train again, use --force.")
    return TrainingReport(
        out=target,
        stages=tuple(Outcome(**{name: getattr(stage, name) for name in Outcome.model_fields}) for stage in done),
        loss=None,
        teacher_loss=None,
        data=data,
    )


def _held_out(options: TrainingOptions) -> HeldOut:
    """Return what a record keeps of the options that choose held-out rows."""
    return HeldOut(references=options.held_out, share=options.share, rows=options.held_out_rows)


def open_run(
    student: Student, teacher: Teacher | None, stages: Mapping[str, Stage], out: str | os.PathLike[str], options: TrainingOptions
) -> TrainingRun:
    """Read the inputs of a run, and check that it can start or continue. Writes nothing.

    Raises TrainingError, DataError and BuildError.
    """
    check_backend(options.backend, graphs_of(student.record.resolved))
    target = Path(out).expanduser()
    check_held_out(stages, held_out=bool(options.held_out or options.share))
    check_output(target, student.source, force=options.force)
    folder = target.parent / f"{target.name}.run"
    by_first(lambda: check_run_folder(folder, resume=options.takes_up, force=options.force))
    rows, held_out = rows_of(student, options)
    if teacher is not None:
        check_positions(
            teacher.source.trunk, f"The teacher {teacher.reference}", rows.sequence, "set recipe.sequence to at most", TrainingError
        )
    warn_or_raise(warn_if_unwritable(student.source.folder, rows), options)
    warn_or_raise(too_few(stages, rows), options)
    if held_out is not None:
        held_out = bound_held_out(held_out, stages, rows, options)
    warn_or_raise(within_windows(student.record.resolved, rows, held_out, student.recipe.rows), options)
    references = DataReferences(
        data=tuple(options.data), held_out=tuple(options.held_out), share=options.share, held_out_rows=options.held_out_rows
    )
    stored = None
    if options.teacher_logits is not None:
        stored, rows, held_out = _add_logits(options.teacher_logits, student, stages, rows, held_out, references, options.seed)
    settings = RunSettings(
        model=fingerprint(student.source),
        teacher=_teacher(teacher, stages),
        recipe=student.recipe.model_dump(mode="json"),
        stage=tuple(stages),
        data=rows.hash,
        held_out_data=None if held_out is None else held_out.hash,
        seed=options.seed,
        device=options.device.partition(":")[0],
        autocast=options.bfloat16,
        backend=options.backend,
        stream=options.stream,
        references=references,
        teacher_logits=None if stored is None else stored.hash,
    )
    if options.takes_up:
        STORE.check_same(folder, settings)
    return TrainingRun(student, teacher, stages, target, options, rows, held_out, folder, settings)


def _add_logits(
    folder: Path,
    student: Student,
    stages: Mapping[str, Stage],
    rows: PackedRows,
    held_out: PackedRows | None,
    references: DataReferences,
    seed: int,
) -> tuple[StoredLogits, PackedRows, PackedRows | None]:
    """Return the stored logits of a folder, and the rows with them. Raises TrainingError if they do not fit the student or the
    rows."""
    stored = StoredLogits(folder)
    (finetune,) = stages.values()
    assert isinstance(finetune, Finetune), "other stages do not learn from logits"
    stored.check_student(tokens_of(student.source.folder), finetune.temperature)
    taught = stored.add_logits(rows, "to learn from", references, seed)
    judged = None if held_out is None else stored.add_logits(held_out, "that are held out", references, seed)
    return stored, taught, judged


def _teacher(teacher: Teacher | None, stages: Mapping[str, Stage]) -> TeacherFingerprint | None:
    """Return the teacher's identity; None where no stage learns from it, so that the run's numbers do not depend on it."""
    if teacher is None or not learns_from_teacher(stages):
        return None
    return TeacherFingerprint(folder=str(teacher.source.folder), **dict(fingerprint(teacher.source)))


def load_student(student: Student, options: TrainingOptions) -> ComposedForCausalLM:
    """Return the model to train, in float32. Raises SourceError."""
    loaded = load_model(student.source.folder, "float32", loading_device(options.device), options.backend)
    assert isinstance(loaded, ComposedForCausalLM), "a folder with a record holds a composed model"
    return loaded


def prepare(student: ComposedForCausalLM, options: TrainingOptions) -> None:
    """Prepare a model to be trained as a whole, in place: its layers are sharded, and checkpointed if the options set it."""
    if options.gradient_checkpointing:
        # transformers renamed it in 5.2x. The reentrant form would lose gradients if nothing below a layer learns.
        enable = getattr(student, "activation_checkpointing_enable", student.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    shard(student, layers_of(student.base)[1], options.device)


def losses(report: TrainingReport) -> Table:
    """Return the held-out losses, a row for each unit of a stage; empty where nothing was held out."""
    rows = tuple(
        (outcome.stage, name, f"{before:.4g}", f"{outcome.after[name]:.4g}")
        for outcome in report.stages
        for name, before in outcome.before.items()
    )
    return Table("", ("stage", "of", "before", "after"), rows, range(2, 4))


def remarks(report: TrainingReport) -> tuple[str, ...]:
    """Time and tokens of each stage, the losses of student and teacher, and the place of the log."""
    lines = [
        f"{outcome.stage}: {steps_in_words(outcome)}, {quantity(outcome.tokens)} tokens, {outcome.seconds:.0f} s"
        for outcome in report.stages
        if outcome.steps
    ]
    for start in (outcome.start for outcome in report.stages):
        if start is not None and (start.calibrated or start.kept):
            lines.append(f"Calibrated from the teacher: {_parts(start.calibrated)}.")
            lines += [f"Not calibrated: {_parts(start.kept)}."] if start.kept else []
        if start is not None and start.solved:
            changed = [layer for layer in start.solved if layer.after < layer.before]
            before, after = (fmean(getattr(layer, when) for layer in start.solved) for when in ("before", "after"))
            layers = plural(len(start.solved), "layer")
            lines += [
                f"Output projections solved: {len(changed):,} of {layers}. The start took {start.seconds:.0f} s.",
                f"Mean error on rows that were left out: {before:.3g}, and {after:.3g} now.",
            ]
    if report.loss is not None and report.teacher_loss is not None:
        lines.append(f"Held-out loss: {report.loss:.4g} nats per token (teacher: {report.teacher_loss:.4g}).")
    judged = any(outcome.before for outcome in report.stages)
    if not judged:
        lines.append("No rows were held out, so nothing was evaluated: the result is the model after the last step.")
    if any(outcome.steps for outcome in report.stages):
        lines.append(f"{'Losses are of held-out rows. ' if judged else ''}Log and curve: {short_path(report.out / 'training')}")
    return tuple(lines)


def _parts(names: tuple[str, ...]) -> str:
    """Return the names of parts, each by its last two components, once for all layers."""
    return ", ".join(dict.fromkeys(".".join(name.split(".")[-2:]) for name in names)) or "none"
