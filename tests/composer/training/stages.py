"""Two short stages that run in a folder from the same start."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from composer.spec.recipe import Finetune, Stage, Transfer
from composer.training.finetune import FinetuneCourse, add_adapters, finetune_unit
from composer.training.journal import LOG, Journal
from composer.training.loop import Outcome, StageSetting, StepProgress, run_stage
from composer.training.transfer import TransferCourse
from composer.training.unit import Course
from tests.composer.training.runs import rows_of, small_llama, student_of, teacher_of

ROWS, HELD_OUT = rows_of(8, seed=1, lengths=(5, 9, 2, 9, 7, 11)), rows_of(8, seed=2, lengths=(9, 6))
STAGES: dict[str, Stage] = {
    "transfer": Transfer(lr=0.02, steps=6, batch=2, accumulate=2, evaluate=2, schedule="plateau", patience=2, warmup=2),
    "finetune": Finetune.model_validate(
        {"lr": 0.02, "steps": 6, "batch": 2, "evaluate": 2, "schedule": "cosine", "lora": {"rank": 2}, "distill": 0.5}
    ),
}


class StoppedError(Exception):
    """An error that ends the run as a kill would."""


def course_of(stage: Stage) -> Course:
    """Return a course in float32 from the same start."""
    source = small_llama().float()
    student, teacher = student_of(source), teacher_of(source)
    if isinstance(stage, Transfer):
        return TransferCourse(student, teacher, stage)
    assert isinstance(stage, Finetune)
    if stage.lora is not None:
        add_adapters(student, stage.lora, 0)
    return FinetuneCourse(student, finetune_unit(student, stage), stage, teacher)


def run(folder: Path, stage: Stage, **options: Any) -> tuple[Outcome, dict[str, torch.Tensor]]:
    """Run a stage in a folder. Returns its result and all parameters at its end."""
    course, name = course_of(stage), type(stage).__name__.lower()
    rows, held_out = options.pop("rows", ROWS), options.pop("held_out", HELD_OUT)
    outcome = run_stage(name, course, stage, rows, held_out, StageSetting(folder, Journal(folder), **options))
    return outcome, {name: value.detach().clone() for unit in course.units for name, value in unit.parameters.items()}


def stop_at(*steps: int) -> Callable[[StepProgress], None]:
    def watch(step: StepProgress) -> None:
        if step.step in steps:
            raise StoppedError

    return watch


def log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def same(first: tuple[Outcome, dict[str, torch.Tensor]], other: tuple[Outcome, dict[str, torch.Tensor]]) -> bool:
    (outcome, parameters), (also_told, others) = first, other
    assert outcome.model_copy(update={"seconds": 0}) == also_told.model_copy(update={"seconds": 0})
    return parameters.keys() == others.keys() and all(torch.equal(value, others[name]) for name, value in parameters.items())
