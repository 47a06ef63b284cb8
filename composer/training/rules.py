"""Checks that a model can be trained by its recipe, before any data is read."""

from __future__ import annotations

from collections.abc import Mapping

from composer.errors import TrainingError
from composer.graph.composition import HeadSpec
from composer.spec.parameters import fresh_parameters
from composer.spec.recipe import Finetune, Stage, Transfer
from composer.spec.resolve import Resolved


def check_stage(resolved: Resolved, stage: Stage) -> None:
    """Raises TrainingError where a model cannot be trained by this stage."""
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
            "to train. Say --set recipe.finetune.lora.rank=8, or --set recipe.finetune.trunk=true"
        )


def learns_from_teacher(stages: Mapping[str, Stage]) -> bool:
    """Whether one of the stages learns from the teacher."""
    return any(isinstance(stage, Transfer) or (isinstance(stage, Finetune) and bool(stage.distill)) for stage in stages.values())


def check_held_out(stages: Mapping[str, Stage], *, held_out: bool) -> None:
    """Raises TrainingError where a stage needs held-out rows, and there are none."""
    for name, stage in () if held_out else stages.items():
        needs = [("schedule: plateau", "schedule=constant")] if stage.schedule == "plateau" else []
        needs += [("patience", "patience=null")] if stage.patience is not None else []
        for what, remedy in needs:
            raise TrainingError(
                f"recipe.{name} has {what}, which goes by held-out rows, and nothing is held out. Name some with --held-out, say a "
                f"--share above 0, or --set recipe.{name}.{remedy}"
            )


def check_transfer(resolved: Resolved, stage: Stage) -> None:
    """Raises TrainingError where attention cannot be transferred to these heads."""
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
                "Set cross_entropy to 0 and compare what it answers: mse"
            )


def without_weights(head: HeadSpec) -> str | None:
    """Why a head's output is no weighted mean of the values that its memories are given and bring; None where it is one."""
    if head.value_position is not None:
        return "its values are turned by their position"
    if head.output is not None:
        return "its answer is normalised" if head.output.normalises else "its answer passes a gate"
    for memory in head.memory:
        if not memory.weighs_values:
            return f"the answer of its `{memory.kind}` memory is not normalised"
        if memory.chooses_by_value:
            return f"which pairs its `{memory.kind}` memory keeps depends on their values"
    return None
