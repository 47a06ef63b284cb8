"""Multi-query associative recall in words: pairs are written once, and then each key is asked for repeatedly."""

from __future__ import annotations

import random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from composer.tasks.base import Sample, Scored, Split, Task, apart
from composer.tasks.writer import Writer, fullest

# These words appear in no other text of the teacher's, so that a key identifies the kind of text.
KEY_WORDS = """
otter heron badger falcon lizard turtle walrus beaver donkey parrot pigeon spider salmon oyster lobster panther
jackal gibbon ferret weasel magpie raven swan stork moth cricket beetle hornet viper cobra gecko newt
trout perch herring squid shrimp coral whale dolphin seal penguin puffin toucan ostrich camel llama bison
moose yak zebra giraffe lion tiger leopard cheetah hyena lemur koala panda sloth tapir hamster hedgehog
"""
VALUE_WORDS = """
velvet copper marble cotton silver granite linen bronze leather crystal paper rubber cement plaster ivory amber
pepper ginger garlic saffron vanilla mustard basil clove nutmeg parsley walnut almond pecan cashew raisin olive
hammer chisel shovel ladder bucket needle ribbon button zipper buckle pencil violin trumpet guitar piano flute
anchor rudder engine piston rocket magnet candle mirror pillow blanket carpet curtain kettle saucer teapot basket
"""
KEYS, VALUES = KEY_WORDS.split(), VALUE_WORDS.split()

Pair = tuple[str, str]


class Recall(Task):
    """Every key is asked for once, in random order, before any is repeated, as far as there is room."""

    source: ClassVar[str] = (
        "after Arora et al. 2023 (Zoology), arXiv:2312.04927, with dense queries; the shipped teacher learned it"
    )
    scored: ClassVar[Scored] = "tokens"

    kind: Literal["recall"] = "recall"
    pairs: Annotated[int, Field(ge=2, le=len(KEYS))] = 32
    """Keys, each with its own value."""

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        pairs = apart(rng, split, lambda draws: draw_pairs(draws, self.pairs))
        for pair in pairs:
            writer.check(" ".join(pair))

        def draw_sequence(more: int) -> list[Pair]:
            """One query is the least."""
            return [*pairs, *draw_queries(rng, pairs, more + 1)]

        words = fullest(rng, draw_sequence, lambda words: writer.count(text_of(words)), length, f"recall of {self.pairs} pairs")
        ids, answer = writer.encode_spans(text_of(words), value_spans(words, len(pairs)))
        return Sample(ids, answer, text_of(words))


def draw_pairs(rng: random.Random, pairs: int) -> list[Pair]:
    """Keys with their values."""
    keys = rng.sample(KEYS, pairs)
    return list(zip(keys, rng.sample(VALUES, pairs), strict=True))


def draw_queries(rng: random.Random, pairs: list[Pair], queries: int) -> list[Pair]:
    """Return as many pairs as queries, in random order; each pair occurs once before any is repeated."""
    order = rng.sample(pairs, len(pairs)) + rng.choices(pairs, k=max(0, queries - len(pairs)))
    return order[:queries]


def text_of(words: list[Pair]) -> str:
    return " ".join(f"{key} {value}" for key, value in words)


def value_spans(words: list[Pair], first: int) -> list[tuple[int, int]]:
    """Return the places of the values in the text, each with the space before it, from the pair ``first`` on."""
    spans, place = [], 0
    for key, value in words:
        spans.append((place + len(key), place + len(key) + 1 + len(value)))
        place = spans[-1][1] + 1
    return spans[first:]
