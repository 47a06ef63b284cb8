"""Distillation of a built model from its teacher by its recipe, and training from random weights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from composer.building.rewrite import Adapter
from composer.errors import ComposerError, TrainingError
from composer.model.hosts import attentions
from composer.model.modeling import ComposedForCausalLM
from composer.reporting.words import plural
from composer.spec.inherit import short_path
from composer.spec.recipe import Finetune, Stage, Train, Transfer
from composer.system.devices import check_device
from composer.training import checkpoint
from composer.training.calibration import SOLVED_TOKENS, begin_transfer, first_rows, warn_of_sizes
from composer.training.finetune import FinetuneCourse, adapter_of, add_adapters, finetune_unit, fold_adapters, loss_of
from composer.training.loop import Outcome, counter_of, length_of, run_stage
from composer.training.model_on_disk import StoredModel
from composer.training.processes import count, gather_shards, is_first, loading_device, process_group, shard, take_gpu
from composer.training.projections import check_tokens, solve_after, solve_in_memory
from composer.training.rows import warn_or_raise
from composer.training.run import TrainingOptions, TrainingReport, TrainingRun, load_student, open_run, prepare, read_finished_run
from composer.training.stored_logits import TaughtRows, stored_loss
from composer.training.streamed import STAGE, check_disk, transfer_streamed
from composer.training.student import CALIBRATE, Student, Which, learns_from_teacher, stage_from_nothing, stages_of, start_of
from composer.training.teacher import Teacher, open_teacher
from composer.training.transfer import ModelTransferCourse, TransferCourse, computing_alone
from composer.training.unit import Course
from composer.weights.record import Start

EVALUATED = 4
"""The most held-out rows that a start without steps is evaluated on."""
PARTS = "parts"
"""The start of the heads' parts, in reports of progress."""
TRAIN = "train"
"""The name of the stage that trains a model from nothing."""


def distill(student: Student, out: str | os.PathLike[str], options: TrainingOptions, *, which: Which = "all") -> TrainingReport:
    """Train a model, and write the result to ``out``, whole or not at all.

    Until then, log and checkpoints are in ``OUT.run``, from where ``options.resume`` continues to the same numbers.
    which: the stages of its recipe to run. Raises TrainingError, DataError, SpecError and BuildError.
    """
    with process_group():
        check_device(options.device)
        take_gpu(options.device)
        stages = stages_of(student.record, student.recipe, which)
        if (finished := read_finished_run(student, stages, out, options)) is not None:
            return finished
        if options.stream:
            _check_streamed(stages, options)
        teacher = None if options.teacher_logits is not None else _teacher(student, stages, options)
        if options.teacher_logits is not None:
            _check_stored(stages, options)
        run = open_run(student, teacher, stages, out, options)
        if is_first():
            options.tell(_plan_in_words(run))
        return _stream(run) if options.stream else _in_memory(run)


def calibrate(student: Student, out: str | os.PathLike[str], options: TrainingOptions) -> TrainingReport:
    """Start a model near its teacher, and write it to ``out``, whole or not at all. No step is trained. Raises as ``distill``."""
    with process_group():
        check_device(options.device)
        take_gpu(options.device)
        stage, recipe = start_of(student, force=options.force), student.recipe
        options = replace(options, held_out_rows=options.held_out_rows or EVALUATED)
        if recipe.sequence is not None and recipe.sequence > student.record.trunk["max_positions"]:
            # The rows of a recipe for larger sources. Those of a start may have any length.
            student = replace(student, recipe=recipe.model_copy(update={"sequence": None}))
        teacher = open_teacher(student.record, options.teacher)
        run = open_run(student, teacher, {CALIBRATE: stage}, out, options)
        taught, learner = teacher.load(loading_device(options.device), options.backend), load_student(student, options)
        began = time.monotonic()
        advance = counter_of(PARTS, len(list(attentions(learner))), options.watch)
        start, solved = _solve(run, stage, learner, taught, _start_transfer(run, stage, learner, taught, advance))
        begun = () if start is None else start.calibrated
        parts = {name: tensor for name, tensor in learner.named_parameters() if name.rpartition(".")[0] in begun}
        layers = () if start is None else start.solved
        outcome = Outcome(
            stage=CALIBRATE,
            steps=0,
            tokens=0,
            seconds=time.monotonic() - began,
            before={f"layer {layer.layer}": layer.before for layer in layers},
            after={f"layer {layer.layer}": layer.after for layer in layers},
            start=start,
        )
        loss, teacher_loss = (
            None if run.held_out is None else loss_of(model.eval(), run.held_out, 1, "tokens") for model in (learner, taught)
        )
        with run.in_folder():  # an error leaves none behind, as nothing can be continued
            return run.finish([outcome], parts | solved, model=learner, loss=loss, teacher_loss=teacher_loss)


