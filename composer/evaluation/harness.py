"""Runs tasks of lm-eval-harness on models."""

from __future__ import annotations

import logging
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.errors import EvaluationError, first_line
from composer.evaluation.folder import SAMPLES_OF_HARNESS, STORE
from composer.evaluation.options import EvaluationOptions
from composer.evaluation.report import HarnessFacts, HarnessFigure, HarnessResult, cut_in_words
from composer.spec.places import brief, nearest
from composer.system.files import failing_as, sha256, write_whole
from composer.system.notices import warn_user
from composer.system.versions import install_command
from composer.weights.config import check_positions
from converters.bounded import MOST_LOG, check_file, read_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from composer.evaluation.lengths import Subject

QUESTION = 1024
"""Assumed tokens of a question. lm-eval's batch size is a number of questions, not of tokens."""
ERROR_OF = "_stderr"
"""The suffix of a metric's name with which lm-eval has its standard error."""


def open_harness(options: EvaluationOptions) -> Any:
    """lm-eval's task manager, which has loaded the tasks that the options name, and their data. Raises EvaluationError.

    lm-eval's own tasks are more than ten thousand. They are only read where ``include_path`` lacks one of the named tasks.
    """
    folder, names = options.include_path, list(options.lm_eval)
    if folder is not None and not folder.is_dir():
        raise EvaluationError(f"--include-path {folder} is no folder; expected one with tasks of lm-eval, YAML files.")
    if folder is not None:
        _files_in(folder)
    with _quiet():
        from lm_eval.tasks import TaskManager

        if folder is not None:
            manager = TaskManager(include_path=str(folder), include_defaults=False)
            with suppress(Exception):  # a task that extends one of lm-eval's own is loaded below
                manager.load(names)
                return manager
        manager = TaskManager(include_path=None if folder is None else str(folder))
    for task in names:
        if task not in manager.all_tasks:
            mine = "" if folder is not None else " Your own tasks: --include-path FOLDER."
            raise EvaluationError(f"lm-eval has no task {brief(task)}{nearest(task, manager.all_tasks) or '.'}{mine}")
    with _quiet():
        manager.load(names)
    return manager


def harness_facts(options: EvaluationOptions) -> HarnessFacts:
    """Return which tasks lm-eval runs, with the hashes of the files in the folder of the options."""
    folder = options.include_path
    hashes = {}
    if folder is not None:
        hashes = {path.relative_to(folder).as_posix(): sha256(path) for path in _files_in(folder)}
    return HarnessFacts(
        tasks=tuple(options.lm_eval),
        limit=_limit(options),
        files=hashes,
        num_fewshot=options.num_fewshot,
        max_length=options.max_length,
        chat_template=options.apply_chat_template,
        system_instruction=options.system_instruction,
        fewshot_as_multiturn=options.fewshot_as_multiturn,
    )


def check_harness(options: EvaluationOptions, subjects: Sequence[Subject]) -> None:
    """Raise EvaluationError if a model has no chat template to apply, or no positions for ``max_length``."""
    for subject in subjects:
        if options.apply_chat_template and not subject.tokenizer.chat_template:
            raise EvaluationError(
                f"--apply-chat-template: the tokenizer of {subject.reference} has no chat template. Leave the option out, or add a "
                "chat_template.jinja to the folder."
            )
        if options.max_length is not None:
            check_positions(
                subject.source.trunk,
                f"--max-length: {subject.reference}",
                options.max_length,
                "the largest possible value is",
                EvaluationError,
            )


