"""The figures of an ablation's steps, as the files beside the steps' folders keep them: a schema for each kind of step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StringConstraints, ValidationError

from blocks.part import Closed
from composer.ablation.identity import tasks_of
from composer.errors import AblationError
from composer.evaluation.report import EvaluationCell
from composer.state import Count, Elapsed, Measured, first_problem, read_state

if TYPE_CHECKING:
    from composer.ablation.plan import AblationStep, StepKind

Figures = dict[str, Any]
"""The figures of a step, as JSON, or the reason why it failed (``FAILURE``). ``seconds`` is how long it took."""
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
    """Return the figures of a finished step; None where the file does not exist. Raises AblationError where it is damaged, or
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
