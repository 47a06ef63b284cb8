"""A model built from nothing learns the next token, every parameter of it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from composer.errors import TrainingError
from composer.spec.recipe import Finetune, Recipe, Train
from composer.training.finetune import FinetuneCourse, finetune_unit
from composer.training.journal import Journal
from composer.training.loop import run_stage
from composer.training.run import Options, RunReport, open_run, open_student
from composer.weights.record import Record

STAGE = "train"


def train(
    model: str | os.PathLike[str], out: str | os.PathLike[str], options: Options, *, overrides: Sequence[str] = ()
) -> RunReport:
    """Trains the model of a folder as its recipe's ``train`` says; else as ``distill``. Raises the same."""
    run = open_run(model, out, options, overrides, _check)
    assert run.recipe.train is not None, "it has been looked at"
    stage, student = _as_finetune(run.recipe.train), open_student(run)
    course = FinetuneCourse(student, finetune_unit(student, stage), stage, None)
    journal = Journal(run.folder)
    try:
        outcome = run_stage(STAGE, course, stage, run.rows, run.held_out, run.setting(journal))
    finally:
        journal.close()
    return run.finish([outcome], {STAGE: run.recipe.train}, course.units[0].parameters)


def _check(record: Record, recipe: Recipe) -> None:
    if recipe.train is None:
        raise TrainingError(
            f'The recipe of "{record.resolved.name}" has no train. Say one: --set recipe.train.lr=… --set recipe.train.steps=…, or '
            "learn from a teacher: compose distill"
        )


def _as_finetune(stage: Train) -> Finetune:
    """The same, with all of the trunk learning the next token beside the heads."""
    return Finetune(**stage.model_dump(), trunk=True)
