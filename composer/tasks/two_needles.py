"""Two pass keys in filler, each with a name; both are asked for."""

from __future__ import annotations

import random
from typing import Literal

from composer.tasks.needles import Needle, Needles, keys_of, names_of


class TwoNeedles(Needles):
    """Two names in filler, each with a pass key; both are asked for, in either order. The correct answer is both keys, in the order
    of the question. A guess with both keys of the text in random order is right once in two."""

    kind: Literal["two-needles"] = "two-needles"

    @property
    def chance(self) -> float:
        return 1 / 2

    def needles(self, rng: random.Random) -> list[Needle]:
        return list(zip(names_of(rng, 2), keys_of(rng, 2), strict=True))

    def draw_queries(self, rng: random.Random) -> list[int]:
        return rng.sample((0, 1), 2)
