"""The options of an ablation that decide its results."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from composer.errors import AblationError, ComposerError
from composer.evaluation.options import SHORTEST
from composer.options.arguments import MOST_SEED
from composer.options.classes import option, options_class, options_of
from composer.options.shared import (
    Bfloat16Option,
    DeviceOption,
    HeldOutOptions,
    OptionalSource,
    TaskFiles,
    TokenizerOption,
    to_numbers,
    to_optional_text,
    to_texts,
)


@options_class
class Request(Bfloat16Option, HeldOutOptions, TokenizerOption, TaskFiles, DeviceOption, OptionalSource):
    """The options that all variants share. Without a source, each variant is built from nothing, on its own trunk."""

    error: ClassVar[type[ComposerError]] = AblationError
    data: tuple[str, ...] = option(
        "Data to train on, as for `compose distill`. May be repeated.", default=(), converter=to_texts, metavar="REF"
    )
    teacher: str | None = option(
        "Model to learn from and compare with. Left out, the source.", default=None, converter=to_optional_text, metavar="SOURCE"
    )
    tasks: tuple[str, ...] = option(
        "Tasks to score on, as for `compose eval`. May be repeated.", default=(), converter=to_texts, metavar="TASK,…"
    )
    lengths: tuple[int, ...] = option(
        "Tokens of a sample of a task: 512,4k, where 4k is 4,096.", default=(), converter=to_numbers(SHORTEST), metavar="N,…"
    )
    samples: int = option("Samples of each task at each length.", default=100, minimum=1)
    seeds: tuple[int, ...] = option(
        "Seeds. Each variant is built and trained with each of them.",
        default=0,
        converter=to_numbers(0, MOST_SEED, thousands=False),
        metavar="N,…",
    )

    @property
    def holds_out(self) -> bool:
        """Whether there are rows to compare on."""
        return bool(self.data) and bool(self.held_out or self.share)

    @property
    def files(self) -> dict[str, Path]:
        """The files of tasks, by the names of their options."""
        return {name: path for name in options_of(TaskFiles) if (path := getattr(self, name)) is not None}
