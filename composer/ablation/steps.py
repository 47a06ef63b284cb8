"""Runs a step in its own folder, and keeps its figures in a file beside it, where a later call finds them."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from blocks.part import Closed
from composer.ablation.plan import MODELS, AblationStep, StepKind, build_options, tasks_of
from composer.building.build import run_build
from composer.errors import AblationError, ComposerError
from composer.evaluation.cells import EvaluationCell
from composer.options.classes import convert_options
from composer.spec.recipe import Recipe
from composer.system.devices import room
from composer.system.files import write_whole
from composer.system.json_files import Count, Elapsed, Measured, first_problem, read_state
from composer.system.locks import beside, exclusive_lock

if TYPE_CHECKING:
    from composer.training.run import TrainingOptions

Figures = dict[str, Any]
"""The figures of a step, as JSON, or the reason why it failed (``FAILURE``). ``seconds`` is its duration."""
FAILURE = "failure"
WARNINGS = "warnings"
"""The key of the warnings about a step of training, a list; a step without any has none."""
REMEDY = "Remove it: the step is then run again."
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]+$")]


class BuildFigures(Closed):
    """The figures of a build."""

    seconds: Elapsed
    spec_hash: Hash


class TrainingFigures(Closed):
    """The figures of a stage of training. before, after: losses on the held-out rows by unit. loss, teacher_loss: in nats."""

    seconds: Elapsed
    before: dict[str, Measured]
    after: dict[str, Measured]
    loss: Measured | None
    teacher_loss: Measured | None
    steps: Count
    tokens: Count
    warnings: tuple[str, ...] = Field(default=(), exclude_if=lambda warnings: not warnings)


class LayerFigures(Closed):
    """How alike the attention of a layer and its teacher's are."""

    mse: Measured
    divergence: Measured | None


class ComparisonFigures(Closed):
    """The figures of a comparison with the teacher."""

    seconds: Elapsed
    loss: Measured | None
    teacher_loss: Measured
    layers: tuple[LayerFigures, ...] = Field(min_length=1)


class EvaluationFigures(Closed):
    """The figures of an evaluation: a cell for each task and length."""

    seconds: Elapsed
    cells: tuple[EvaluationCell, ...]


SCHEMAS: dict[StepKind, type[Closed]] = {
    "build": BuildFigures,
    "transfer": TrainingFigures,
    "compare": ComparisonFigures,
    "finetune": TrainingFigures,
    "train": TrainingFigures,
    "evaluate": EvaluationFigures,
}


def read_figures(step: AblationStep, path: Path) -> Figures | None:
    """Return the figures of a finished step; None where the file does not exist. Raises AblationError if it is damaged, or
    contains the scores of other tasks or lengths."""
    try:
        figures = read_state(path, SCHEMAS[step.kind], AblationError, REMEDY)
    except FileNotFoundError:
        return None
    if isinstance(figures, EvaluationFigures):
        scored = sorted((cell.task, cell.length) for cell in figures.cells if cell.failure is None and cell.mean is not None)
        expected = sorted((task.label, length) for task in tasks_of(step.request) for length in set(step.request.lengths))
        if scored != expected:
            raise AblationError(
                f"{path} is damaged: cells: expected the scores of {_in_words(expected)}, got {_in_words(scored)}. {REMEDY}"
            )
    return figures.model_dump(mode="json")


def problem_of_figures(step: AblationStep, figures: Figures) -> str | None:
    """Return why figures cannot be kept, such as a loss that is not finite; None where they can."""
    try:
        SCHEMAS[step.kind].model_validate(figures)
    except ValidationError as error:
        return first_problem(error)
    return None


def _in_words(cells: list[tuple[str, int]]) -> str:
    return ", ".join(f"{task} at {length:,} tokens" for task, length in cells) or "nothing"


MARK = ".lock"
"""The file that marks a folder of steps."""


def read_finished(step: AblationStep, folder: Path) -> Figures | None:
    """Return the figures of a step; None where it is not done. One that failed is not done: it runs again. Raises AblationError."""
    figures = read_figures(step, folder / f"{step.name}.json")
    if figures is not None and step.kind in MODELS and not (folder / step.name).is_dir():
        raise AblationError(f"{folder / step.name} does not exist, but {step.name}.json records it as finished. {REMEDY}")
    return figures


