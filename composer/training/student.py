"""The student of a training run and the stages of its recipe; nothing here needs torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from composer.errors import TrainingError, name_of
from composer.spec.loading import load_spec
from composer.spec.overrides import Overrides, each
from composer.spec.recipe import Recipe, Stage, Train
from composer.training.rules import check_stage
from composer.weights.record import RECORD, Record, read_record
from composer.weights.sources import check_merged, open_model
from converters.source import Source

Which = Literal["transfer", "finetune", "all"]


@dataclass(frozen=True)
class Student:
    """A model to train, as its folder describes it, and the recipe to train it by."""

    source: Source
    record: Record
    recipe: Recipe


def read_student(model: str | os.PathLike[str], overrides: Overrides, recipe: Recipe | None = None) -> Student:
    """The model of a folder, and the recipe to train it by: the given one, or its own with these overrides.

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
    return Student(source, record, _recipe(record, overrides) if recipe is None else recipe)


def stages_of(record: Record, recipe: Recipe, which: Which) -> dict[str, Stage]:
    """The stages to run, in order. Raises TrainingError where the recipe has none, or where the heads cannot be trained so."""
    said = {"transfer": recipe.transfer, "finetune": recipe.finetune}
    wanted: dict[str, Stage] = {name: stage for name, stage in said.items() if stage is not None and which in (name, "all")}
    if not wanted:
        missing = "transfer" if which == "all" else which
        nothing = "" if recipe.train is None else " It has a stage `train`, for a model from nothing: compose train."
        raise TrainingError(
            f'The recipe of "{record.resolved.name}" has no {missing}.{nothing} Say one: --set recipe.{missing}.lr=… '
            f"--set recipe.{missing}.steps=…"
        )
    for stage in wanted.values():
        check_stage(record.resolved, stage)
    return wanted


def stage_from_nothing(student: Student) -> Train:
    """The stage for a model from nothing. Raises TrainingError where the recipe has none, or the model cannot follow it."""
    resolved, stage = student.record.resolved, student.recipe.train
    if stage is None:
        raise TrainingError(
            f'The recipe of "{resolved.name}" has no train. Say one: --set recipe.train.lr=… --set recipe.train.steps=…, or '
            "learn from a teacher: compose distill"
        )
    check_stage(resolved, stage)
    return stage


def _recipe(record: Record, overrides: Overrides) -> Recipe:
    beside = [setting for setting in each(overrides) if not setting.startswith(("recipe.", "recipe="))]
    if beside:
        such = f"recipe.{beside[0]}" if beside[0].partition(".")[0] in Recipe.model_fields else "recipe.transfer.lr=1e-2"
        raise TrainingError(f"--set {beside[0]}: the heads are built; only the recipe can still be set, such as {such}")
    spec = load_spec(record.spec, overrides)
    if spec.recipe is None:
        raise TrainingError(
            f'"{spec.name}" has no recipe: nothing says how to train it. Say so: '
            "--set recipe.transfer.lr=1e-2 --set recipe.transfer.steps=200"
        )
    return spec.recipe
