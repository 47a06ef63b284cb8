"""Passkey retrieval: a number hidden in filler, asked for at the end."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from typing import ClassVar, Literal

from composer.tasks.base import Depth, Sample, Scored, Split, Task, apart, make_sample
from composer.tasks.writer import Writer, fullest

TASK = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize {it}. "
    "I will quiz you about the important information there."
)
FILLER = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
NEEDLE = "The pass key is {key}. Remember it. {key} is the pass key."
QUESTION = "What is the pass key? The pass key is"
LARGEST_ORIGINAL = 50_000

Wording = Literal["plain", "original"]


class Passkey(Task):
    """The filler has the largest length that fits. The needle is at a uniformly random place in it."""

    source: ClassVar[str] = "Mohtashami & Jaggi 2023, arXiv:2305.16300; LAWCAT trains on it"
    scored: ClassVar[Scored] = "written"

    kind: Literal["passkey"] = "passkey"
    form: Wording = "plain"
    """plain: one line of whole sentences, and a key of five digits. original: as the paper's code has it, five lines, filler cut at
    any character and begun anew after the needle, and a key from 1 to 50,000."""
    depth: Depth = None
    """Share of the filler before the needle. Left out: at random."""

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        key = apart(rng, split, five_digits if self.form == "plain" else number)
        writer.check(NEEDLE.format(key=key))
        prompt, depth = write_prompt(rng, key, self.form, length, writer.count, self.depth)
        return make_sample(writer, prompt, key, depth=depth)

    def score(self, sample: Sample, written: str) -> float:
        """1 where the first five digits in a row are the key's, or, as in the original, the first number is the key."""
        assert sample.answers
        match = re.search(r"[0-9]{5}" if self.form == "plain" else r"[0-9]+", written)
        return float(match is not None and match[0] == sample.answers[0])


def five_digits(rng: random.Random) -> str:
    return "".join(rng.choice("0123456789") for _ in range(5))


def number(rng: random.Random) -> str:
    return str(rng.randint(1, LARGEST_ORIGINAL))


def plain(key: str, before: int, after: int) -> str:
    """before, after: sentences of filler on either side of the needle."""
    return in_filler([(before, NEEDLE.format(key=key))], before + after, QUESTION)


def in_filler(needles: Iterable[tuple[int, str]], filler: int, question: str) -> str:
    """Return one line. needles: each with the sentences of filler before it, in that order."""
    sentences = [FILLER[index % len(FILLER)] for index in range(filler)]
    for index, (before, needle) in enumerate(needles):
        sentences.insert(before + index, needle)
    return " ".join([TASK.format(it="it"), *sentences, question])


def original(key: str, before: int, after: int) -> str:
    """before, after: characters of filler on either side of the needle; both begin with the grass."""
    grass = " ".join(FILLER) + " "
    filler = grass * (max(before, after) // len(grass) + 1)
    return "\n".join([TASK.format(it="them"), filler[:before], NEEDLE.format(key=key), filler[:after], QUESTION])


FORMS: dict[Wording, Callable[[str, int, int], str]] = {"plain": plain, "original": original}


def write_prompt(
    rng: random.Random, key: str, form: Wording, tokens: int, count: Callable[[str], int], depth: float | None = None
) -> tuple[str, float]:
    """Return the longest text up to the question that has at most ``tokens`` with its answer, and the depth of the needle in the
    filler. rng: draws the needle's place; exactly one number is drawn.
    """

    def place(filler: int) -> tuple[str, float]:
        before = rng.randint(0, filler) if depth is None else round(depth * filler)
        return FORMS[form](key, before, filler - before), before / filler if filler else 0.0

    return fullest(rng, place, lambda laid: count(f"{laid[0]} {key}"), tokens, "passkey")