def _plan_in_words(run: TrainingRun) -> str:
    """Return the stages of a run in words, and the stages that the recipe lacks."""
    stages = " and ".join(
        f"{name} ({plural(length_of(stage, run.rows), 'step')} of {stage.batch * run.rows.sequence:,} tokens)"
        for name, stage in run.stages.items()
    )
    for name in ("transfer", "finetune"):
        if getattr(run.student.recipe, name) is None:
            return f"Stages: {stages}. The recipe has no {name}: --set recipe.{name}.lr=… --set recipe.{name}.steps=… adds it."
    return f"Stages: {stages}."


def _teacher(student: Student, stages: Mapping[str, Stage], options: TrainingOptions) -> Teacher | None:
    """Return the teacher; None, with a message to the user, where the student's source is missing and no stage learns from it."""
    by_logits = not any(isinstance(stage, Transfer) for stage in stages.values())
    try:
        return open_teacher(student.record, options.teacher, student=student.source.folder if by_logits else None)
    except ComposerError as error:
        if learns_from_teacher(stages) or options.teacher is not None or student.record.source is None:
            raise
        if is_first():
            options.tell(f"{error} No stage needs the teacher. Its held-out loss is left out of the report.")
        return None


def _in_memory(run: TrainingRun) -> TrainingReport:
    """Run all stages with the student in memory. The teacher is in memory while a stage or the report needs it."""
    stages, options = run.stages, run.options
    finetune = stages.get("finetune")

    def held_out_loss(model: ComposedForCausalLM) -> float | None:
        if not isinstance(finetune, Finetune) or run.held_out is None:
            return None
        return loss_of(model.eval(), run.held_out, 1, finetune.average)

    teacher, teacher_loss, start = None, None, None
    if isinstance(run.held_out, TaughtRows) and isinstance(finetune, Finetune):
        teacher_loss = stored_loss(run.held_out, finetune.average)
    if run.teacher is not None and (learns_from_teacher(stages) or (finetune is not None and run.held_out is not None)):
        teacher = run.teacher.load(loading_device(options.device), options.backend)
    if teacher is not None and not learns_from_teacher(stages):
        shard(teacher, computing_alone(teacher), options.device)
        teacher_loss, teacher = held_out_loss(teacher), None
    student = load_student(run.student, options)
    transfer = stages.get(STAGE)
    if teacher is not None and isinstance(transfer, Transfer):  # while both are whole
        start = _start_transfer(run, transfer, student, teacher)
    with run.in_folder() as journal:
        if teacher is not None:
            shard(teacher, computing_alone(teacher), options.device)
            teacher_loss = held_out_loss(teacher)
        setting, outcomes, learned, remaining = run.setting(journal), [], {}, dict(stages)
        for name, stage in stages.items():
            if options.finish and checkpoint.newest(run.folder / name) is None:
                break
            if learned and count() > 1:
                student = _reload_student(run, learned)
            course: Course | None = _course(stage, student, teacher, options)
            outcome = run_stage(name, course, stage, run.rows, run.held_out, setting)
            learned |= {name: parameter for unit in course.units for name, parameter in unit.parameters.items()}
            if isinstance(stage, Transfer):
                assert teacher is not None, "it is kept for stages that learn from it"
                student = _reload_student(run, learned) if count() > 1 else student
                start, solved = _solve(run, stage, student, teacher, start)
                outcome, learned = outcome.model_copy(update={"start": start}), learned | solved
            outcomes.append(outcome)
            del remaining[name]
            course, teacher = None, teacher if learns_from_teacher(remaining) else None
        _check_begun(run, outcomes)
        return run.finish(
            outcomes,
            _find_changed(learned, student, merge=options.merge),
            model=student,
            adapter=None if "finetune" in remaining else _adapter(stages, student, merge=options.merge),
            loss=held_out_loss(student),
            teacher_loss=teacher_loss,
        )


