"""RULER's needles in a haystack: numbers or UUIDs under keys, some of which are asked for at the end."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import ClassVar, Literal

from composer.tasks.base import Depth, Sample, Split, apart, make_sample
from composer.tasks.haystack import Haystack, HaystackText, haystack_origin
from composer.tasks.passkey import FILLER
from composer.tasks.ruler import Ruler, distinct, number, random_uuid, source, word_pair, words_origin
from composer.tasks.writer import Writer, fit

ASKED_ONE = (
    "A special magic {what} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {what} afterwards.\n{context}\n"
    "What is the special magic {what} for {keys} mentioned in the provided text? "
    "The special magic {what} for {keys} mentioned in the provided text is"
)
ASKED_SEVERAL = (
    "Some special magic {what}s are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {what}s afterwards.\n{context}\n"
    "What are all the special magic {what}s for {keys} mentioned in the provided text? "
    "The special magic {what}s for {keys} mentioned in the provided text are"
)
NEEDLE = "One of the special magic {what}s for {key} is: {value}."
NOISE = " ".join(FILLER)

DEPTHS = [round(100 * step / 39) for step in range(40)]
"""Per cent of the sentences before a needle in a text."""

KeyedValues = tuple[tuple[str, tuple[str, ...]], ...]
"""Keys, each with its values."""


@dataclass(frozen=True)
class Context:
    """A haystack with the needles in it."""

    lay: Callable[[int], tuple[str, list[float]]]
    """Units of filler to the text, and to how deep each needle lies."""
    max_units: int | None = None
    """The number of units, if it is limited."""
    unit: str = ""


class Niah(Ruler):
    """Every key has a needle for each of its values, in random order. (RULER orders those of all samples by one seed.) Keys
    differ, as do values. RULER lets a model write 128 tokens."""

    source: ClassVar[str] = source("niah.py")
    value_kind: ClassVar[str] = "number"
    keys: ClassVar[int] = 1
    values: ClassVar[int] = 1
    """Values of each key."""
    queries: ClassVar[int] = 1
    """Keys that are asked for."""

    @property
    def provenance(self) -> dict[str, str]:
        return {"keys": words_origin()}

    def key(self, rng: random.Random) -> str:
        return word_pair(rng)

    def value(self, rng: random.Random) -> str:
        return number(rng)

    def needle(self, key: str, value: str) -> str:
        return NEEDLE.format(what=self.value_kind, key=key, value=value)

    @abstractmethod
    def context(self, rng: random.Random, split: Split, needles: Sequence[str], keys: Sequence[str]) -> Context:
        """Return how the needles lie in any amount of filler. keys: theirs, which nothing in the filler may have."""

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        def pairs(draws: random.Random) -> KeyedValues:
            keys = distinct(self.keys, lambda: self.key(draws))
            values = iter(distinct(self.keys * self.values, lambda: self.value(draws)))
            return tuple((key, tuple(islice(values, self.values))) for key in keys)

        hidden = apart(rng, split, pairs)
        needles = [self.needle(key, value) for key, values in hidden for value in values]
        rng.shuffle(needles)
        for needle in needles:
            writer.check(needle)
        queried = rng.sample(hidden, self.queries)
        answers = tuple(value for _, values in queried for value in values)
        *first, last = (key for key, _ in queried)
        template = ASKED_SEVERAL if len(answers) > 1 else ASKED_ONE
        spoken = f"{', '.join(first)}, and {last}" if first else last
        context = self.context(rng, split, needles, [key for key, _ in hidden])

        def prompt(units: int) -> str:
            return template.format(what=self.value_kind, keys=spoken, context=context.lay(units)[0])

        reply = " ".join(answers)
        units = fit(lambda units: writer.count(f"{prompt(units)} {reply}"), length, self.name, context.max_units, context.unit)
        depths = context.lay(units)[1]
        depth = depths[needles.index(self.needle(last, answers[0]))] if len(answers) == 1 else None
        return make_sample(writer, prompt(units), reply, answers, depth)


class InLines(Niah):
    """One needle, a line among lines, and never the last one."""

    depth: Depth = None
    """Share of the lines before the needle; 1 makes it the last one. Left out: at random, as RULER draws it."""

    @abstractmethod
    def lines(self, rng: random.Random, keys: Sequence[str]) -> Iterator[str]:
        """Return the filler, without end. keys: those that it may not have."""

    def context(self, rng: random.Random, split: Split, needles: Sequence[str], keys: Sequence[str]) -> Context:
        share, coming, drawn = rng.random(), self.lines(random.Random(rng.getrandbits(64)), keys), list[str]()

        def lay(lines: int) -> tuple[str, list[float]]:
            drawn.extend(islice(coming, max(lines - len(drawn), 0)))
            before = int(share * lines) if self.depth is None else round(self.depth * lines)
            return "\n".join([*drawn[:before], *needles, *drawn[before:lines]]), [before / lines if lines else 0.0]

        return Context(lay)


class NoiseNiah(InLines):
    """A number in noise. A line of it is all five sentences, always the same, as RULER's code has it."""

    kind: Literal["niah-single-1"] = "niah-single-1"

    def lines(self, rng: random.Random, keys: Sequence[str]) -> Iterator[str]:
        return repeat(NOISE)


