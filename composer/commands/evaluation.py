"""``evaluate``: models are scored on tasks at several lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from composer.arguments import DtypeLike, Reference, named_dtype, path_of, several
from composer.errors import EvaluationError, in_words, name_of
from composer.evaluation.arguments import read_lengths, read_tasks
from composer.evaluation.options import BATCH_TOKENS, SHORTEST, EvaluationOptions, EvaluationProgress
from composer.graph.lowering import AUTO
from composer.numbers import Numbers, TokenCount, numbers_of, tokens_of
from composer.progress import BarUpdate, progress_callback, silent_transformers
from composer.weights.opened import open_models

if TYPE_CHECKING:
    from composer.evaluation.perplexity import Perplexity
    from composer.evaluation.report import EvaluationReport
    from composer.tasks.base import Task


@in_words
def evaluate(
    models: Reference | Sequence[Reference] | Mapping[str, Reference],
    tasks: str | Task | Perplexity | Sequence[str | Task | Perplexity] = (),
    lengths: Numbers = (),
    *,
    samples: int | None = None,
    seed: int = 0,
    out: Reference | None = None,
    text: Reference | None = None,
    haystack: Reference | None = None,
    babi: Reference | None = None,
    device: str = "cpu",
    dtype: DtypeLike | None = None,
    backend: str = AUTO,
    batch_tokens: TokenCount = BATCH_TOKENS,
    lm_eval: str | Sequence[str] = (),
    include_path: Reference | None = None,
    limit: float | None = None,
    num_fewshot: int | None = None,
    apply_chat_template: bool | str = False,
    system_instruction: str | None = None,
    fewshot_as_multiturn: bool = True,
    log_samples: bool = False,
    max_length: int | None = None,
    force: bool = False,
    progress: bool | Callable[[EvaluationProgress], None] = False,
) -> EvaluationReport:
    """Scores models on tasks at several lengths; a teacher beside its student, or any others.

    - models: folders, or models of the Hub; a mapping gives them labels of one's own.
    - tasks: with their options behind them: ``"passkey,depth=0.5,recall"`` are two.
    - lengths: tokens of a sample, its answer included: ``512``, ``[512, 4096]`` or ``"512,4k"``.
    - samples: of each task at each length; ``None``: 100, and of lm-eval's tasks all.
    - out: a folder for results and plots, where the same call continues; ``None`` writes nothing. force: replace what is there.
    - text, haystack, babi: files for the tasks that take one.
    - dtype: of all weights; ``None`` leaves them as they are stored. batch_tokens: of the samples of a batch.
    - lm_eval: tasks of lm-eval-harness; include_path: a folder with such tasks of one's own.
    - limit, num_fewshot, apply_chat_template, system_instruction, fewshot_as_multiturn, log_samples, max_length: as lm-eval has
      them. limit: left out, ``samples``. log_samples: into ``out``.
    - progress: ``True`` shows a bar; or what is to be called as samples are scored.

    Scores are shares from 0 to 1, or nats for each token. Raises ComposerError; a cell that fails later says why in the report.

        composer.evaluate(["teacher", "lawcat-mine"], "mqar,pairs=4", 128)
    """
    dtype = named_dtype(dtype, EvaluationError)
    harness = tuple(name for one in several(lm_eval) for part in one.split(",") if (name := part.strip()))
    asked = list(tasks) if isinstance(tasks, Sequence) and not isinstance(tasks, str) else [tasks]
    sizes = numbers_of(lengths, "--lengths", EvaluationError, least=SHORTEST)
    named = {name: name_of(one) for name, one in models.items()} if isinstance(models, Mapping) else several(models)
    with progress_callback(progress, bar_of, "text", "bar", "count", "left") as watch:
        options = EvaluationOptions(
            samples=samples,
            seed=seed,
            out=path_of(out),
            text=path_of(text),
            haystack=path_of(haystack),
            babi=path_of(babi),
            device=device,
            dtype=dtype,
            backend=backend,
            batch_tokens=tokens_of(batch_tokens, "--batch-tokens", EvaluationError),
            harness=harness,
            include_path=path_of(include_path),
            limit=int(limit) if limit is not None and limit == int(limit) else limit,
            num_fewshot=num_fewshot,
            apply_chat_template=apply_chat_template,
            system_instruction=system_instruction,
            fewshot_as_multiturn=fewshot_as_multiturn,
            log_samples=log_samples,
            max_length=max_length,
            force=force,
            watch=watch,
        )
        options.check()  # report mistakes before imports that take seconds
        if read_tasks(asked, options):
            read_lengths(sizes)
        open_models(named, EvaluationError, options.dtype)
        with silent_transformers("error"):
            from composer.evaluation.runner import evaluate as run

            return run(named, asked, sizes, options)


def bar_of(progress: EvaluationProgress) -> BarUpdate:
    """The progress of an evaluation, as a bar shows it."""
    return BarUpdate("samples", progress.done, progress.total, cell_of(progress))


def cell_of(progress: EvaluationProgress) -> str:
    """Which model, task and length."""
    cell = f"{progress.model}  {progress.task}  {progress.length:,}"
    return f"making samples  {cell}" if progress.making else cell
