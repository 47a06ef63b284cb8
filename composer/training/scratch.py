"""Training from nothing: every parameter of a model learns to predict the next token."""

from __future__ import annotations

import os

from composer.devices import check_device
from composer.spec.recipe import Finetune, Train
from composer.training.finetune import FinetuneCourse, finetune_unit, loss_of
from composer.training.loop import run_stage
from composer.training.processes import take_gpu, together
from composer.training.run import TrainingOptions, TrainingReport, load_student, open_run, prepare
from composer.training.student import Student, stage_from_nothing

STAGE = "train"


def train(student: Student, out: str | os.PathLike[str], options: TrainingOptions) -> TrainingReport:
    """Trains a model by the stage ``train`` of its recipe. Folders, options and errors are those of ``distill``."""
    with together():
        check_device(options.device)
        take_gpu(options.device)
        stage = stage_from_nothing(student)
        run = open_run(student, None, {STAGE: stage}, out, options)
        model, learned = load_student(student, options), _as_finetune(stage)
        prepare(model, options)
        course = FinetuneCourse(model, finetune_unit(model, learned), learned, None)
        with run.in_folder():
            outcome = run_stage(STAGE, course, learned, run.rows, run.held_out, run.setting(run.journal()))
            loss = None if run.held_out is None else loss_of(model.eval(), run.held_out, 1, stage.average)
            return run.finish([outcome], course.units[0].parameters, loss=loss)


def _as_finetune(stage: Train) -> Finetune:
    """The stage as a fine-tuning of the whole trunk and the heads."""
    return Finetune(**stage.model_dump(), trunk=True)
