"""Runs tasks of lm-eval-harness on models."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from typing import TYPE_CHECKING, Any

from composer.errors import EvaluationError
from composer.evaluation.options import EvaluationOptions
from composer.evaluation.report import HarnessFacts, HarnessFigure
from composer.files import sha256
from composer.notices import warn_user
from composer.spec.places import brief, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUESTION = 1024
"""Assumed tokens of a question: lm-eval takes a number of questions for its batches, not of tokens."""
ERROR_OF = "_stderr"
"""The suffix of a metric's name with which lm-eval has its standard error."""


def open_harness(options: EvaluationOptions) -> Any:
    """lm-eval's task manager, which has loaded the tasks that the options name, and their data. Raises EvaluationError.

    lm-eval's own tasks are more than ten thousand. They are only read where ``include_path`` lacks one of the named tasks.
    """
    folder, asked = options.include_path, list(options.harness)
    if folder is not None and not folder.is_dir():
        raise EvaluationError(f"--include-path {folder} is no folder; expected one with tasks of lm-eval, YAML files.")
    with _quiet():
        from lm_eval.tasks import TaskManager

        if folder is not None:
            manager = TaskManager(include_path=str(folder), include_defaults=False)
            with suppress(Exception):  # a task that extends one of lm-eval's own is loaded below
                manager.load(asked)
                return manager
        manager = TaskManager(include_path=None if folder is None else str(folder))
    for task in asked:
        if task not in manager.all_tasks:
            mine = "" if folder is not None else " Tasks of your own: --include-path FOLDER."
            raise EvaluationError(f"lm-eval has no task {brief(task)}{nearest(task, manager.all_tasks) or '.'}{mine}")
    with _quiet():
        manager.load(asked)
    return manager


def harness_facts(options: EvaluationOptions) -> HarnessFacts:
    """Which tasks lm-eval runs, with the hashes of the files in the folder of the options."""
    folder = options.include_path
    hashes = {}
    if folder is not None:
        files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        hashes = {path.relative_to(folder).as_posix(): sha256(path) for path in files}
    return HarnessFacts(tasks=tuple(options.harness), limit=options.samples, files=hashes)


def run_harness(
    model: Any, tokenizer: PreTrainedTokenizerBase, options: EvaluationOptions, manager: Any
) -> dict[str, dict[str, Any]]:
    """lm-eval's results, by task; ``harness_figures`` reads them. manager: of ``open_harness``. Raises EvaluationError."""
    with _quiet():
        from lm_eval import evaluator
        from lm_eval.models import huggingface

        ask: Any = evaluator.simple_evaluate  # Any: its decorators hide its parameters
        of_ours: Any = huggingface.HFLM
        answer = ask(
            model=of_ours(
                pretrained=model,
                tokenizer=tokenizer,
                trust_remote_code=False,
                backend="causal",
                batch_size=max(1, options.batch_tokens // QUESTION),
            ),
            tasks=list(options.harness),
            task_manager=manager,
            limit=options.samples,
            log_samples=False,
            random_seed=options.seed,
            numpy_random_seed=options.seed,
            torch_random_seed=options.seed,
            fewshot_random_seed=options.seed,
        )
    return {task: dict(_finite(task, figures)) for task, figures in answer["results"].items()}


def harness_figures(model: str, results: Mapping[str, Mapping[str, Any]]) -> Iterator[HarnessFigure]:
    """lm-eval's figures, each with its standard error. Their keys are ``metric,filter``."""
    for task, figures in results.items():
        for name, value in figures.items():
            metric, _, way = name.partition(",")
            if not metric.endswith(ERROR_OF):
                error = figures.get(f"{metric}{ERROR_OF},{way}")
                yield HarnessFigure(model=model, task=task, metric=metric, filter=way, value=value, standard_error=error)


def _finite(task: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The figures of a task; of those that are no numbers, a warning."""
    for name, value in figures.items():
        if _is_figure(name, value):
            if math.isfinite(value):
                yield name, value
            else:
                warn_user(f"lm-eval's {task}: {name} is {value}, which is left out.")


def _is_figure(name: str, value: Any) -> bool:
    """Whether it is a figure, ``metric,filter``, and not one of the names and counts that lm-eval puts beside them."""
    return "," in name and isinstance(value, int | float)


@contextmanager
def _quiet() -> Iterator[None]:
    """For the block, lm-eval logs nothing and shows bars on terminals alone, and its errors become EvaluationErrors."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    bars = sys.stderr if sys.stderr.isatty() else StringIO()
    try:
        with redirect_stdout(bars), redirect_stderr(bars):
            yield
    except EvaluationError:
        raise
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "lm_eval":
            raise
        raise EvaluationError("lm-eval is not installed: pip install 'attention-composer[lm-eval]'.") from error
    except Exception as error:  # its own errors, and those of whatever its tasks read
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise EvaluationError(f"lm-eval failed: {type(error).__name__}: {said}") from error
    finally:
        logger.setLevel(before)
