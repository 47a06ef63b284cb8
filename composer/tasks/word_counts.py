"""RULER's aggregation: the most frequent words of a long list."""

from __future__ import annotations

import random
import string
from typing import ClassVar, Literal

from pydantic import Field, PositiveInt

from composer.errors import TaskError
from composer.tasks.base import Sample, Split, apart, make_sample
from composer.tasks.ruler import Ruler, distinct, letters, source, words, words_origin
from composer.tasks.writer import Writer, fit

COMMON_TEMPLATE = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{context}\n"
    "Question: What are the 10 most common words in the above list? "
    "Answer: The top 10 words that appear most often in the list are:"
)
FREQUENT_TEMPLATE = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. {context}\n"
    "Question: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text? "
    "Answer: According to the coded text above, the three most frequently appeared words are:"
)
COMMON = 10
"""Words that are asked for."""
LONG = 4096
"""Number of tokens from which words are repeated as often as in RULER's settings; below it, less often."""
DOTS = "..."
"""The most frequent symbol of a coded text, which is no answer."""
CODED_LETTERS = 6
ZETA_TERMS = 20


class CommonWords(Ruler):
    """Ten words are repeated more often than all others, in random order (RULER orders those of all samples by one seed), as many
    others as fit. An example with its answer precedes them. RULER lets a model write 120 tokens."""

    source: ClassVar[str] = source("common_words_extraction.py")

    kind: Literal["common-words"] = "common-words"
    common: PositiveInt | None = None
    """How often each common word occurs. Left out: as in RULER, 30 times, and 6 times below 4,096 tokens."""
    uncommon: PositiveInt | None = None
    """How often each of the others. Left out: 3 times, and once below 4,096 tokens."""
    example: bool = True
    """Whether an example precedes the question. RULER's always does."""

    @property
    def provenance(self) -> dict[str, str]:
        return {"words": words_origin()}

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        vocabulary = sorted({*words("noun"), *words("adjective"), *words("verb")})
        long = length >= LONG
        often, seldom = self.common or (30 if long else 6), self.uncommon or (3 if long else 1)
        if often <= seldom:
            raise TaskError(
                f"{self.name}: common words occur {often} times, and others {seldom} times; expected common words to "
                "occur more often."
            )
        first = write_example(rng, vocabulary, long=long) if self.example else ""
        common = apart(rng, split, lambda draws: tuple(draws.sample(vocabulary, COMMON)))
        uncommon = [word for word in rng.sample(vocabulary, len(vocabulary)) if word not in common]
        seed, reply = rng.getrandbits(64), number_lines(common)

        def prompt(others: int) -> str:
            return first + COMMON_TEMPLATE.format(context=list_words(random.Random(seed), common, often, uncommon[:others], seldom))

        others = fit(
            lambda others: writer.count(f"{prompt(others)} {reply}"),
            length,
            self.name,
            len(uncommon),
            f"words besides the {COMMON} common ones, each {seldom} times,",
        )
        if others == 0:
            raise TaskError(f"{self.name} needs room for a less common word: set a length above {length} tokens.")
        for word in (*common, *uncommon[:others]):
            writer.check(word)
        return make_sample(writer, prompt(others), reply, common)


def write_example(rng: random.Random, vocabulary: list[str], *, long: bool) -> str:
    """Return the example: 40 words, or 20 below 4,096 tokens."""
    drawn = rng.sample(vocabulary, 40 if long else 20)
    context = list_words(rng, drawn[:COMMON], 10 if long else 3, drawn[COMMON:], 3 if long else 1)
    return f"{COMMON_TEMPLATE.format(context=context)} {number_lines(drawn[:COMMON])}\n"


def list_words(rng: random.Random, common: tuple[str, ...] | list[str], often: int, uncommon: list[str], seldom: int) -> str:
    order = [*common] * often + uncommon * seldom
    rng.shuffle(order)
    return number_lines(order)


def number_lines(entries: tuple[str, ...] | list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(entries, start=1))


class FrequentWords(Ruler):
    """Random words of six letters, the one of rank k ⌊n k^-alpha / ζ(alpha)⌋ times, for the largest n that fits, in random order.
    Three dots have the first rank, and the next three are the answer. Unlike RULER, which leaves it to chance, n is such that the
    third answer occurs more often than the word after it. RULER lets a model write 50 tokens, and counts none of them."""

    source: ClassVar[str] = source("freq_words_extraction.py")

    kind: Literal["frequent-words"] = "frequent-words"
    alpha: float = Field(default=2.0, gt=1)
    vocabulary: PositiveInt | None = None
    """How many different words there are, the dots included. Left out: one for every 50 tokens of the length."""

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        size = self.vocabulary or length // 50
        if size < 4:
            raise TaskError(
                f"{self.name} needs at least 4 different words, not {size}: set a length of 200 tokens or more, or set "
                "`vocabulary`."
            )
        first = apart(rng, split, lambda draws: tuple(self.draw_codes(draws, 3)))
        uncommon = [word for word in self.draw_codes(rng, size) if word not in first]
        ranked, seed, reply = [DOTS, *first, *uncommon][:size], rng.getrandbits(64), " ".join(first)
        scale = zeta(self.alpha)

        def counts(total: int) -> list[int]:
            return [int(total * rank**-self.alpha / scale) for rank in range(1, size + 1)]

        def prompt(total: int) -> str:
            text = [word for word, count in zip(ranked, counts(total), strict=True) for _ in range(count)]
            random.Random(seed).shuffle(text)
            return FREQUENT_TEMPLATE.format(context=" ".join(text))

        def clear(total: int) -> bool:
            third, *after = counts(total)[3:5]
            return third > max(after, default=0)

        max_words = fit(lambda total: writer.count(f"{prompt(total)} {reply}"), length, self.name)
        total = next((total for total in range(max_words, 0, -1) if clear(total)), None)
        if total is None:
            raise TaskError(f"{self.name} needs more than {length} tokens for a third most frequent word.")
        for word in ranked:
            writer.check(word)
        return make_sample(writer, prompt(total), reply, first)

    @staticmethod
    def draw_codes(rng: random.Random, count: int) -> list[str]:
        return distinct(count, lambda: letters(rng, string.ascii_lowercase, CODED_LETTERS))


def zeta(exponent: float) -> float:
    """Σ k^-exponent over k = 1, 2, …, by Euler and Maclaurin's formula after the first terms. exponent: more than 1."""
    terms = ZETA_TERMS
    head = sum(k**-exponent for k in range(1, terms))
    tail = terms ** (1 - exponent) / (exponent - 1) + terms**-exponent / 2
    first = exponent * terms ** (-exponent - 1) / 12
    second = exponent * (exponent + 1) * (exponent + 2) * terms ** (-exponent - 3) / 720
    return head + tail + first - second
