"""What a recipe asks of heads that cannot give it, said before anything is read."""

from __future__ import annotations

from composer.errors import TrainingError
from composer.model.naming import fresh_parameters
from composer.spec.document import HeadSpec
from composer.spec.recipe import Stage, Transfer
from composer.spec.resolve import Resolved


def check_transfer(resolved: Resolved, stage: Stage) -> None:
    """Whether attention can be transferred to these heads. Raises TrainingError."""
    assert isinstance(stage, Transfer)
    if not fresh_parameters(resolved):
        raise TrainingError(
            f'The heads of "{resolved.name}" have no fresh parameters, so attention transfer has nothing to train. Leave it out: '
            "--stage finetune"
        )
    for name, head in resolved.heads.items():
        if stage.cross_entropy and (why := _without_weights(head)):
            raise TrainingError(
                f'recipe.transfer.cross_entropy compares attention weights, and the head "{name}" has none: {why}. '
                "Set cross_entropy to 0 and compare what it answers: mse"
            )


def _without_weights(head: HeadSpec) -> str | None:
    """Why a head's answer is no weighed mean of the values, in words; None where it is."""
    if head.value_position is not None:
        return "its values are turned by their position"
    if head.output is not None:
        return "its answer is normalised"
    for memory in head.memory:
        if not memory.has_mass():
            return f"the answer of its `{memory.kind}` memory is not normalised"
        if getattr(memory, "asks_below", False):
            return f"which pairs its `{memory.kind}` memory keeps depends on their values"
    return None
