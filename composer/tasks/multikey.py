"""Several pass keys in filler, each with a name; one is asked for."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from composer.tasks.base import Depth
from composer.tasks.needles import Hidden, Needle, Needles, keys_of, names_of
from composer.tasks.recall import KEYS


class Multikey(Needles):
    """Several names in filler, each with a pass key; one is asked for. The correct answer is the whole key. A guess among the keys
    of the text is right once in ``keys``."""

    kind: Literal["multikey"] = "multikey"
    keys: Annotated[int, Field(ge=2, le=len(KEYS))] = 4
    """How many are hidden."""
    depth: Depth = None
    """Share of the filler before the requested needle. Left out: at random, as for the others."""

    @property
    def chance(self) -> float:
        return 1 / self.keys

    def needles(self, rng: random.Random) -> list[Needle]:
        return list(zip(names_of(rng, self.keys), keys_of(rng, self.keys), strict=True))

    def draw_queries(self, rng: random.Random) -> list[int]:
        return [rng.randrange(self.keys)]

    def place(self, hidden: Hidden, filler: int, drawn: Sequence[int]) -> Sequence[int]:
        if self.depth is None:
            return drawn
        (queried,) = hidden.queried
        return [round(self.depth * filler) if needle == queried else before for needle, before in enumerate(drawn)]