def run_step(step: AblationStep, folder: Path) -> Figures:
    """Return the figures of a step. It is run, or continued, unless it is done. A user's mistake becomes the figure ``failure``.

    Where another ablation in the same folder runs the step, this waits. Raises OSError if the folder cannot be written to.
    """
    results = folder / f"{step.name}.json"
    with exclusive_lock(beside(results), None):
        done = read_finished(step, folder)
        if done is not None:
            return done
        began = time.monotonic()
        figures: Figures
        try:
            with room(lambda: ComposerError(f"out of memory on {step.request.device}")):
                figures = RUN[step.kind](step, folder)
        except ComposerError as error:
            figures = {FAILURE: str(error)}
        figures["seconds"] = round(time.monotonic() - began, 2)
        problem = None if FAILURE in figures else problem_of_figures(step, figures)
        if problem is not None:
            figures = {FAILURE: problem, "seconds": figures["seconds"]}
        if FAILURE not in figures:
            write_whole(results, json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
        return figures


def model_of(step: AblationStep | None, folder: Path) -> Path:
    """Return the model that a step uses: that of the last step up to this one that makes a model."""
    while step is not None and step.kind not in MODELS:
        step = step.after
    assert step is not None, "a chain begins with a build"
    return folder / step.name


def _build(step: AblationStep, folder: Path) -> Figures:
    options = build_options(step.variant, step.request, folder / step.name, seed=step.seed)
    return {"spec_hash": run_build(options).spec_hash}


def _train(step: AblationStep, folder: Path) -> Figures:
    """Stage 1, stage 2, or training from nothing."""
    from composer.training.distill import distill, train
    from composer.training.student import read_student

    out, variant_recipe = folder / step.name, step.variant.recipe
    # Only the part of the recipe that the step depends on: variants that share the step differ in the rest, and may continue it.
    recipe = Recipe.model_validate(
        {"sequence": variant_recipe.sequence, "rows": variant_recipe.rows, step.kind: getattr(variant_recipe, step.kind)}
    )
    if out.exists():  # a step that was killed before it wrote its figures
        shutil.rmtree(out)
    resume, warnings = (folder / f"{step.name}.run" / "run.json").is_file(), list[str]()
    options = replace(_options(step), resume=resume, warn=warnings.append, again="run the same command again")
    student = read_student(model_of(step.after, folder), (), recipe)
    report = (
        train(student, out, options)
        if step.kind == "train"
        else distill(student, out, options, which="transfer" if step.kind == "transfer" else "finetune")
    )
    (outcome,) = report.stages
    figures: Figures = {
        "before": outcome.before,
        "after": outcome.after,
        "loss": report.loss,
        "teacher_loss": report.teacher_loss,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
    }
    return figures | ({WARNINGS: warnings} if warnings else {})


def _compare(step: AblationStep, folder: Path) -> Figures:
    from composer.training.comparison import likeness_of

    return likeness_of(model_of(step.after, folder), _options(step), recipe=step.variant.recipe).model_dump(mode="json")


def _evaluate(step: AblationStep, folder: Path) -> Figures:
    from composer.evaluation.options import EvaluationOptions
    from composer.evaluation.runner import evaluate

    request = step.request
    options = convert_options(request, EvaluationOptions, out=folder / step.name)
    report = evaluate({"student": model_of(step.after, folder)}, request.tasks, request.lengths, options)
    figures: Figures = {"cells": [cell.model_dump(mode="json") for cell in report.cells]}
    failed = [f"{cell.task} at {cell.length:,} tokens: {cell.failure}" for cell in report.cells if cell.failure is not None]
    return figures | ({FAILURE: "; ".join(failed)} if failed else {})


def _options(step: AblationStep) -> TrainingOptions:
    from composer.training.run import TrainingOptions

    # Variants are compared by all held-out rows, whatever their recipes.
    return convert_options(step.request, TrainingOptions, seed=step.seed, held_out_rows=sys.maxsize)


RUN: dict[StepKind, Callable[[AblationStep, Path], Figures]] = {
    "build": _build,
    "transfer": _train,
    "compare": _compare,
    "finetune": _train,
    "train": _train,
    "evaluate": _evaluate,
}
