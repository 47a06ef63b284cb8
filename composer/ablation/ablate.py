"""Runs an ablation: variants are read, planned, run and reported in one folder, where a later call continues."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.ablation.options import Request
from composer.ablation.pictures import draw_all
from composer.ablation.plan import MODELS, Chain, Variant, plan, read_variants, tasks_of
from composer.ablation.report import AblationReport, make_report, scores_in
from composer.ablation.runner import OnStep, StartWorkers, one_process, run_chains
from composer.ablation.steps import FAILURE, MARK, Figures, model_of, read_finished
from composer.building.rewrite import write_renamed
from composer.data.packing import Packing
from composer.errors import AblationError, ComposerError, Stopped
from composer.evaluation.arguments import read_lengths
from composer.evaluation.lengths import check_texts, task_facts
from composer.evaluation.runner import PACKAGES
from composer.options.classes import convert_options
from composer.runs.identity import model_identity
from composer.runs.store import RunStore, key_of
from composer.spec.explain import explain_resolved
from composer.spec.explained import Explanation
from composer.spec.inherit import short_path
from composer.spec.loading import SpecLike, resolve_spec
from composer.spec.overrides import Overrides
from composer.spec.recipe import Recipe
from composer.spec.resolve import Resolved
from composer.system.devices import room
from composer.system.locks import exclusive_lock, inside, warn_if_unguarded
from composer.system.notices import inform
from composer.system.versions import versions_of
from composer.training.rows import both_sides, tokenizer_of
from composer.training.run import TrainingOptions
from composer.training.teacher import check_fits, open_language_model
from composer.weights.config import dimensions, trunk_from
from composer.weights.record import versions
from composer.weights.sources import describe_model, open_model, tokenizer_folder
from composer.weights.tokenizer import check_tokenizer_of_source, open_tokenizer
from converters.bounded import reason

if TYPE_CHECKING:
    from converters.trunk import Trunk

STEPS, REPORT = "steps", "report.json"
STORE = RunStore("ablation", AblationError, mark=f"{STEPS}/{MARK}")
"""Each step has its own folder. Several ablations may write to one folder: they wait for each other's steps."""


def ablate(
    specs: Sequence[SpecLike],
    request: Request,
    out: Path,
    *,
    overrides: Overrides = (),
    workers: StartWorkers = one_process,
    tell: OnStep | None = None,
) -> AblationReport:
    """Builds, trains and scores each variant with each seed. Writes ``report.json``, ``table.md`` and pictures to ``out``, and each
    variant's model to ``out/variants``.

    The figures of each step are kept in ``out/steps``, under a hash of all that they depend on: a call that was stopped continues,
    and one with another variant, seed or task runs only the new steps. Raises ComposerError before the first step. If a later step
    fails, the report has the reason.
    """
    out = out.expanduser()
    steps = out / STEPS
    check_request(request)
    STORE.check(out, resume=True)
    chains = plan(read_variants(specs, overrides), request, steps)
    results = run(chains, request, steps, workers, tell)
    scores, failure = teacher_scores(request, steps)
    with _going_on(out), exclusive_lock(inside(out), None):  # so that report, table and plot are of one call, the last to end
        models, costs = name_models(chains, results, request, out), costs_of([chain.variant for chain in chains], request)
        report = make_report(chains, results, request, versions(), models, costs)
        report = report.model_copy(update={"teacher": scores, "teacher_failure": failure})
        report.write(out, REPORT)
        draw_all(report, out)
    return report


def run(
    chains: Sequence[Chain], request: Request, steps: Path, workers: StartWorkers = one_process, tell: OnStep | None = None
) -> dict[str, Figures]:
    """Return the figures of every step of planned chains, by its name; the folder ``steps`` is made. Raises ComposerError."""
    check_inputs(chains, request, steps)
    with _going_on(steps), workers() as started:
        steps.mkdir(parents=True, exist_ok=True)
        (steps / MARK).touch()
        warn_if_unguarded(steps)
        return run_chains(chains, steps, started, tell)


