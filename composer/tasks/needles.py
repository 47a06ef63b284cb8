"""Pass keys with names, hidden in the filler of ``passkey``: the common part of the tasks that ask for some of them."""

from __future__ import annotations

import random
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from composer.tasks.base import Sample, Scored, Split, Task, apart, make_sample
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