class AmongNeedles(InLines):
    """Among needles of other keys."""

    def lines(self, rng: random.Random, keys: Sequence[str]) -> Iterator[str]:
        while True:
            key = self.key(rng)
            if key not in keys:
                yield self.needle(key, self.value(rng))


class NumbersNiah(AmongNeedles):
    """A number among needles of other keys."""

    kind: Literal["niah-multikey-2"] = "niah-multikey-2"


class UuidsNiah(AmongNeedles):
    """A UUID among needles of other keys, which are UUIDs, too."""

    value_kind: ClassVar[str] = "uuid"

    kind: Literal["niah-multikey-3"] = "niah-multikey-3"

    @property
    def provenance(self) -> dict[str, str]:
        return {}

    def key(self, rng: random.Random) -> str:
        return random_uuid(rng)

    def value(self, rng: random.Random) -> str:
        return random_uuid(rng)


class InText(Niah):
    """In a text, between two sentences. (RULER writes a space also at the start and the end of a text.)"""

    haystack: HaystackText = "stories"
    """``stories``, small ones that are made for each sample (RULER's own text, Paul Graham's essays, does not ship with the
    project), or a text file, of which training uses the first four fifths and evaluation the rest."""

    @property
    def provenance(self) -> dict[str, str]:
        return super().provenance | {"haystack": haystack_origin(self.haystack)}

    def shares(self, rng: random.Random) -> list[float]:
        """Return the share of the sentences before each needle, ascending: different ones of RULER's 40."""
        return [place / 100 for place in sorted(rng.sample(DEPTHS, self.keys * self.values))]

    def context(self, rng: random.Random, split: Split, needles: Sequence[str], keys: Sequence[str]) -> Context:
        shares = self.shares(rng)
        haystack = Haystack(self.haystack, random.Random(rng.getrandbits(64)), split)

        def lay(words: int) -> tuple[str, list[float]]:
            sentences, parts, done = haystack.take(words), list[str](), 0
            for share, needle in zip(shares, needles, strict=True):
                place = int(len(sentences) * share)
                parts += [" ".join(sentences[done:place]), needle]
                done = place
            depths = [int(len(sentences) * share) / max(len(sentences), 1) for share in shares]
            return " ".join([*parts, " ".join(sentences[done:])]), depths

        return Context(lay, haystack.max_words, haystack.unit)


class Single(InText):
    """One needle, which may be put anywhere."""

    depth: Depth = None
    """Share of the sentences before the needle. Left out: at random, as RULER draws it."""

    def shares(self, rng: random.Random) -> list[float]:
        return super().shares(rng) if self.depth is None else [self.depth]


class TextNiah(Single):
    """A number in a text."""

    kind: Literal["niah-single-2"] = "niah-single-2"


class UuidNiah(Single):
    """A UUID in a text."""

    value_kind: ClassVar[str] = "uuid"

    kind: Literal["niah-single-3"] = "niah-single-3"

    def value(self, rng: random.Random) -> str:
        return random_uuid(rng)


class MultikeyNiah(InText):
    """Four keys in a text, one of which is asked for."""

    kind: Literal["niah-multikey-1"] = "niah-multikey-1"
    keys: ClassVar[int] = 4


class MultivalueNiah(InText):
    """A key in a text with four values, all of which are asked for."""

    kind: Literal["niah-multivalue"] = "niah-multivalue"
    values: ClassVar[int] = 4


class MultiqueryNiah(InText):
    """Four keys in a text, all of which are asked for."""

    kind: Literal["niah-multiquery"] = "niah-multiquery"
    keys: ClassVar[int] = 4
    queries: ClassVar[int] = 4
