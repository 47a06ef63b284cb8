"""Pass keys with names, hidden in the filler of ``passkey``: the tasks that ask for some of them, and their common part."""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from composer.tasks.base import Depth, Sample, Scored, Split, Task, apart, make_sample
from composer.tasks.passkey import FILLER, five_digits, in_filler
from composer.tasks.recall import KEYS
from composer.tasks.ruler import distinct
from composer.tasks.writer import Writer, fullest

NEEDLE = "The pass key of {name} is {key}."
QUESTION = "What is the pass key of {names}? The pass key of {names} is"
DIGITS = 5
"""The number of digits of a pass key."""
Needle = tuple[str, str]
"""A name and its pass key."""


@dataclass(frozen=True)
class Hidden:
    """What a sample is about. needles: names, each with its pass key; queried: which of them, in the order of the question."""

    needles: tuple[Needle, ...]
    queried: tuple[int, ...]


@dataclass(frozen=True)
class Laid:
    """A text up to its answers. depths: share of the filler before each needle, in the order of ``Hidden.needles``."""

    prompt: str
    answers: tuple[str, ...]
    depths: tuple[float, ...]


class Needles(Task):
    """Base of the tasks whose pass keys have names. The filler has the largest length that fits. Each needle is at a uniformly
    random place in it."""

    source: ClassVar[str] = "after Hsieh et al. 2024 (RULER), arXiv:2404.06654, in the words of `passkey`"
    scored: ClassVar[Scored] = "written"
    question: ClassVar[str] = QUESTION
    in_order: ClassVar[bool] = False
    """Whether the answers are in the order of the text; otherwise in that of the question."""

    @property
    @abstractmethod
    def chance(self) -> float:
        """The score of a reader who knows the form of the texts, and guesses the pass keys."""

    @abstractmethod
    def needles(self, rng: random.Random) -> list[Needle]:
        """What is hidden in a sample."""

    @abstractmethod
    def draw_queries(self, rng: random.Random) -> list[int]:
        """Return which of them are asked for."""

    def hide(self, rng: random.Random, split: Split) -> Hidden:
        """Evaluation and training never hide the same needles, in whatever order."""
        needles = list(apart(rng, split, lambda draws: tuple(sorted(self.needles(draws)))))
        rng.shuffle(needles)
        return Hidden(tuple(needles), tuple(self.draw_queries(rng)))

    def place(self, hidden: Hidden, filler: int, drawn: Sequence[int]) -> Sequence[int]:
        """Sentences of filler before each needle. drawn: at random, from 0 to ``filler``."""
        return drawn

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        hidden = self.hide(rng, split)
        for name, key in hidden.needles:
            writer.check(NEEDLE.format(name=name, key=key))
        for sentence in (*FILLER, self.question.format(names=list_names(hidden))):
            writer.check(sentence)
        laid = self.fill(rng, hidden, length, writer.count)
        depth = laid.depths[hidden.queried[0]] if len(hidden.queried) == 1 else None
        return make_sample(writer, laid.prompt, " ".join(laid.answers), laid.answers, depth)

    def fill(self, rng: random.Random, hidden: Hidden, tokens: int, count: Callable[[str], int]) -> Laid:
        """Return the longest text that has at most ``tokens`` with its answers. Raises ``TaskError`` if that is too short."""
        question = self.question.format(names=list_names(hidden))

        def lay(filler: int) -> Laid:
            places = self.place(hidden, filler, [rng.randint(0, filler) for _ in hidden.needles])
            order = sorted(range(len(places)), key=lambda needle: places[needle])
            needles = [
                (places[needle], NEEDLE.format(name=hidden.needles[needle][0], key=hidden.needles[needle][1])) for needle in order
            ]
            queried = [needle for needle in order if needle in hidden.queried] if self.in_order else hidden.queried
            answers = tuple(hidden.needles[needle][1] for needle in queried)
            depths = tuple(place / filler if filler else 0.0 for place in places)
            return Laid(in_filler(needles, filler, question), answers, depths)

        return fullest(rng, lay, lambda laid: count(f"{laid.prompt} {' '.join(laid.answers)}"), tokens, self.name)

    def score(self, sample: Sample, written: str) -> float:
        """1 where the numbers of five digits that are written first are all answers, in order."""
        assert sample.answers
        return float(self.extract_numbers(sample, written) == list(sample.answers))

    @staticmethod
    def extract_numbers(sample: Sample, written: str) -> list[str]:
        """As many numbers of five digits as there are answers, at most: the first ones."""
        return re.findall(rf"[0-9]{{{DIGITS}}}", written)[: len(sample.answers or ())]


