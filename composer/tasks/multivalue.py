"""One name in filler with several pass keys; all are asked for."""

from __future__ import annotations

import random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from composer.tasks.base import Sample
from composer.tasks.needles import DIGITS, Needle, Needles, keys_of, names_of


class Multivalue(Needles):
    """One name in filler with several pass keys; all are asked for. The answer to learn has them in the order of the text; any
    order of all of them is correct. A guess of their digits is right once in 10⁵ for each."""

    question: ClassVar[str] = "What is the pass key of {names}? Find all of them. The pass key of {names} is"
    in_order: ClassVar[bool] = True

    kind: Literal["multivalue"] = "multivalue"
    values: Annotated[int, Field(ge=2, le=64)] = 4
    """How many pass keys."""

    @property
    def chance(self) -> float:
        return 10.0 ** (-DIGITS * self.values)

    def needles(self, rng: random.Random) -> list[Needle]:
        (name,) = names_of(rng, 1)
        return [(name, key) for key in keys_of(rng, self.values)]

    def draw_queries(self, rng: random.Random) -> list[int]:
        return list(range(self.values))

    def score(self, sample: Sample, written: str) -> float:
        """1 where the numbers of five digits that are written first are all answers, in any order."""
        assert sample.answers
        return float(sorted(self.extract_numbers(sample, written)) == sorted(sample.answers))
