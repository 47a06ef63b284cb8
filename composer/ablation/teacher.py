"""The teacher's own scores on the variants' tasks, for comparison."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from composer.ablation.figures import Figures
from composer.ablation.identity import tasks_of
from composer.ablation.options import Request
from composer.ablation.report import scores_in
from composer.devices import room
from composer.errors import ComposerError
from composer.evaluation.runner import PACKAGES
from composer.evaluation.subjects import task_facts
from composer.notices import inform
from composer.options import converted
from composer.runs.identity import model_identity
from composer.versions import versions_of
from composer.weights.sources import open_model

TEACHER = "teacher"


def teacher_scores(request: Request, steps: Path) -> tuple[dict[str, float], str | None]:
    """The teacher's scores by the titles of columns, and the reason where scores are missing. They are kept in ``steps`` for later
    calls."""
    reference = request.teacher or request.source
    if reference is None or not request.tasks:
        return {}, None
    from composer.evaluation import EvaluationOptions, evaluate
    from composer.evaluation.folder import RESULTS

    try:
        decides = {
            "teacher": model_identity(open_model(reference)),
            "device": request.device,
            "samples": request.samples,
            "versions": versions_of(PACKAGES),
            "files": {name: str(path) for name, path in request.files.items()},
            "contents": {one.label: task_facts(one).files for one in tasks_of(request)},
        }
        out = steps / f"{TEACHER}-{hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16]}"
        options = converted(request, EvaluationOptions, out=out)
        if not (out / RESULTS).is_file():
            inform(f"Scoring the teacher, {reference}")
        with room(lambda: ComposerError(f"out of memory on {request.device}")):
            report = evaluate({TEACHER: reference}, request.tasks, request.lengths, options)
    except ComposerError as error:
        return {}, str(error)
    figures: Figures = {"cells": [cell.model_dump(mode="json") for cell in report.cells]}
    failed = [f"{cell.task} at {cell.length:,} tokens: {cell.failure}" for cell in report.cells if cell.failure is not None]
    return {column.title: score for column, score in scores_in(figures).items()}, "; ".join(failed) or None