def _start_transfer(
    run: TrainingRun,
    stage: Transfer,
    student: ComposedForCausalLM,
    teacher: ComposedForCausalLM,
    advance: Callable[[], None] = lambda: None,
) -> Start | None:
    """Set the first values of the heads, and warn if their outputs are far from the teacher's in size. advance: called after each
    layer."""
    check_tokens(run, stage, *next(attentions(student)))
    beginning = begin_transfer(student, teacher, stage, run.rows, run.options.seed, run.untrained, advance)
    warn_or_raise(warn_of_sizes(beginning.sizes, stage), run.options)
    return beginning.start


def _solve(
    run: TrainingRun, stage: Transfer, student: ComposedForCausalLM, teacher: ComposedForCausalLM, start: Start | None
) -> tuple[Start | None, dict[str, Tensor]]:
    """Solve the output projections of a student with its heads as they are. Return the report of its start, and the projections."""
    batch = run.rows.batch(first_rows(run.rows, SOLVED_TOKENS, run.options.seed)).to(next(student.parameters()).device)
    return solve_after(run, stage, start, len(list(attentions(student))), partial(solve_in_memory, student, teacher, batch))


def _check_begun(run: TrainingRun, begun: Sequence[object]) -> None:
    """Raise TrainingError where no stage has a checkpoint to make a model of."""
    if not begun:
        raise TrainingError(f"--finish: {short_path(run.folder)} has no checkpoint yet. Train on with --resume.")


def _reload_student(run: TrainingRun, learned: Mapping[str, Tensor]) -> ComposedForCausalLM:
    """Reload the student, with its trained parameters: stages shard differently, and FSDP cannot reshard a model."""
    student = load_student(run.student, run.options)
    with torch.no_grad():
        for name, tensor in gather_shards(learned).items():
            student.get_parameter(name).copy_(tensor)
    return student


def _check_stored(stages: Mapping[str, Stage], options: TrainingOptions) -> None:
    """Raise TrainingError if a run cannot learn from stored logits."""
    if options.teacher is not None:
        raise TrainingError("--teacher-logits replaces --teacher: leave one of the two out.")
    stage = next(iter(stages.values()))
    if len(stages) != 1 or not isinstance(stage, Finetune):
        raise TrainingError("--teacher-logits: attention transfer needs the teacher itself. Set --stage finetune.")
    if not stage.distill:
        raise TrainingError("--teacher-logits: the recipe does not learn from logits. Add --set recipe.finetune.distill=1")