def _files_in(folder: Path) -> list[Path]:
    """Return the files in a folder of tasks. Raise EvaluationError for one that lm-eval could not open, such as a pipe."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir() and "__pycache__" not in path.parts)
    for path in files:
        with failing_as(EvaluationError, f"{path} cannot be read"):
            check_file(path)
    return files


def run_harness(
    label: str, model: Any, tokenizer: PreTrainedTokenizerBase, options: EvaluationOptions, manager: Any
) -> HarnessResult:
    """Return lm-eval's results for a model. Log a warning for each task whose requests were cut, and write the samples if the
    options say so. manager: of ``open_harness``. Raises EvaluationError."""
    with _quiet():
        from lm_eval import evaluator

        from composer.evaluation.harness_model import HarnessModel

        ask: Any = evaluator.simple_evaluate  # Any: its decorators hide its parameters
        opened = HarnessModel(model, tokenizer, max_length=options.max_length, batch_size=max(1, options.batch_tokens // QUESTION))
        answer = ask(
            model=opened,
            tasks=list(options.lm_eval),
            task_manager=manager,
            limit=_limit(options),
            num_fewshot=options.num_fewshot,
            apply_chat_template=options.apply_chat_template,
            system_instruction=options.system_instruction,
            fewshot_as_multiturn=options.fewshot_as_multiturn,
            log_samples=options.log_samples,
            random_seed=options.seed,
            numpy_random_seed=options.seed,
            torch_random_seed=options.seed,
            fewshot_random_seed=options.seed,
        )
        if options.log_samples and options.out is not None:
            _write_samples(samples_folder(options.out.expanduser(), label), answer["samples"])
    for cut in opened.cut:
        warn_user(f"{label}: {cut_in_words(cut)}")
    results = {task: dict(_finite(task, figures)) for task, figures in answer["results"].items()}
    return HarnessResult(model=label, results=results, cut=opened.cut)


def samples_folder(out: Path, label: str) -> Path:
    """Return the folder of a model's logged samples, by lm-eval's own rule for names."""
    from lm_eval.utils import sanitize_model_name

    return out / SAMPLES_OF_HARNESS / sanitize_model_name(label)


def _write_samples(folder: Path, samples: Mapping[str, list[dict[str, Any]]]) -> None:
    """A file ``samples_TASK.jsonl`` for each task, as lm-eval writes it."""
    from lm_eval.loggers import EvaluationTracker

    with STORE.writing(folder), tempfile.TemporaryDirectory() as written:
        for task, task_samples in samples.items():
            tracker = EvaluationTracker(output_path=written)
            tracker.general_config_tracker.model_name_sanitized = task
            tracker.date_id = ""  # lm-eval sets it as it writes its own report; it is the end of the file's name
            save: Any = tracker.save_results_samples  # its annotation is of another type than lm-eval passes
            save(task, task_samples)
            (file,) = (Path(written) / task).glob("*.jsonl")
            write_whole(folder / f"samples_{task}.jsonl", read_text(file, MOST_LOG))


def _limit(options: EvaluationOptions) -> int | float | None:
    return options.samples if options.limit is None else options.limit


def harness_figures(result: HarnessResult) -> Iterator[HarnessFigure]:
    """lm-eval's figures, each with its standard error. Their keys are ``metric,filter``."""
    for task, figures in result.results.items():
        for name, value in figures.items():
            metric, _, way = name.partition(",")
            if not metric.endswith(ERROR_OF):
                error = figures.get(f"{metric}{ERROR_OF},{way}")
                yield HarnessFigure(model=result.model, task=task, metric=metric, filter=way, value=value, standard_error=error)


def _finite(task: str, figures: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the figures of a task; of those that are no numbers, a warning."""
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
        with redirect_stdout(bars), redirect_stderr(bars), _without_git():
            yield
    except EvaluationError:
        raise
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "lm_eval":
            raise
        raise EvaluationError(f"lm-eval is not installed: {install_command('lm-eval')}.") from error
    except Exception as error:  # its own errors, and those of whatever its tasks read
        message = first_line(error)
        raise EvaluationError(f"lm-eval failed: {type(error).__name__}: {message}") from error
    finally:
        logger.setLevel(before)


@contextmanager
def _without_git() -> Iterator[None]:
    """For the block, lm-eval does not run git, which prints an error outside of a checkout. The commit is not used here."""
    from lm_eval import evaluator

    original = evaluator.get_git_commit_hash
    evaluator.get_git_commit_hash = lambda: None
    try:
        yield
    finally:
        evaluator.get_git_commit_hash = original
