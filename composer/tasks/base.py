"""What a task is: a closed schema, samples drawn from a seed, and how what a model writes is scored."""

from __future__ import annotations

import random
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt

from blocks.part import Closed
from composer.errors import TaskError
from composer.system.files import sha256
from composer.tasks.writer import Writer
from converters.bounded import reason

Split = Literal["train", "evaluation"]
Learn = Literal["answer", "all"]
Scored = Literal["written", "candidates", "tokens", "loss"]
Depth = Annotated[float, Field(ge=0, le=1)] | None
Drawn = TypeVar("Drawn")

EVALUATION_SHARE = 8
"""One in so many of all possible draws is for evaluation, the others for training."""
MOST_DRAWS = 1000
"""The draws after which a task has too few different samples, if all of them belong to the other split."""


@dataclass(frozen=True)
class Sample:
    """One text, its answers and their places."""

    ids: tuple[int, ...]
    """The whole text, from BOS to the end of the answer."""
    answer: tuple[bool, ...]
    """Which of the tokens are answers, which follow from the tokens before them."""
    text: str
    prompt: str | None = None
    """The text before the answer. None if a sample has many answers, or none: such tasks are scored by tokens or by loss."""
    answers: tuple[str, ...] | None = None
    """What has to be written after the prompt."""
    depth: float | None = None
    """Share of the haystack before the needle. None if there is no needle, or more than one."""
    candidates: tuple[str, ...] | None = None
    """What may be written after the prompt, for a task that is scored by candidates."""

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """Return the tokens before the first answer, which a model continues. They are the tokens of training, also if the tokens
        of ``prompt`` alone would differ."""
        return self.ids[: self.answer.index(True)] if True in self.answer else self.ids


class Task(Closed, ABC):
    """Base of every task in the catalogue. ``kind`` names it."""

    source: ClassVar[str]
    scored: ClassVar[Scored]
    """written: by ``score``, on what a model writes after the prompt. candidates: by ``score``, on the one of the sample's
    candidates that has the highest log probability after the prompt. tokens: by the share of the answer's tokens that are the
    model's first choice, each after the true text before it. loss: by the mean loss of all tokens."""

    samples: PositiveInt = 1000
    """How many."""
    length: PositiveInt | None = None
    """Largest number of tokens of a sample, BOS and answer included. Left out: the caller's."""
    seed: NonNegativeInt = 0
    learn: Learn = "answer"
    """Which tokens a training document learns: those of the answer, or all but BOS."""

    @property
    def name(self) -> str:
        return type(self).model_fields["kind"].default

    @abstractmethod
    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        """Return one sample of at most ``length`` tokens. Raises ``TaskError`` if that is too short, or if the tokenizer
        cannot write what has to be read."""

    @property
    def provenance(self) -> dict[str, str]:
        """Return the origin of texts that the task does not make itself, which a result must record. A file is listed with its
        SHA-256. Raises ``TaskError`` if it cannot be read."""
        return {}

    def score(self, sample: Sample, written: str) -> float:
        """0 to 1 for what a model wrote after the prompt, as the original scores it."""
        raise TaskError(f"{self.name} is scored by {self.scored}, not by what is written.")

    def draw(self, writer: Writer, length: int | None, split: Split) -> Iterator[Sample]:
        """Yield all samples of the task. length: tokens of a sample if the task does not set its own."""
        tokens = self.length or length
        if tokens is None:
            raise TaskError(f"{self.name}: set the length of its samples, in tokens.")
        for index in range(self.samples):
            yield self.sample(rng_of(self.seed, split, index), writer, tokens, split)


def make_sample(
    writer: Writer,
    prompt: str,
    reply: str,
    answers: tuple[str, ...] | None = None,
    depth: float | None = None,
    candidates: tuple[str, ...] | None = None,
) -> Sample:
    """Return the prompt, a space, and ``reply``, whose tokens are the answer. answers: the parts of ``reply`` to score (None:
    all)."""
    text = f"{prompt} {reply}"
    ids, answer = writer.encode_spans(text, [(len(prompt), len(text))])
    return Sample(ids, answer, text, prompt, answers or (reply,), depth, candidates)


def origin(path: Path) -> str:
    """Return a file, as ``provenance`` names it. Raises ``TaskError`` if it cannot be read."""
    try:
        return f"{path}, sha256 {sha256(path)}"
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {reason(error)}.") from error


def stamp(path: Path) -> tuple[int, int]:
    """Time stamp and size of a file, a key for caches of its contents; zeros where it cannot be read, which the reader reports."""
    try:
        facts = path.stat()
    except OSError:
        return 0, 0
    return facts.st_mtime_ns, facts.st_size


def rng_of(seed: int, split: Split, index: int) -> random.Random:
    """Return the random numbers of one sample: another stream for each seed, split and index."""
    return random.Random(f"{seed} {split} {index}")


def apart(rng: random.Random, split: Split, draw: Callable[[random.Random], Drawn]) -> Drawn:
    """Return a draw that only this split can have: drawn again until its checksum is one of the split's."""
    for _ in range(MOST_DRAWS):
        drawn = draw(rng)
        if (zlib.crc32(repr(drawn).encode()) % EVALUATION_SHARE == 0) == (split == "evaluation"):
            return drawn
    raise TaskError(f"There are too few different samples to keep some of them for {split} alone.")
