"""Background text: small stories made for each sample, without end, or a text file."""

from __future__ import annotations

import random
import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal

from composer.errors import TaskError
from composer.system.files import MOST_SENTENCES, read_text_file
from composer.tasks.base import Split, apart, origin, stamp
from composer.tasks.stories import story

BUILT_IN = "stories"
HaystackText = Literal["stories"] | Path
"""``stories``, those of ``composer.tasks.stories``, or a text file: training uses its first four fifths, evaluation the rest."""

TRAINING_SHARE = 4 / 5


class Haystack:
    """Sentences, made as they are needed, and cut by the word."""

    max_words: int | None
    """Number of words, if it is limited. No more may be used."""
    unit: str
    """What the words are, for a message that they are too few."""

    def __init__(self, text: HaystackText, rng: random.Random, split: Split) -> None:
        self.max_words = None if text == BUILT_IN else words_of(Path(text), split)
        self.unit = f"words of the haystack {text} that {split} may read"
        self._coming = sentences(text, rng, split)
        self._sentences: list[list[str]] = []
        self._words: list[int] = [0]

    def take(self, words: int) -> list[str]:
        """Return the first so many words, as sentences; the last one may be cut."""
        while self._words[-1] < words:
            self._sentences.append(next(self._coming).split())
            self._words.append(self._words[-1] + len(self._sentences[-1]))
        count = bisect_left(self._words, words)
        whole_sentences = [" ".join(sentence) for sentence in self._sentences[: max(count - 1, 0)]]
        missing_words = words - self._words[max(count - 1, 0)]
        return [*whole_sentences, " ".join(self._sentences[count - 1][:missing_words])] if missing_words else whole_sentences


def sentences(text: HaystackText, rng: random.Random, split: Split) -> Iterator[str]:
    """Yield stories without end, or every sentence of the file's part once: evaluation begins at the start of the part, as RULER
    does. Training begins anywhere, and continues from the part's end to its start."""
    if text == BUILT_IN:
        while True:
            yield from split_sentences(apart(rng, split, story))
    part = part_of(Path(text), split)
    start = rng.randrange(len(part)) if split == "train" else 0
    yield from chain(part[start:], part[:start])


def haystack_origin(text: HaystackText) -> str:
    """As ``Task.provenance`` records it."""
    return "built-in: small stories of this project, not the original's text" if text == BUILT_IN else origin(Path(text))


def part_of(path: Path, split: Split) -> list[str]:
    first, last = read(path)
    return first if split == "train" else last


def words_of(path: Path, split: Split) -> int:
    return _words_of(path, split, stamp(path))


@lru_cache(maxsize=8)
def _words_of(path: Path, split: Split, _: tuple[int, int]) -> int:
    return sum(len(sentence.split()) for sentence in part_of(path, split))


def split_sentences(text: str) -> list[str]:
    """Cut after ``.``, ``!`` and ``?`` where a space follows."""
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text).strip()) if sentence]


def read(path: Path) -> tuple[list[str], list[str]]:
    """Return the sentences of a file: training's, and evaluation's."""
    return _read(path, stamp(path))


@lru_cache(maxsize=4)
def _read(path: Path, _: tuple[int, int]) -> tuple[list[str], list[str]]:
    sentences = split_sentences(read_text_file(path, TaskError, MOST_SENTENCES, f"The haystack {path}"))
    cut = int(len(sentences) * TRAINING_SHARE)
    if cut == 0:
        raise TaskError(f"The haystack {path} has {len(sentences)} sentences: too few to keep training and evaluation apart.")
    return sentences[:cut], sentences[cut:]
