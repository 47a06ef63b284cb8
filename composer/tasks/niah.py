"""RULER's single needles in a haystack: a number or a UUID under a key, asked for at the end."""

from __future__ import annotations

import random
import uuid
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

from composer.tasks.base import Depth, Sample, Scored, Split, Task, apart
from composer.tasks.haystack import Haystack, Text
from composer.tasks.passkey import FILLER
from composer.tasks.recall import KEYS, VALUES
from composer.tasks.stories import SLOTS
from composer.tasks.writer import Writer, fit

TEMPLATE = (
    "A special magic {what} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {what} afterwards.\n{context}\n"
    "What is the special magic {what} for {key} mentioned in the provided text? "
    "The special magic {what} for {key} mentioned in the provided text is"
)
NEEDLE = "One of the special magic {what}s for {key} is: {value}."
NOISE = " ".join(FILLER)

# RULER joins the adjectives and nouns of a package of word lists; these are the words that the project has.
ADJECTIVES = [word for slot in ("trait", "good", "bad", "color", "weather") for word in SLOTS[slot]]
NOUNS = [*KEYS, *VALUES]

DEPTHS = [round(100 * step / 39) for step in range(40)]
"""Per cent of the sentences that may stand before a needle in a text."""

Contexts = Callable[[int], tuple[str, float]]
"""Units of filler to the text with the needle in it, and the needle's depth."""


def number(rng: random.Random) -> str:
    """Seven digits, the first of which is not 0."""
    return str(rng.randint(10**6, 10**7 - 1))


def random_uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


class Niah(Task):
    """One needle. ``length`` is the text and its answer; RULER's lengths leave room for 128 tokens of answer."""

    source: ClassVar[str] = "Hsieh et al. 2024 (RULER), arXiv:2404.06654; its niah.py"
    scored: ClassVar[Scored] = "written"
    what: ClassVar[str] = "number"

    depth: Depth = None
    """Share of the haystack that stands before the needle. Left out: at random, as RULER draws it."""

    def value(self, rng: random.Random) -> str:
        return number(rng)

    @abstractmethod
    def contexts(self, rng: random.Random, split: Split, needle: str) -> Contexts:
        """How the needle lies in any amount of filler."""

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        key, value = apart(rng, split, lambda draws: (f"{draws.choice(ADJECTIVES)}-{draws.choice(NOUNS)}", self.value(draws)))
        needle = NEEDLE.format(what=self.what, key=key, value=value)
        writer.check(needle)
        context = self.contexts(rng, split, needle)

        def prompt(units: int) -> str:
            return TEMPLATE.format(what=self.what, key=key, context=context(units)[0])

        units = fit(lambda units: writer.count(f"{prompt(units)} {value}"), length, self.name)
        text = f"{prompt(units)} {value}"
        ids, answer = writer.marked(text, [(len(text) - len(value) - 1, len(text))])
        return Sample(ids, answer, text, prompt(units), (value,), context(units)[1])

    def score(self, sample: Sample, written: str) -> float:
        """Share of the answers that stand anywhere in what is written, in any case."""
        assert sample.answers
        return sum(answer.lower() in written.lower() for answer in sample.answers) / len(sample.answers)


class NoiseNiah(Niah):
    """In lines of the same five sentences; the needle is a line, and never the last one."""

    kind: Literal["niah-single-1"] = "niah-single-1"

    def contexts(self, rng: random.Random, split: Split, needle: str) -> Contexts:
        share = rng.random() if self.depth is None else None

        def context(lines: int) -> tuple[str, float]:
            before = round((self.depth or 0.0) * lines) if share is None else int(share * lines)
            return "\n".join([*[NOISE] * before, needle, *[NOISE] * (lines - before)]), before / lines if lines else 0.0

        return context


class InText(Niah):
    """In a text, between two sentences."""

    haystack: Text = "stories"
    """``stories``, small ones that are made for each sample (RULER's own text, Paul Graham's essays, does not ship with the
    project), or a text file, of which training takes the first four fifths and evaluation the rest."""

    def contexts(self, rng: random.Random, split: Split, needle: str) -> Contexts:
        share = rng.choice(DEPTHS) / 100 if self.depth is None else self.depth
        haystack = Haystack(self.haystack, random.Random(rng.getrandbits(64)), split)

        def context(words: int) -> tuple[str, float]:
            sentences = haystack.take(words)
            before = int(len(sentences) * share)
            depth = before / len(sentences) if sentences else 0.0
            return " ".join([*sentences[:before], needle, *sentences[before:]]), depth

        return context


class TextNiah(InText):
    """A number in a text."""

    kind: Literal["niah-single-2"] = "niah-single-2"


class UuidNiah(InText):
    """A UUID in a text."""

    what: ClassVar[str] = "uuid"

    kind: Literal["niah-single-3"] = "niah-single-3"

    def value(self, rng: random.Random) -> str:
        return random_uuid(rng)