def _check_streamed(stages: Mapping[str, Stage], options: TrainingOptions) -> None:
    if options.finish:
        raise TrainingError("--finish: with --stream, layers learn one after the other, so later ones are untrained. Use --resume.")
    if count() > 1:
        raise TrainingError(
            f"--stream is for one process, and torchrun has started {count()}: leave --stream out, since sharding "
            "already splits the models, or run it without torchrun."
        )
    if list(stages) != [STAGE]:
        raise TrainingError("--stream supports attention transfer only: set --stage transfer, and fine-tune its result afterwards.")
    stage = stages[STAGE]
    if isinstance(stage, Transfer) and stage.at == "model":
        raise TrainingError(
            "--stream holds one layer at a time, and recipe.transfer.at: model needs all of them at once: leave --stream out, or "
            "pass --set recipe.transfer.at=heads. Less memory: --gradient-checkpointing"
        )
    if options.device != "cpu":
        raise TrainingError(f"--stream runs on the CPU only: leave --device {options.device} or --stream out.")


def _stream(run: TrainingRun) -> TrainingReport:
    """Attention transfer alone, with one layer in memory at a time."""
    assert run.teacher is not None, "transfer opens a teacher"
    options = run.options
    stage, student, teacher = run.stages[STAGE], StoredModel(run.student.source), StoredModel(run.teacher.source, options.backend)
    assert isinstance(stage, Transfer), "only transfer is streamed"
    check_tokens(run, stage, *student.attention(min(student.with_attention)))
    check_disk(run, stage, student)
    with run.in_folder() as journal:
        outcome, learned = transfer_streamed(run, stage, student, teacher, journal)
        return run.finish([outcome], learned)


def _course(stage: Stage, student: ComposedForCausalLM, teacher: ComposedForCausalLM | None, options: TrainingOptions) -> Course:
    if isinstance(stage, Transfer):
        assert teacher is not None, "it is kept for stages that learn from it"
        if stage.at == "model":
            prepare(student, options)
            return ModelTransferCourse(student, teacher, stage)
        shard(student, computing_alone(student), options.device)
        return TransferCourse(student.eval(), teacher, stage)
    assert isinstance(stage, Finetune), "there are two"
    if stage.lora is not None:
        add_adapters(student, stage.lora, options.seed)
    prepare(student, options)
    return FinetuneCourse(student, finetune_unit(student, stage), stage, teacher if stage.needs_teacher else None)


def _adapter(stages: Mapping[str, Stage], student: ComposedForCausalLM, *, merge: bool) -> Adapter | None:
    stage = stages.get("finetune")
    if not isinstance(stage, Finetune) or stage.lora is None or merge:
        return None
    return adapter_of(student, stage.lora)


def _find_changed(learned: dict[str, Tensor], student: ComposedForCausalLM, *, merge: bool) -> dict[str, Tensor]:
    """Return the parameters that training has changed, adapters left out, by their names in the model."""
    weights = {name.replace(".base_layer.", "."): tensor for name, tensor in learned.items() if ".lora_" not in name}
    return weights | (fold_adapters(student) if merge else {})


def train(student: Student, out: str | os.PathLike[str], options: TrainingOptions) -> TrainingReport:
    """Trains a model by the stage ``train`` of its recipe. Folders, options and errors are those of ``distill``."""
    with process_group():
        check_device(options.device)
        take_gpu(options.device)
        stage = stage_from_nothing(student)
        if (finished := read_finished_run(student, {TRAIN: stage}, out, options)) is not None:
            return finished
        run = open_run(student, None, {TRAIN: stage}, out, options)
        model, learned = load_student(student, options), _as_finetune(stage)
        prepare(model, options)
        course = FinetuneCourse(model, finetune_unit(model, learned), learned, None, from_nothing=True)
        with run.in_folder() as journal:
            _check_begun(run, [] if options.finish and checkpoint.newest(run.folder / TRAIN) is None else [TRAIN])
            outcome = run_stage(TRAIN, course, learned, run.rows, run.held_out, run.setting(journal))
            loss = None if run.held_out is None else loss_of(model.eval(), run.held_out, 1, stage.average)
            return run.finish([outcome], course.units[0].parameters, loss=loss)


def _as_finetune(stage: Train) -> Finetune:
    """Return the stage as a fine-tuning of the whole trunk and the heads."""
    return Finetune(**stage.model_dump(), trunk=True)
