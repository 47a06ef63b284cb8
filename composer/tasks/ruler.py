"""What RULER's tasks share: its words, its drawn names, and its score."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from functools import lru_cache
from importlib import resources
from typing import ClassVar, Literal

from composer.system.versions import version_of
from composer.tasks.base import Sample, Scored, Task

PartOfSpeech = Literal["adjective", "noun", "verb"]


class Ruler(Task):
    """``length`` is the prompt and its answer; RULER's lengths are the prompt and the tokens that a model may write."""

    scored: ClassVar[Scored] = "written"

    def score(self, sample: Sample, written: str) -> float:
        """Share of the answers that occur anywhere in the generated text, in any case: RULER's ``string_match_all``."""
        assert sample.answers
        return sum(answer.lower() in written.lower() for answer in sample.answers) / len(sample.answers)


def source(script: str) -> str:
    return f"Hsieh et al. 2024 (RULER), arXiv:2404.06654; its {script}"


@lru_cache(maxsize=3)
def words(part: PartOfSpeech) -> tuple[str, ...]:
    """Return one of the lists of the package wonderwords, the source of RULER's words, in the list's order."""
    listed = resources.files("wonderwords.assets").joinpath(f"{part}list.txt").read_text(encoding="utf-8")
    return tuple(word.rstrip() for word in listed.splitlines())


def words_origin() -> str:
    """As ``Task.provenance`` records it."""
    return f"wonderwords {version_of('wonderwords')}"


def word_pair(rng: random.Random) -> str:
    """Return an adjective and a noun, each as likely as any other."""
    return f"{rng.choice(words('adjective'))}-{rng.choice(words('noun'))}"


def number(rng: random.Random) -> str:
    """Seven digits, the first of which is not 0."""
    return str(rng.randint(10**6, 10**7 - 1))


def random_uuid(rng: random.Random) -> str:
    """Return a random UUID of version 4, from the generator's numbers."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def letters(rng: random.Random, alphabet: str, count: int) -> str:
    return "".join(rng.choices(alphabet, k=count))


def distinct(count: int, draw: Callable[[], str]) -> list[str]:
    """Return the first so many different draws, in their order."""
    draws: dict[str, None] = {}
    while len(draws) < count:
        draws[draw()] = None
    return list(draws)