def names_of(rng: random.Random, count: int) -> list[str]:
    """Different ones, of the keys of ``recall``."""
    return rng.sample(KEYS, count)


def keys_of(rng: random.Random, count: int) -> list[str]:
    """Different pass keys."""
    return distinct(count, lambda: five_digits(rng))


def list_names(hidden: Hidden) -> str:
    """Return the names that are asked for, each once, in the form of the question."""
    return " and of ".join(dict.fromkeys(hidden.needles[needle][0] for needle in hidden.queried))


class Multikey(Needles):
    """Several names in filler, each with a pass key; one is asked for. The correct answer is the whole key. A guess among the keys
    of the text is right once in ``keys``."""

    kind: Literal["multikey"] = "multikey"
    keys: Annotated[int, Field(ge=2, le=len(KEYS))] = 4
    """How many are hidden."""
    depth: Depth = None
    """Share of the filler before the requested needle. Left out: at random, as for the others."""

    @property
    def chance(self) -> float:
        return 1 / self.keys

    def needles(self, rng: random.Random) -> list[Needle]:
        return list(zip(names_of(rng, self.keys), keys_of(rng, self.keys), strict=True))

    def draw_queries(self, rng: random.Random) -> list[int]:
        return [rng.randrange(self.keys)]

    def place(self, hidden: Hidden, filler: int, drawn: Sequence[int]) -> Sequence[int]:
        if self.depth is None:
            return drawn
        (queried,) = hidden.queried
        return [round(self.depth * filler) if needle == queried else before for needle, before in enumerate(drawn)]


class Multivalue(Needles):
    """One name in filler with several pass keys; all are asked for. The answer to learn has them in the order of the text; any
    order of all of them is correct. A guess of their digits is right once in 10⁵ for each."""

    question: ClassVar[str] = "What is the pass key of {names}? Find all of them. The pass key of {names} is"
    in_order: ClassVar[bool] = True

    kind: Literal["multivalue"] = "multivalue"
    values: Annotated[int, Field(ge=2, le=64)] = 4
    """How many pass keys."""

    @property
    def chance(self) -> float:
        return 10.0 ** (-DIGITS * self.values)

    def needles(self, rng: random.Random) -> list[Needle]:
        (name,) = names_of(rng, 1)
        return [(name, key) for key in keys_of(rng, self.values)]

    def draw_queries(self, rng: random.Random) -> list[int]:
        return list(range(self.values))

    def score(self, sample: Sample, written: str) -> float:
        """1 where the numbers of five digits that are written first are all answers, in any order."""
        assert sample.answers
        return float(sorted(self.extract_numbers(sample, written)) == sorted(sample.answers))


class TwoNeedles(Needles):
    """Two names in filler, each with a pass key; both are asked for, in either order. The correct answer is both keys, in the order
    of the question. A guess with both keys of the text in random order is right once in two."""

    kind: Literal["two-needles"] = "two-needles"

    @property
    def chance(self) -> float:
        return 1 / 2

    def needles(self, rng: random.Random) -> list[Needle]:
        return list(zip(names_of(rng, 2), keys_of(rng, 2), strict=True))

    def draw_queries(self, rng: random.Random) -> list[int]:
        return rng.sample((0, 1), 2)
