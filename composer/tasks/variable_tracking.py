"""RULER's variable tracking: assignments hidden in noise, and a question for every variable that has a value."""

from __future__ import annotations

import random
import string
from itertools import pairwise
from typing import ClassVar, Literal

from pydantic import PositiveInt

from composer.tasks.base import Sample, Split, apart, make_sample
from composer.tasks.niah import NOISE
from composer.tasks.ruler import Ruler, distinct, letters, source
from composer.tasks.writer import Writer, fit

# The space at the end is RULER's: there are two spaces before the first variable, in the example and in the answer.
TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {value} in the text above. "
    "Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the value {value}, "
    "they are: "
)
EXAMPLE_TOKENS = 500
EXAMPLE_NOISE = 5
"""Lines of noise at least, even if they have more tokens than an example should."""

VariableChain = tuple[str, tuple[str, ...]]
"""A value, and the variables that get it, one from another."""


class VariableTracking(Ruler):
    """The first chain's value is asked for. Each assignment is a line, at a separate place among the lines of noise, of which there
    are at least as many. An example of at most 500 tokens precedes it, whose variables are shorter. RULER lets a model write 30
    tokens."""

    source: ClassVar[str] = source("variable_tracking.py")

    kind: Literal["variable-tracking"] = "variable-tracking"
    chains: PositiveInt = 1
    hops: PositiveInt = 4
    """Assignments of one variable to another in a chain."""
    example: bool = True
    """Whether an example precedes the question. RULER's always does."""

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        chains = apart(rng, split, lambda draws: self.draw_chains(draws, 5))
        for chain in chains:
            for line in assignments(chain):
                writer.check(line)
        seed, first = rng.getrandbits(64), self.write_example(rng, writer) if self.example else ""
        reply, least = " ".join(chains[0][1]), self.hops + 1

        def prompt(more: int) -> str:
            return first + self.write_prompt(random.Random(seed), chains, least + more)

        more = fit(lambda more: writer.count(f"{prompt(more)} {reply}"), length, self.name)
        return make_sample(writer, prompt(more), reply, chains[0][1])

    def write_example(self, rng: random.Random, writer: Writer) -> str:
        """Return the example with its answer, as long as fits, and the blank line after it."""
        chains, seed = self.draw_chains(rng, 3), rng.getrandbits(64)

        def prompt(more: int) -> str:
            return self.write_prompt(random.Random(seed), chains, max(EXAMPLE_NOISE, self.hops + 1) + more)

        def count(more: int) -> int:
            return len(writer.encode(prompt(more), begin=False))

        more = fit(count, max(EXAMPLE_TOKENS, count(0)), self.name)
        return f"{prompt(more)} {' '.join(chains[0][1])}\n\n"

    def draw_chains(self, rng: random.Random, size: int) -> tuple[VariableChain, ...]:
        """size: letters of a variable."""
        steps = self.hops + 1
        names = distinct(self.chains * steps, lambda: letters(rng, string.ascii_uppercase, size))
        values = distinct(self.chains, lambda: str(rng.randrange(10_000, 99_999)))
        return tuple((value, tuple(names[place * steps : (place + 1) * steps])) for place, value in enumerate(values))

    def write_prompt(self, rng: random.Random, chains: tuple[VariableChain, ...], noise: int) -> str:
        """noise: lines of it. One chain after another is laid among all lines that are there."""
        lines = [NOISE] * noise
        for chain in chains:
            statements = assignments(chain)
            for done, place in enumerate(sorted(rng.sample(range(len(lines)), len(statements)))):
                lines.insert(place + done, statements[done])
        return TEMPLATE.format(context="\n".join(lines), value=chains[0][0], count=self.hops + 1)


def assignments(chain: VariableChain) -> list[str]:
    """As RULER writes them: with a space after each but the first."""
    value, names = chain
    return [f"VAR {names[0]} = {value}", *(f"VAR {name} = VAR {before} " for before, name in pairwise(names))]
