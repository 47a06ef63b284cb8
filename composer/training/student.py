"""The student of a training run and the stages of its recipe; nothing here needs torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from composer.errors import TrainingError, name_of
from composer.graph.composition import HeadSpec
from composer.spec.loading import load_spec
from composer.spec.overrides import Overrides, override_list
from composer.spec.recipe import Finetune, Recipe, Stage, Train, Transfer
from composer.spec.resolve import Resolved, fresh_parameters
from composer.weights.record import RECORD, Record, read_record
from composer.weights.sources import check_merged, open_model
from converters.source import Source

STAGES = ("transfer", "finetune", "train")
CALIBRATE = "calibrate"
"""In records: the stage without steps, which is only the start of a transfer."""


def check_stage(resolved: Resolved, stage: Stage) -> None:
    """Raise TrainingError if a model cannot be trained by this stage."""
    if isinstance(stage, Transfer):
        check_transfer(resolved, stage)
        return
    if resolved.direction == "bidirectional":
        raise TrainingError(
            f'"{resolved.name}" is bidirectional: each token sees those after it, so it has no next token to learn. Its heads can '
            "learn from a teacher's alone: `compose distill --stage transfer`"
        )
    if isinstance(stage, Finetune) and stage.lora is None and not stage.trunk and not fresh_parameters(resolved):
        raise TrainingError(
            f'The heads of "{resolved.name}" have no fresh parameters, and recipe.finetune trains nothing else: there is nothing '
            "to train. Pass --set recipe.finetune.lora.rank=8, or --set recipe.finetune.trunk=true"
        )


def learns_from_teacher(stages: Mapping[str, Stage]) -> bool:
    """Whether one of the stages learns from the teacher."""
    return any(isinstance(stage, Transfer) or (isinstance(stage, Finetune) and stage.needs_teacher) for stage in stages.values())


def check_held_out(stages: Mapping[str, Stage], *, held_out: bool) -> None:
    """Raise TrainingError if a stage needs held-out rows, and there are none."""
    for name, stage in () if held_out else stages.items():
        needs = [("schedule: plateau", "schedule=constant")] if stage.schedule == "plateau" else []
        needs += [("patience", "patience=null")] if stage.patience is not None else []
        for setting, remedy in needs:
            raise TrainingError(
                f"recipe.{name} has {setting}, which needs held-out rows, and nothing is held out. Set --held-out, a --share above "
                f"0, or --set recipe.{name}.{remedy}"
            )


def check_transfer(resolved: Resolved, stage: Stage) -> None:
    """Raise TrainingError if attention cannot be transferred to these heads."""
    assert isinstance(stage, Transfer)
    if not fresh_parameters(resolved):
        raise TrainingError(
            f'The heads of "{resolved.name}" have no fresh parameters, so attention transfer has nothing to train. Leave it out: '
            "--stage finetune"
        )
    for name, head in resolved.heads.items():
        if stage.cross_entropy and (why := without_weights(head)):
            raise TrainingError(
                f'recipe.transfer.cross_entropy compares attention weights, and the head "{name}" has none: {why}. '
                "Set cross_entropy to 0 and compare outputs: mse"
            )


def without_weights(head: HeadSpec) -> str | None:
    """Return why a head's output is no weighted mean of its memories' values; None if it is one."""
    if head.value_position is not None:
        return "its values are rotated by their position"
    if head.output is not None:
        return "its output is normalised" if head.output.normalises else "its output passes a gate"
    if len(head.memory) > 1 and head.read is not None and not head.read.is_mean:
        return f"`read: {head.read.kind}` adds up outputs by weights that do not add up to 1"
    for memory in head.memory:
        if not memory.weighs_values:
            return f"the output of its `{memory.kind}` memory is not normalised"
        if memory.chooses_by_value:
            return f"which pairs its `{memory.kind}` memory keeps depends on their values"
    return None


Which = Literal["transfer", "finetune", "all"]


@dataclass(frozen=True)
class Student:
    """A model to train, as its folder describes it, and the recipe to train it by."""

    source: Source
    record: Record
    recipe: Recipe

    @property
    def has_trained_trunk(self) -> bool:
        """Whether a stage has trained the model's own weights, or adapters of them."""
        return any(stage.stage not in ("transfer", CALIBRATE) for stage in self.record.training)


