"""The options of an inspection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from composer.errors import InspectionError
from composer.evaluation.arguments import read_tasks
from composer.evaluation.options import SHORTEST, EvaluationOptions
from composer.evaluation.perplexity import Perplexity
from composer.numbers import check_count, check_seed
from composer.tasks.base import Task

QUERIES, LENGTH, TASK = 64, 256, "passkey"
ONE_TEXT = "one text at a time, since its pictures have a column a token"


@dataclass(frozen=True)
class InspectOptions:
    """How a model is looked into.

    - tasks: one, whose sample is the text: of the catalogue, with options behind it (``passkey,depth=0.5``), or an object; none is
      ``passkey``. text: a text of one's own in its place.
    - length: tokens of the text at most.
    - seed: of the task's sample.
    - layers: the layers to look at; None: all.
    - queries: as many tokens, evenly spread, are asked what they attend to, those before an answer always.
    - teacher: a folder or a model to compare with; None: the student's source, where there is one and it is still there.
    - alone: compare with nothing.
    - device, backend: where and by which forms the models run.
    - out: the folder of the report; None writes nothing. force: replace the report that is there.
    """

    tasks: Sequence[str | Task | Perplexity] = ()
    text: str | None = None
    length: int = LENGTH
    seed: int = 0
    layers: Sequence[int] | None = None
    queries: int = QUERIES
    teacher: str | None = None
    alone: bool = False
    device: str = "cpu"
    backend: str = "auto"
    out: Path | None = None
    force: bool = False

    def task(self) -> tuple[str, Task]:
        """The task that writes the text, and its label. Raises InspectionError and EvaluationError."""
        named = read_tasks(self.tasks or [TASK], EvaluationOptions(samples=1, seed=self.seed))
        if len(named) != 1:
            labels = ", ".join(one.label for one in named) or "nothing"
            raise InspectionError(f"--tasks: {labels}; a model is looked at on {ONE_TEXT}: name one task.")
        if not isinstance(task := named[0].task, Task):
            raise InspectionError(f"{named[0].label}: name a task that writes a text of its own, such as passkey or recall.")
        return named[0].label, task

    def check(self) -> None:
        """Raises InspectionError for impossible options."""
        if self.tasks and self.text is not None:
            raise InspectionError("A task brings its own text, and a text (--text) is given, too: say one of them.")
        if self.teacher is not None and self.alone:
            raise InspectionError("A teacher is named, and nothing is to be compared (--alone): leave one of them out.")
        check_count("--length", self.length, InspectionError, least=SHORTEST)
        check_count("--queries", self.queries, InspectionError, least=2)
        check_seed(self.seed, InspectionError)
        if self.text is None:
            self.task()
