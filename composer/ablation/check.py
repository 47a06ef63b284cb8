"""Checks the request, the data, the tasks and the models before the first step runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.ablation.identity import tasks_of
from composer.ablation.options import Request
from composer.ablation.plan import Chain, Variant
from composer.ablation.steps import found
from composer.api import resolve_spec
from composer.data.packing import Packing
from composer.errors import AblationError
from composer.evaluation.arguments import read_lengths
from composer.evaluation.lengths import check_texts
from composer.options import converted
from composer.spec.recipe import Recipe
from composer.training.rows import both_sides, tokenizer_of
from composer.training.run import TrainingOptions
from composer.training.teacher import check_fits, open_language_model
from composer.weights.config import trunk_from
from composer.weights.sources import open_model, tokenizer_folder

if TYPE_CHECKING:
    from converters.trunk import Trunk


def check_request(request: Request) -> None:
    """Raises AblationError where parts of a request contradict each other."""
    if not (request.data or request.tasks):
        raise AblationError("Nothing is done with the variants: say --data to train them on, --tasks to score them on, or both.")
    if not request.seeds:
        raise AblationError("No seed is said; expected one at least, such as --seeds 0.")
    if request.held_out and not request.data:
        raise AblationError("--held-out is to evaluate on beside what is learned from: say --data, too.")
    if (request.lengths or request.files) and not request.tasks:
        beside = "--lengths" if request.lengths else f"--{next(iter(request.files))}"
        raise AblationError(f"{beside} is for tasks: say which, such as --tasks passkey,recall.")
    if request.source is None and request.teacher is not None:
        raise AblationError("--teacher is for variants that are built --from a model; what is trained from nothing has none.")
    if request.source is None and request.tokenizer is None:
        raise AblationError("What is built from nothing has no tokenizer: name a model or a folder that has one: --tokenizer MODEL")


def check_inputs(chains: Sequence[Chain], request: Request, folder: Path) -> None:
    """Reads the data and makes the tasks' samples, for all steps that are not done yet. Raises ComposerError."""
    missing = {step.kind for chain in chains for step in chain.steps if found(step, folder) is None}
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
        options = converted(request, TrainingOptions, seed=request.seeds[0])
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
    """The sizes of the model around its heads."""
    if request.source is not None:
        return open_model(request.source).trunk
    return trunk_from(resolve_spec(variant.spec, None), "float32", None)


def _tokenizer_folder(request: Request) -> Path:
    """The folder of the tokenizer that all variants have."""
    if request.source is not None:
        return open_model(request.source).folder
    assert request.tokenizer is not None, "check_request asks for one"
    return tokenizer_folder(request.tokenizer)
