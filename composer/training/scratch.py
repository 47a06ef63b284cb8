"""Training from nothing: every parameter of a model learns to predict the next token."""

from __future__ import annotations

import os

from composer.devices import check_device
from composer.spec.overrides import Overrides
from composer.spec.recipe import Finetune, Recipe, Train
from composer.training.finetune import FinetuneCourse, finetune_unit, loss_of
from composer.training.journal import Journal
from composer.training.loop import run_stage
from composer.training.processes import take_gpu, together
from composer.training.run import TrainingOptions, TrainingReport, load_student, open_run, prepare
from composer.training.student import read_student, stage_from_nothing

STAGE = "train"


def train(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: TrainingOptions,
    *,
    overrides: Overrides = (),
    recipe: Recipe | None = None,
) -> TrainingReport:
    """Trains the model of a folder as its recipe's ``train`` says; else as ``distill``. Raises the same."""
    with together():
        check_device(options.device)
        take_gpu(options.device)
        described = read_student(model, overrides, recipe)
        stage = stage_from_nothing(described)
        run = open_run(described, None, {STAGE: stage}, out, options)
        student, learned = load_student(described, options), _as_finetune(stage)
        prepare(student, options)
        course = FinetuneCourse(student, finetune_unit(student, learned), learned, None)
        with run.in_folder():
            outcome = run_stage(STAGE, course, learned, run.rows, run.held_out, run.setting(Journal(run.folder)))
            loss = None if run.held_out is None else loss_of(student.eval(), run.held_out, 1, stage.average)
            return run.finish([outcome], course.units[0].parameters, loss=loss)


def _as_finetune(stage: Train) -> Finetune:
    """The stage as a fine-tuning of the whole trunk and the heads."""
    return Finetune(**stage.model_dump(), trunk=True)
