"""The options of an evaluation, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from composer.errors import EvaluationError
from composer.graph.lowering import AUTO
from composer.numbers import check_count, check_seed
from converters.trunk import Dtype

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


@dataclass(frozen=True)
class EvaluationOptions:
    """How an evaluation is run.

    - samples: of each task at each length; None: 100, and for lm-eval all that its tasks have.
    - seed: of the samples.
    - out: the folder of the results, where an interrupted evaluation continues; None writes nothing.
    - text, haystack, babi: files for the tasks that take one and do not name their own.
    - device: where the models run.
    - dtype: of all weights; None leaves them as they are.
    - backend: which forms run the heads of built models.
    - batch_tokens: tokens of the samples that are scored together; changes nothing but speed.
    - harness: tasks of lm-eval; include_path: a folder with such tasks of one's own.
    - limit, num_fewshot, apply_chat_template, system_instruction, fewshot_as_multiturn, log_samples, max_length: as lm-eval has
      them. limit: None takes ``samples``. log_samples: into ``out``.
    - force: replace the evaluation in `out`.
    - watch: called with the progress.
    """

    samples: int | None = None
    seed: int = 0
    out: Path | None = None
    text: Path | None = None
    haystack: Path | None = None
    babi: Path | None = None
    device: str = "cpu"
    dtype: Dtype | None = None
    backend: str = AUTO
    batch_tokens: int = BATCH_TOKENS
    harness: Sequence[str] = ()
    include_path: Path | None = None
    limit: int | float | None = None
    num_fewshot: int | None = None
    apply_chat_template: bool | str = False
    system_instruction: str | None = None
    fewshot_as_multiturn: bool = True
    log_samples: bool = False
    max_length: int | None = None
    force: bool = False
    watch: Callable[[EvaluationProgress], None] | None = None

    def check(self) -> None:
        """Raises EvaluationError for numbers that cannot be."""
        if self.samples is not None:
            check_count("--samples", self.samples, EvaluationError)
        check_count("--batch-tokens", self.batch_tokens, EvaluationError)
        check_seed(self.seed, EvaluationError)
        if self.num_fewshot is not None:
            check_count("--num-fewshot", self.num_fewshot, EvaluationError, least=0)
        if self.max_length is not None:
            check_count("--max-length", self.max_length, EvaluationError, least=SHORTEST)
        if self.limit is not None and not (0 < self.limit < 1 or (self.limit >= 1 and self.limit == int(self.limit))):
            raise EvaluationError(
                f"--limit {self.limit:g}: expected the number of documents of each task, or the share of them, above 0 and below 1."
            )
        if self.log_samples and self.out is None:
            raise EvaluationError("--log-samples writes into the folder of the results: name one with -o FOLDER.")
        if not self.harness:
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