def read_student(
    model: str | os.PathLike[str],
    overrides: Overrides,
    recipe: Recipe | None = None,
    lengths: Mapping[str, int | None] | None = None,
    *,
    needs_recipe: bool = True,
) -> Student:
    """Return the model of a folder, and its recipe: the argument, or the model's own with these overrides.

    lengths: fields of every stage, such as its steps, in place of the recipe's. needs_recipe: refuse a spec without a recipe.
    Raises TrainingError, BuildError and SourceError.
    """
    folder = Path(name_of(model)).expanduser()
    record = read_record(folder) if folder.is_dir() else None
    if record is None:
        raise TrainingError(f"{folder} has no {RECORD}: it is not a built model. Make one: `compose build SPEC --from SOURCE`")
    if record.trunk.get("labels") is not None:
        raise TrainingError(f"{folder} is a classifier; what is trained here is a language model.")
    source = open_model(folder)
    check_merged(source)
    recipe = _recipe(record, overrides, is_needed=needs_recipe) if recipe is None else recipe
    return Student(source, record, _with_lengths(recipe, lengths) if lengths else recipe)


def _with_lengths(recipe: Recipe, lengths: Mapping[str, int | None]) -> Recipe:
    """Return the recipe with these fields in each of its stages. Raises TrainingError if the rows do not divide into parts."""
    stages = {name: stage for name in STAGES if (stage := getattr(recipe, name)) is not None}
    for name, stage in stages.items():
        batch = lengths.get("batch") or stage.batch
        if batch % stage.accumulate:
            raise TrainingError(
                f"--batch {batch}: recipe.{name}.accumulate divides the rows into {stage.accumulate:,} parts. Set a multiple of "
                f"{stage.accumulate:,}, or add --set recipe.{name}.accumulate=1"
            )
    return recipe.model_copy(update={name: stage.model_copy(update=lengths) for name, stage in stages.items()})


def stages_of(record: Record, recipe: Recipe, which: Which) -> dict[str, Stage]:
    """Return the stages to run, in order. Raises TrainingError if the recipe has none, or if the heads cannot be trained
    so."""
    stages = {"transfer": recipe.transfer, "finetune": recipe.finetune}
    wanted: dict[str, Stage] = {name: stage for name, stage in stages.items() if stage is not None and which in (name, "all")}
    if not wanted:
        missing = "transfer" if which == "all" else which
        nothing = "" if recipe.train is None else " It has a stage `train`, for a model from nothing: compose train."
        raise TrainingError(
            f'The recipe of "{record.resolved.name}" has no {missing}.{nothing} Pass --set recipe.{missing}.lr=… '
            f"--set recipe.{missing}.steps=…"
        )
    for stage in wanted.values():
        check_stage(record.resolved, stage)
    return wanted


def start_of(student: Student, *, force: bool) -> Transfer:
    """Return a transfer that has only a start, as the recipe sets it. Raises TrainingError for a model that was trained already,
    unless ``force`` is set."""
    trained = [stage.stage for stage in student.record.training if stage.stage != CALIBRATE]
    if trained and not force:
        raise TrainingError(
            f"{student.source.folder} was trained already ({', '.join(trained)}), and a new start would replace what it has "
            "learned. Name the model that `compose build` wrote, or set --force."
        )
    transfer = student.recipe.transfer
    return Transfer(lr=1.0, steps=1, batch=1, start="solved" if transfer is None else transfer.start)


def stage_from_nothing(student: Student) -> Train:
    """Return the stage for a model from nothing. Raises TrainingError if the recipe has none, or the model cannot follow it."""
    resolved, stage = student.record.resolved, student.recipe.train
    if stage is None:
        raise TrainingError(
            f'The recipe of "{resolved.name}" has no train. Pass --set recipe.train.lr=… --set recipe.train.steps=…, or '
            "learn from a teacher: compose distill"
        )
    check_stage(resolved, stage)
    return stage


def _recipe(record: Record, overrides: Overrides, *, is_needed: bool) -> Recipe:
    beside = [setting for setting in override_list(overrides) if not setting.startswith(("recipe.", "recipe="))]
    if beside:
        such = f"recipe.{beside[0]}" if beside[0].partition(".")[0] in Recipe.model_fields else "recipe.transfer.lr=1e-2"
        raise TrainingError(f"--set {beside[0]}: the heads are built; only the recipe can still be set, such as {such}")
    spec = load_spec(record.spec, overrides)
    if spec.recipe is None and not is_needed:
        return Recipe()
    if spec.recipe is None:
        raise TrainingError(
            f'"{spec.name}" has no recipe, so there is no stage to train. Pass '
            "--set recipe.transfer.lr=1e-2 --set recipe.transfer.steps=200 to distill it, or the same with recipe.train to train it"
        )
    return spec.recipe
