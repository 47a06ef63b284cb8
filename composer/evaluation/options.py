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
    force: bool = False
    watch: Callable[[EvaluationProgress], None] | None = None

    def check(self) -> None:
        """Raises EvaluationError for numbers that cannot be."""
        if self.samples is not None:
            check_count("--samples", self.samples, EvaluationError)
        check_count("--batch-tokens", self.batch_tokens, EvaluationError)
        check_seed(self.seed, EvaluationError)
