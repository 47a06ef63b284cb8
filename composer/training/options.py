"""The options of training: what ``distill`` and ``train`` share, and what a run adds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from composer.errors import ComposerError, TrainingError
from composer.options.arguments import check_known, several
from composer.options.classes import option, options_class
from composer.options.shared import (
    BackendOption,
    Bfloat16Option,
    DataOptions,
    DeviceOption,
    ForceOption,
    SeedOption,
    reads,
    to_optional_path,
    to_optional_text,
)
from composer.system.versions import version_of

if TYPE_CHECKING:
    from composer.training.loop import StepProgress

AGAIN = "run the same command with --resume"
"""How the user continues a run that was stopped, if its command does not set another text."""
TRACKERS = ("wandb", "trackio")
"""The packages that curves can be sent to."""


@reads(list[str])
def to_trackers(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of trackers, each once. Raises TrainingError for an unknown name, and for a package that is missing."""
    names = tuple(dict.fromkeys(several(value)))
    for name in names:
        check_known("--track", name, TRACKERS, TrainingError)
        if version_of(name) is None:
            raise TrainingError(f"--track: {name} is not installed: pip install {name}")
    return names


@options_class
class LearningOptions(DataOptions, Bfloat16Option, ForceOption, BackendOption, DeviceOption, SeedOption):
    """Options of every training run."""

    error: ClassVar[type[ComposerError]] = TrainingError
    steps: int | None = option(
        "Steps of each stage that runs, in place of the recipe's epochs, steps and tokens.",
        default=None,
        minimum=1,
        metavar="N",
    )
    batch: int | None = option("Rows of a step, in place of the recipe's.", default=None, minimum=1, metavar="ROWS")
    held_out_rows: int | None = option(
        "Largest number of held-out rows to evaluate on. Default: as many as need about a fifth of the run's time.",
        default=None,
        minimum=1,
        metavar="N",
    )
    gradient_checkpointing: bool = option(
        "Where the whole model learns, recompute the inside of its layers in the backward pass: less memory, more time.",
        default=False,
    )
    checkpoint_seconds: float = option("Shortest time between two checkpoints, in seconds.", default=60.0, minimum=0)
    track: tuple[str, ...] = option(
        "Also send the losses, the recipe and the seed to this tracker: wandb or trackio. May be repeated.",
        default=(),
        converter=to_trackers,
        metavar="TRACKER",
    )
    resume: bool = option("Continue a run that was stopped.", default=False)
    finish: bool = option(
        "Make a model of the last checkpoint of a run that was stopped. Its record has the steps that were reached. The run is "
        "kept: --resume --force trains on, and replaces the model.",
        default=False,
    )
    strict: bool = option(
        "Make it an error if a run learns nothing, repeats few tokens many times, has no text longer than the heads' windows, "
        "starts with outputs of another size than the teacher's, or predicts worse than chance.",
        default=False,
    )

    @property
    def lengths(self) -> dict[str, int | None]:
        """The fields that replace those of each stage of a recipe."""
        fields: dict[str, int | None] = {} if self.steps is None else {"steps": self.steps, "epochs": None, "tokens": None}
        return fields if self.batch is None else fields | {"batch": self.batch}

    @property
    def takes_up(self) -> bool:
        """Whether a run that was stopped is taken up where it was."""
        return self.resume or self.finish


@options_class
class TeachingOptions(LearningOptions):
    """Options of a run that learns from a teacher."""

    teacher: str | None = option(
        "Model to learn from. Left out, the source that MODEL was built from.",
        default=None,
        converter=to_optional_text,
        metavar="SOURCE",
    )
    teacher_logits: Path | None = option(
        "With --stage finetune: a folder that `compose logits` wrote, instead of a teacher in memory.",
        default=None,
        converter=to_optional_path,
        metavar="FOLDER",
    )
    stream: bool = option("With --stage transfer: hold one layer in memory at a time.", default=False)
    merge: bool = option("Merge adapters into the weights at the end.", default=False)


@options_class
class TrainingOptions(TeachingOptions):
    """All options of a run, beside its recipe.

    Of the fields without a flag, ``watch`` is called after each step, ``tell`` with messages, and ``warn`` with warnings (None:
    ``tell`` is called with them). ``again`` is the text in messages on how to continue a run.
    """

    watch: Callable[[StepProgress], None] | None = option("Called after each step.", default=None, is_checked=False)
    tell: Callable[[str], None] = option("Called with messages.", default=lambda message: None, is_checked=False)
    warn: Callable[[str], None] | None = option("Called with warnings.", default=None, is_checked=False)
    again: str = option("How a stopped run is continued, in messages.", default=AGAIN)
