"""MQAR, multi-query associative recall in symbols: pairs first, and each key once more, after a gap that follows a power law."""

from __future__ import annotations

import random
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from composer.errors import TaskError
from composer.tasks.base import Sample, Scored, Split, Task, apart
from composer.tasks.writer import Writer

UNLABELLED = -100
NOTHING = 0
"""The symbol that is neither a key nor a value."""


class Mqar(Task):
    """Keys are of the lower half of the vocabulary, values of the upper.

    In the original an answer is only a label, and any symbol follows a query. Here the value follows it, as each token of a text is
    learned from the tokens before it. Each key is asked for only once, so that no answer is known from an earlier one.
    """

    source: ClassVar[str] = "Arora et al. 2023 (Zoology), arXiv:2312.04927, section 4; its multiquery_ar"
    scored: ClassVar[Scored] = "tokens"

    kind: Literal["mqar"] = "mqar"
    pairs: PositiveInt = 8
    vocabulary: PositiveInt | None = None
    """How many symbols there are: the first so many of the tokenizer's tokens, special ones left out. Left out: all of those."""
    power: PositiveFloat = 0.01
    """a in p(gap) ∝ gap^(a - 1); 1 makes all gaps as likely."""
    random_non_queries: bool = True
    """Whether random symbols are between queries; otherwise always the first symbol."""

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        ordinary = writer.ordinary
        size = len(ordinary) if self.vocabulary is None else self.vocabulary
        if size > len(ordinary):
            raise TaskError(f"mqar: the tokenizer has {len(ordinary)} tokens that are not special, not {size}.")
        symbols = (length - len(writer.begin)) // 2 * 2

        def draw(draws: random.Random) -> tuple[list[int], list[int]]:
            inputs, labels = multiquery_ar(
                size, 1, symbols, draws.getrandbits(32), self.power, self.pairs, random_non_queries=self.random_non_queries
            )
            return inputs[0].tolist(), labels[0].tolist()

        inputs, labels = apart(rng, split, draw)
        is_query = [label != UNLABELLED for label in labels]
        previous_labels = [NOTHING, *labels[:-1]]
        is_answer = [False, *is_query[:-1]]
        sequence = [value if answer else symbol for symbol, value, answer in zip(inputs, previous_labels, is_answer, strict=True)]
        ids = (*writer.begin, *(ordinary[symbol] for symbol in sequence))
        return Sample(ids, (*(False for _ in writer.begin), *is_answer), writer.decode(ids))


def multiquery_ar(
    vocabulary: int,
    examples: int,
    length: int,
    seed: int,
    power: float = 0.01,
    pairs: int = 8,
    *,
    random_non_queries: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels, int64, both (examples, length), as the original draws them from this seed. A label is the value for
    the key at its place, or -100. The symbols between queries are drawn last, from the same generator: the original draws them from
    torch's, which its seed does not set. Raises ``TaskError`` if no such text exists. (The original also refuses a vocabulary no
    larger than the length, which its draws do not need.)
    """
    context = 2 * pairs
    if length % 2:
        raise TaskError(f"mqar has an even number of symbols, not {length}.")
    if 2 * context > length:
        raise TaskError(f"mqar needs at least {2 * context} symbols for {pairs} pairs and their queries, not {length}.")
    half = vocabulary // 2
    if pairs >= half:
        raise TaskError(f"mqar needs a vocabulary of at least {2 * pairs + 2} for {pairs} different keys, not {vocabulary}.")
    draws = np.random.RandomState(seed)

    def rows(choices: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.stack([draws.choice(choices, size=pairs, replace=False, p=weights) for _ in range(examples)])

    keys = rows(np.arange(1, half))
    values = rows(np.arange(half, vocabulary))
    space = (length - context) // 2
    weights = power * np.arange(1, space + 1) ** (power - 1)
    places = context + 2 * rows(np.arange(space), weights / weights.sum())

    inputs = np.full((examples, length), NOTHING, dtype=np.int64)
    inputs[:, 0:context:2], inputs[:, 1:context:2] = keys, values
    np.put_along_axis(inputs, places, keys, axis=1)
    labels = np.full((examples, length), UNLABELLED, dtype=np.int64)
    np.put_along_axis(labels, places, values, axis=1)
    if random_non_queries:
        inputs = np.where(inputs == NOTHING, draws.randint(vocabulary, size=inputs.shape), inputs)
    return inputs, labels
