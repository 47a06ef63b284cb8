"""The options of an evaluation, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from composer.errors import ComposerError, EvaluationError
from composer.options.arguments import several
from composer.options.classes import option, options_class
from composer.options.shared import (
    OUT,
    BackendOption,
    DeviceOption,
    DtypeOption,
    ForceOption,
    SeedOption,
    TaskFiles,
    reads,
    to_optional_path,
    to_tokens,
)

SAMPLES = 100
SHORTEST = 2
"""Tokens of a sample: one is predicted from those before it."""
BATCH_TOKENS = 16_384


@dataclass(frozen=True)
class EvaluationProgress:
    """The progress of an evaluation: the samples scored so far, the samples of all models, and the seconds since it began. making:
    samples are being made for the check before the first score; done and total are then those of one model, task and length."""

    model: str
    task: str
    length: int
    done: int
    total: int
    seconds: float
    making: bool = False


@reads(str)
def to_names(value: str | Sequence[str]) -> tuple[str, ...]:
    """Names, several of them between commas."""
    return tuple(name for text in several(value) for part in text.split(",") if (name := part.strip()))


@reads(float)
def to_limit(value: float | None) -> int | float | None:
    """Return a number of documents, or a share of them. Raises ValueError."""
    if value is None or 0 < value < 1:
        return value
    if not (value >= 1 and value == int(value)):
        wanted = "the number of documents of each task, or the share of them, above 0 and below 1"
        raise ValueError(f"expected {wanted}, got {value:g}")
    return int(value)


@options_class
class ScoringOptions(ForceOption, BackendOption, DtypeOption, DeviceOption, TaskFiles, SeedOption):
    """Options of every evaluation."""

    error: ClassVar[type[ComposerError]] = EvaluationError
    samples: int | None = option(
        f"Samples of each task at each length. Left out, {SAMPLES}, and all documents of lm-eval's tasks.", default=None, minimum=1
    )
    out: Path | None = option(
        "Folder for results and plots. The same call continues an evaluation there. Left out, nothing is written.",
        default=None,
        converter=to_optional_path,
        **OUT,
    )
    batch_tokens: int = option(
        "Tokens of the samples of a batch, which decides speed alone. 4k is 4,096.",
        default=BATCH_TOKENS,
        converter=to_tokens(),
        metavar="N",
    )
    lm_eval: tuple[str, ...] = option(
        "Tasks of lm-eval-harness, if it is installed.", default=(), converter=to_names, metavar="TASK,…"
    )
    include_path: Path | None = option(
        "With --lm-eval: a folder with your own tasks.", default=None, converter=to_optional_path, metavar="FOLDER"
    )
    limit: int | float | None = option(
        "With --lm-eval: documents of each task, or a share below 1. Left out, the value of --samples.",
        default=None,
        converter=to_limit,
    )
    num_fewshot: int | None = option("With --lm-eval: examples before each question.", default=None, minimum=0)
    apply_chat_template: bool | str = option(
        "With --lm-eval: write prompts with the model's chat template.", default=False, kind=bool
    )
    system_instruction: str | None = option(
        "With --lm-eval: the system message, or the beginning of each prompt.", default=None, metavar="TEXT"
    )
    fewshot_as_multiturn: bool = option(
        "With --lm-eval and a chat template: write each example as a separate message.",
        default=True,
        flags=("--fewshot-as-multiturn/--no-fewshot-as-multiturn",),
    )
    log_samples: bool = option("With --lm-eval: write each request and answer into OUT/lm-eval.", default=False)
    max_length: int | None = option(
        "With --lm-eval: tokens that are kept of a request. Left out, the positions of the model's config.",
        default=None,
        minimum=SHORTEST,
        metavar="N",
    )

    def check(self) -> None:
        """Raise EvaluationError if options contradict each other."""
        if self.log_samples and self.out is None:
            raise EvaluationError("--log-samples writes into the folder of the results: name the folder with --out FOLDER.")
        if not self.lm_eval:
            for option, value, default in (
                ("--include-path", self.include_path, None),
                ("--limit", self.limit, None),
                ("--num-fewshot", self.num_fewshot, None),
                ("--apply-chat-template", self.apply_chat_template, False),
                ("--system-instruction", self.system_instruction, None),
                ("--no-fewshot-as-multiturn", self.fewshot_as_multiturn, True),
                ("--log-samples", self.log_samples, False),
                ("--max-length", self.max_length, None),
            ):
                if value != default:
                    raise EvaluationError(f"{option} is for tasks of lm-eval: name them with --lm-eval.")


@options_class
class EvaluationOptions(ScoringOptions):
    """All options of an evaluation, beside models, tasks and lengths."""

    watch: Callable[[EvaluationProgress], None] | None = option("Called with the progress.", default=None, is_checked=False)