@contextmanager
def _going_on(folder: Path) -> Iterator[None]:
    """Raise AblationError if a file cannot be read or written. The message names the file, or ``folder`` if the system does not
    name one. The message of an interrupt says how to continue."""
    try:
        yield
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, Stopped) else signal.SIGINT
        raise Stopped(
            f"Interrupted. Finished steps are kept in {short_path(folder)}. Run the same command again to continue.", number
        ) from error
    except OSError as error:
        raise AblationError(
            f"{error.filename or folder} cannot be read or written: {reason(error)}. Finished steps are kept. Fix the error and "
            "run the same command again."
        ) from error


def check_request(request: Request) -> None:
    """Raise AblationError if parts of a request contradict each other."""
    if not (request.data or request.tasks):
        raise AblationError("Neither --data nor --tasks is set. Set --data to train the variants, --tasks to score them, or both.")
    if not request.seeds:
        raise AblationError("--seeds is empty; expected at least one seed, such as --seeds 0.")
    if request.held_out and not request.data:
        raise AblationError("--held-out names data to evaluate training on, and there is no training. Set --data, too.")
    if (request.lengths or request.files) and not request.tasks:
        beside = "--lengths" if request.lengths else f"--{next(iter(request.files))}"
        raise AblationError(f"{beside} needs tasks. Set them, such as --tasks passkey,recall.")
    if request.source is None and request.teacher is not None:
        raise AblationError("--teacher needs --from: a variant that is trained from random weights has no teacher.")
    if request.source is None and request.tokenizer is None:
        raise AblationError(
            "A model with random weights has no tokenizer. Name a model or a folder that has one: --tokenizer MODEL"
        )


def check_inputs(chains: Sequence[Chain], request: Request, folder: Path) -> None:
    """Reads the data and makes the tasks' samples, for all steps that are not done yet. Raises ComposerError."""
    missing = {step.kind for chain in chains for step in chain.steps if read_finished(step, folder) is None}
    variants = {chain.variant.name: chain.variant for chain in chains}.values()
    trunks = {variant.name: _trunk(variant, request) for variant in variants}
    for variant in variants:
        _check_variant(variant, trunks[variant.name], request)
    if request.teacher is not None:
        teacher = open_language_model(request.teacher)
        check_fits(teacher, asdict(next(iter(trunks.values()))))
    if not missing - {"build"}:
        return
    tokenizer = tokenizer_of(_tokenizer_folder(request))
    if missing & {"transfer", "compare", "finetune", "train"}:
        options = convert_options(request, TrainingOptions, seed=request.seeds[0])
        kinds: set[tuple[int | None, Packing, int, int]] = {
            (variant.recipe.sequence, variant.recipe.rows, trunk.vocabulary_size, trunk.max_positions)
            for variant in variants
            for trunk in (trunks[variant.name],)
        }
        for sequence, rows, vocabulary, longest in kinds:
            both_sides(tokenizer, vocabulary, longest, Recipe(sequence=sequence, rows=rows), options)
    if "evaluate" in missing:
        for vocabulary in {trunk.vocabulary_size for trunk in trunks.values()}:
            check_texts(tokenizer, vocabulary, tasks_of(request), read_lengths(request.lengths))


def _check_variant(variant: Variant, trunk: Trunk, request: Request) -> None:
    if trunk.labels is not None:
        raise AblationError(f'"{variant.name}" would be a classifier; what is trained and scored here is a language model.')
    if request.tasks and variant.spec.direction == "bidirectional":
        raise AblationError(
            f'"{variant.name}" is bidirectional: each token sees those after it, so it can be scored on no task. Leave --tasks out.'
        )


def _trunk(variant: Variant, request: Request) -> Any:
    """Return the sizes of the model around its heads."""
    if request.source is not None:
        return open_model(request.source).trunk
    return trunk_from(resolve_spec(variant.spec, None), "float32", None)


