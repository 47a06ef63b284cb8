"""The plan of an ablation: a chain of steps for each variant and seed, in which each step is named by all that decides it.

Two chains that begin alike share their first steps, since these have the same names: the first stage of training is not run twice
for variants that differ in the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from composer.ablation.options import Request
from composer.building.build import BuildOptions, run_build
from composer.errors import AblationError
from composer.evaluation.arguments import NamedTask, read_lengths, read_tasks
from composer.evaluation.lengths import task_facts
from composer.evaluation.options import EvaluationOptions
from composer.options.classes import convert_options
from composer.runs.identity import data_identity, model_identity, tokenizer_identity
from composer.runs.store import key_of
from composer.spec.document import Spec
from composer.spec.external_parts import list_stored_parts
from composer.spec.loading import SpecLike, variants_of
from composer.spec.overrides import Overrides
from composer.spec.recipe import Recipe, Stage
from composer.spec.sweep import rows, variant_names
from composer.system.versions import versions_of
from composer.training.student import check_held_out
from composer.weights.sources import open_model, tokenizer_folder

if TYPE_CHECKING:
    from composer.ablation.options import Request

PACKAGES = ("attention-composer", "torch", "transformers", "tokenizers", "peft", "safetensors")


def common_to_all(request: Request) -> dict[str, Any]:
    """Return the inputs that all variants share, as JSON. Raises ComposerError if one of them cannot be read.

    Files count by the hashes of their contents, weights as ``fingerprint`` has them, data of the Hub by their reference alone.
    """
    source = None if request.source is None else model_identity(open_model(request.source))
    return {
        "versions": versions_of(PACKAGES),
        "source": source,
        "teacher": source if request.teacher is None else model_identity(open_model(request.teacher)),
        "tokenizer": None if request.tokenizer is None else tokenizer_identity(tokenizer_folder(request.tokenizer)),
        "data": [data_identity(reference) for reference in request.data],
        "held_out": [data_identity(reference) for reference in request.held_out],
        "tasks": [task_facts(task).model_dump(mode="json") for task in tasks_of(request)],
    }


def tasks_of(request: Request) -> tuple[NamedTask, ...]:
    """Return the tasks with all of their options. Raises EvaluationError, also if lengths are missing."""
    if not request.tasks:
        return ()
    read_lengths(request.lengths)
    return read_tasks(request.tasks, convert_options(request, EvaluationOptions))


StepKind = Literal["build", "transfer", "compare", "finetune", "train", "evaluate"]
STAGES: tuple[StepKind, ...] = ("transfer", "finetune", "train")
"""Steps that train."""
MODELS: tuple[StepKind, ...] = ("build", *STAGES)
"""Steps whose result is a model."""


@dataclass(frozen=True)
class Variant:
    """One spec. values: what its row of the sweep sets, by path; empty where it is of no sweep."""

    name: str
    spec: Spec
    values: dict[str, Any]

    @property
    def recipe(self) -> Recipe:
        """Empty where the spec has none."""
        return self.spec.recipe or Recipe()


@dataclass(frozen=True)
class AblationStep:
    """One step of a chain. key: a hash of all that its result depends on. after: the step whose model it uses."""

    kind: StepKind
    key: str
    after: AblationStep | None
    variant: Variant
    request: Request
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.kind}-{self.key}"


@dataclass(frozen=True)
class Chain:
    """One variant with one seed."""

    variant: Variant
    seed: int
    steps: tuple[AblationStep, ...]


def read_variants(specs: Sequence[SpecLike], overrides: Overrides = ()) -> list[Variant]:
    """Return each spec, and each variant of each sweep. Raises SpecError, and AblationError if two have one name."""
    variants = [variant for spec in specs for variant in _variants(spec, overrides)]
    names = [variant.name for variant in variants]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise AblationError(f'Two variants are called "{twice[0]}". Name each spec once, or change the `name` of one.')
    return variants


def stages_of(variant: Variant, request: Request) -> Mapping[str, Stage]:
    """Return the stages of its recipe, in order: for a model with a teacher, or for one from nothing; none where there are no data.

    Raises AblationError if the recipe has stages for the other of the two alone.
    """
    if not request.data:
        return {}
    recipe = variant.recipe
    from_teacher: dict[str, Stage | None] = {"transfer": recipe.transfer, "finetune": recipe.finetune}
    from_nothing: dict[str, Stage | None] = {"train": recipe.train}
    wanted, other = (from_teacher, from_nothing) if request.source is not None else (from_nothing, from_teacher)
    stages = {kind: stage for kind, stage in wanted.items() if stage is not None}
    beside = [f"`{kind}`" for kind, stage in other.items() if stage is not None]
    if beside and not stages:
        model = "a model from nothing (--fresh)" if request.source is not None else "a model that has a teacher (--from)"
        raise AblationError(
            f'The recipe of "{variant.name}" has only {" and ".join(beside)}, for {model}. Set a stage: '
            f"--set recipe.{next(iter(wanted))}.lr=… --set recipe.{next(iter(wanted))}.steps=…"
        )
    return stages


def plan(variants: Sequence[Variant], request: Request, folder: Path) -> list[Chain]:
    """Return the chains, variant by variant. folder: the folder of the steps. Raises ComposerError before anything is run."""
    common = common_to_all(request)
    return [chain for variant in variants for chain in _chains(variant, request, folder, common)]


def _variants(sweep: SpecLike, overrides: Overrides) -> Iterator[Variant]:
    vary, specs = variants_of(sweep, overrides)
    if vary is None:
        yield from (Variant(spec.name, spec, {}) for spec in specs.values())
        return
    values = vary.grid | vary.zip
    named = dict(zip(variant_names(vary), rows(vary), strict=True))
    for name, spec in specs.items():
        yield Variant(spec.name, spec, {path: values[path][index] for path, index in named[str(name)]})


def _chains(variant: Variant, request: Request, folder: Path, common: Mapping[str, Any]) -> Iterator[Chain]:
    built = run_build(build_options(variant, request, folder / "build", dry_run=True))
    stages = stages_of(variant, request)
    check_held_out(stages, held_out=request.holds_out)
    if request.data and not stages and built.untrained:
        _refuse_untrained(variant, request, built.untrained)
    for seed in request.seeds:
        yield Chain(variant, seed, tuple(_steps(variant, seed, request, stages, built.spec_hash, common)))


def build_options(variant: Variant, request: Request, out: Path, **more: Any) -> BuildOptions:
    fresh = request.source is None
    return BuildOptions(variant.spec, request.source, out, fresh=fresh, tokenizer=request.tokenizer, force=True, **more)


def _refuse_untrained(variant: Variant, request: Request, untrained: Sequence[str]) -> None:
    """Raise AblationError if the spec does not set how to train its heads.

    An empty recipe, or null for a stage, states that nothing is trained.
    """
    first, recipe = "train" if request.source is None else "transfer", variant.spec.recipe
    if recipe is None:
        lacks, as_built = "has no recipe", "'recipe={}' to use every variant without a recipe untrained"
    elif recipe.model_dump(exclude_unset=True, exclude_none=True) and recipe.model_fields_set.isdisjoint(STAGES):
        lacks, as_built = "has a recipe without a stage", f"recipe.{first}=null to use it untrained"
    else:
        return
    raise AblationError(
        f'"{variant.name}" {lacks}, and {len(untrained):,} of its parameters are untrained, such as {untrained[0]}. Set how '
        f"to train them: --set recipe.{first}.lr=… --set recipe.{first}.steps=…; build it from a model with trained ones; or "
        f"pass --set {as_built}."
    )


def _steps(
    variant: Variant, seed: int, request: Request, stages: Mapping[str, Stage], meaning: str, common: Mapping[str, Any]
) -> Iterator[AblationStep]:
    """Yield the steps, each after the step whose model it uses. The second stage does not wait for the comparison, which makes no
    model."""
    recipe, device = variant.recipe, request.device.partition(":")[0]
    last: AblationStep | None = None
    parts = {kind: str(origin) for kind, origin in list_stored_parts(variant.spec).items()}

    def make_step(kind: StepKind, **decides: Any) -> AblationStep:
        inputs = {"kind": kind, "after": last and last.key, "versions": common["versions"] | parts, **decides}
        return AblationStep(kind, key_of(inputs), last, variant, request, seed)

    data = {name: common[name] for name in ("data", "held_out", "teacher")}
    data |= {"share": request.share, "seed": seed, "device": device, "autocast": request.bfloat16}
    data |= {"sequence": recipe.sequence, "rows": recipe.rows}
    last = make_step("build", spec=meaning, seed=seed, source=common["source"], tokenizer=common["tokenizer"])
    yield last
    if "transfer" in stages:
        last = make_step("transfer", recipe=stages["transfer"].model_dump(mode="json"), **data)
        yield last
    if request.source is not None and request.holds_out:
        yield make_step("compare", average=average_of(recipe), **data)
    for kind in STAGES[1:]:
        if kind in stages:
            last = make_step(kind, recipe=stages[kind].model_dump(mode="json"), **data)
            yield last
    if request.tasks:
        yield make_step(
            "evaluate", tasks=common["tasks"], lengths=sorted(request.lengths), samples=request.samples, device=request.device
        )


def average_of(recipe: Recipe) -> Literal["tokens", "rows"]:
    """Return the tokens or rows that a recipe's losses are means over."""
    return "tokens" if recipe.finetune is None else recipe.finetune.average
