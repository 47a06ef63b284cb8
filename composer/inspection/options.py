"""What to look at, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from composer.errors import InspectionError

QUERIES, LENGTH, TASK = 64, 256, "passkey"


@dataclass(frozen=True)
class InspectOptions:
    """How a model is looked into.

    - task: of the catalogue, with options behind it (``passkey,depth=0.5``); its sample is the text. text: a text of one's own in
      its place.
    - length: tokens of the text at most.
    - seed: of the task's sample.
    - layers: the layers to look at; None: all.
    - queries: as many tokens, evenly spread, are asked what they attend to, those before an answer always.
    - teacher: a folder or a model to compare with; None: the student's source, where there is one and it is still there.
    - alone: compare with nothing.
    - device, backend: where and by which forms the models run.
    - out: the folder of the report; None writes nothing. force: replace the report that is there.
    """

    task: str | None = None
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

    def check(self) -> None:
        """Raises InspectionError for what cannot be."""
        if self.task is not None and self.text is not None:
            raise InspectionError("A task brings its own text, and a text (--text) is given, too: say one of them.")
        if self.teacher is not None and self.alone:
            raise InspectionError("A teacher is named, and nothing is to be compared (--alone): leave one of them out.")
        for name, number in (("--length", self.length), ("--queries", self.queries)):
            if number < 2:
                raise InspectionError(f"{name} is {number}: say at least 2.")