def _tokenizer_folder(request: Request) -> Path:
    """Return the folder of the tokenizer that all variants have."""
    if request.tokenizer is None:
        assert request.source is not None, "check_request requires a tokenizer"
        return open_model(request.source).folder
    if request.source is not None:
        check_tokenizer_of_source(open_tokenizer(request.tokenizer).size, open_model(request.source))
    return tokenizer_folder(request.tokenizer)


VARIANTS = "variants"
LENGTH = 1024
"""Tokens after which states are compared, where neither samples nor rows have a length."""


def name_models(chains: Sequence[Chain], results: Mapping[str, Figures], request: Request, out: Path) -> dict[str, dict[int, str]]:
    """Links each variant's model as ``variants/NAME`` or, with several seeds, ``variants/NAME-seed0`` and so on.

    Returns the paths in ``out``, by variant and seed, without models whose training has failed. Raises BuildError.
    """
    paths: dict[str, dict[int, str]] = {}
    for chain in chains:
        if any(FAILURE in results[step.name] for step in chain.steps if step.kind in MODELS):
            continue
        name = chain.variant.name if len(request.seeds) == 1 else f"{chain.variant.name}-seed{chain.seed}"
        (out / VARIANTS).mkdir(exist_ok=True)
        model = model_of(chain.steps[-1], out / "steps")
        write_renamed(model, out / VARIANTS / name, chain.variant.spec, _resolve(chain.variant, request))
        paths.setdefault(chain.variant.name, {})[chain.seed] = f"{VARIANTS}/{name}"
    return paths


def costs_of(variants: Sequence[Variant], request: Request) -> dict[str, Explanation]:
    """Return the costs of each variant, by name, at the longest length that it is scored or trained on, in its source's dtype."""
    trunk = None if request.source is None else describe_model(request.source).trunk
    dtype, windows = ("float32", None) if trunk is None else (trunk.dtype, trunk.windows)

    def cost(variant: Variant) -> Explanation:
        length = max(request.lengths, default=variant.recipe.sequence or LENGTH)
        return explain_resolved(_resolve(variant, request), sequence=length, dtype=dtype, windows=windows)

    return {variant.name: cost(variant) for variant in variants}


def _resolve(variant: Variant, request: Request) -> Resolved:
    return resolve_spec(variant.spec, None if request.source is None else dimensions(describe_model(request.source).trunk))


TEACHER = "teacher"


def teacher_scores(request: Request, steps: Path) -> tuple[dict[str, float], str | None]:
    """Return the teacher's scores by the titles of columns, and the reason where scores are missing. They are kept in ``steps`` for
    later calls."""
    reference = request.teacher or request.source
    if reference is None or not request.tasks:
        return {}, None
    from composer.evaluation.folder import RESULTS
    from composer.evaluation.options import EvaluationOptions
    from composer.evaluation.runner import evaluate

    try:
        decides = {
            "teacher": model_identity(open_model(reference)),
            "device": request.device,
            "samples": request.samples,
            "versions": versions_of(PACKAGES),
            "files": {name: str(path) for name, path in request.files.items()},
            "contents": {task.label: task_facts(task).files for task in tasks_of(request)},
        }
        out = steps / f"{TEACHER}-{key_of(decides)}"
        options = convert_options(request, EvaluationOptions, out=out)
        if not (out / RESULTS).is_file():
            inform(f"Scoring the teacher, {reference}")
        with room(lambda: ComposerError(f"out of memory on {request.device}")):
            report = evaluate({TEACHER: reference}, request.tasks, request.lengths, options)
    except ComposerError as error:
        return {}, str(error)
    figures: Figures = {"cells": [cell.model_dump(mode="json") for cell in report.cells]}
    failed = [f"{cell.task} at {cell.length:,} tokens: {cell.failure}" for cell in report.cells if cell.failure is not None]
    return {column.title: score for column, score in scores_in(figures).items()}, "; ".join(failed) or None
