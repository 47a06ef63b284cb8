"""The results of an evaluation in the Hub's own format, ``model-index``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from composer.errors import PushError
from composer.evaluation.folder import RESULTS
from composer.evaluation.report import EvaluatedModelFacts, EvaluationReport
from composer.system.files import sha256
from composer.system.json_files import read_state
from composer.weights.record import read_record
from converters.bounded import MOST_LOG
from converters.hub import read_recorded_names

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

TASK = "text-generation"


def results_of(evaluation: Path, model: Path) -> list[EvalResult]:
    """Return the results of a model in the folder of an evaluation.

    The model is found by the hash of its spec and the SHA-256 of its weights, so an evaluation of another model, or of the model
    before it was trained, is refused. Raises PushError.
    """
    evaluation = evaluation.expanduser()
    try:
        report = read_state(evaluation / RESULTS, EvaluationReport, PushError, "Run `compose eval` again.", MOST_LOG)
    except FileNotFoundError:
        raise PushError(
            f"--metrics {evaluation} has no {RESULTS}; expected a folder that `compose eval … -o FOLDER` wrote."
        ) from None
    record = read_record(model)
    spec_hash = None if record is None else record.spec_hash
    weights = {name for name in read_recorded_names(model) if name.endswith(".safetensors")}
    label = next(
        (facts.label for facts in report.setting.models if facts.spec_hash == spec_hash and _is_of(facts, model, weights)), None
    )
    if label is None:
        scored = ", ".join(facts.label for facts in report.setting.models)
        raise PushError(
            f"--metrics {evaluation} scored {scored}, and none of them has the spec and the weights of {model}. "
            f"Evaluate this model first: `compose eval {shlex.quote(str(model))} --tasks TASK --lengths N -o FOLDER`"
        )
    results = list(_results(report, label))
    if not results:
        raise PushError(f"--metrics {evaluation} has no result of {label}: every cell failed. Run `compose eval` again.")
    return results


def _is_of(facts: EvaluatedModelFacts, model: Path, weights: set[str]) -> bool:
    """Whether an evaluated model has the weights of a folder."""
    if not weights or not weights <= facts.weights.keys():
        return False
    return all((model / name).is_file() and sha256(model / name) == digest for name, digest in facts.weights.items())


def _results(report: EvaluationReport, label: str) -> Iterator[EvalResult]:
    from huggingface_hub import EvalResult

    for cell in report.cells:
        if cell.model != label or cell.mean is None:
            continue
        is_loss = cell.scored == "loss"
        yield EvalResult(
            task_type=TASK,
            dataset_type=cell.task,
            dataset_name=f"{cell.task} ({cell.length:,} tokens)",
            dataset_config=f"{cell.length} tokens",
            dataset_args={"length": cell.length, "samples": cell.samples, "seed": report.setting.seed},
            metric_type="perplexity" if is_loss and cell.perplexity is not None else "loss" if is_loss else "accuracy",
            metric_value=cell.perplexity if is_loss and cell.perplexity is not None else cell.mean,
        )
    for figure in report.harness:
        if figure.model == label:
            yield EvalResult(
                task_type=TASK,
                dataset_type=figure.task,
                dataset_name=figure.task,
                metric_type=figure.metric,
                metric_value=figure.value,
                metric_name=f"{figure.metric} ({figure.filter})",
                source_name="lm-evaluation-harness",
            )
