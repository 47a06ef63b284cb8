"""A dictionary of words and numbers, of which one number is requested."""

from __future__ import annotations

import random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from composer.errors import TaskError
from composer.tasks.base import Sample, Scored, Split, Task, apart, make_sample
from composer.tasks.ruler import words, words_origin
from composer.tasks.writer import Writer

PROMPT = "Memorize the following dictionary:\n{pairs}\nThe value of the key '{key}' is"
NUMBERS = range(10, 100)
"""The paper draws from 0 to 99. To a tokenizer of single digits 1 is always likelier than 17, which it begins."""


class Dictionary(Task):
    """Words, each with its own number; the number of one word is requested. The prediction is the number of the dictionary with the
    highest log probability after the prompt. Samples are as long as their pairs, up to ``length``: a text has no filler."""

    source: ClassVar[str] = "Bick et al. 2026 (Retrieval-Aware Distillation), arXiv:2602.11374; arXiv:2504.18574, appendix A.5"
    scored: ClassVar[Scored] = "candidates"

    kind: Literal["dictionary"] = "dictionary"
    pairs: Annotated[int, Field(ge=2, le=50)] = 20
    """Words of the dictionary. The papers use 10 to 50."""

    @property
    def provenance(self) -> dict[str, str]:
        return {"words": words_origin()}

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        nouns = [word for word in words("noun") if word.isalpha()]
        keys = apart(rng, split, lambda draws: tuple(draws.sample(nouns, self.pairs)))
        numbers = [str(number) for number in rng.sample(NUMBERS, self.pairs)]
        place = rng.randrange(self.pairs)
        prompt = PROMPT.format(pairs="\n".join(map(":".join, zip(keys, numbers, strict=True))), key=keys[place])
        writer.check(prompt)
        sample = make_sample(writer, prompt, numbers[place], depth=place / self.pairs, candidates=tuple(numbers))
        if len(sample.ids) > length:
            raise TaskError(f"dictionary of {self.pairs} pairs needs at least {len(sample.ids)} tokens, not {length}.")
        return sample

    def score(self, sample: Sample, written: str) -> float:
        """1 where the chosen number is the word's."""
        assert sample.answers
        return float(written.strip() == sample.answers[0])
