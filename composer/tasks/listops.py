"""ListOps of the Long Range Arena: nested operations on digits, and the digit that they evaluate to."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from composer.errors import TaskError
from composer.tasks.base import MOST_DRAWS, Sample, Scored, Split, Task, apart, make_sample
from composer.tasks.writer import Writer, fit

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
"""The symbol that begins an operation. A median between two digits is rounded down."""
END = "]"
MOST_TREES = 100_000
"""Largest number of trees that are drawn for one expression."""


@dataclass(frozen=True)
class Tree:
    """An operation on trees, or a digit."""

    value: int
    symbols: tuple[str, ...]
    """The expression: operators with their brackets, digits, and closing brackets."""
    nested: str
    """The expression with the original's parentheses."""


class TooLong(Exception):
    """More symbols than there may be."""


class ListOps(Task):
    """A tree is drawn from its root, an operation with some probability and else a digit, anew until it has as many symbols as it
    may have. The expression is the prompt. Where ``length`` cannot hold the longest ones, those are left out that do not fit."""

    source: ClassVar[str] = (
        "Tay et al. 2020 (Long Range Arena), arXiv:2011.04006, its listops.py; Nangia & Bowman 2018, arXiv:1804.06028"
    )
    scored: ClassVar[Scored] = "written"

    kind: Literal["listops"] = "listops"
    above: PositiveInt = 500
    """An expression has more symbols than this: operators, digits and closing brackets, as the original counts them."""
    below: PositiveInt = 2000
    """It has fewer than this."""
    depth: PositiveInt = 10
    """The largest depth of a tree. The root has depth 1, and the deepest operations are one above the largest depth."""
    arguments: Annotated[int, Field(ge=2)] = 10
    """The most arguments of an operation; there are at least 2."""
    probability: Annotated[float, Field(gt=0, le=1)] = 0.25
    """Probability of an operation, where there may be one."""
    parentheses: bool = False
    """Whether the parentheses of the original's files are written. They pair an operator with its arguments one by one, add nothing
    to the brackets, are not counted, and the original's own reader drops them."""

    @model_validator(mode="after")
    def _some_between(self) -> Self:
        if self.below < self.above + 2:
            raise ValueError(f"no number of symbols is above {self.above} and below {self.below}")
        return self

    def sample(self, rng: random.Random, writer: Writer, length: int, split: Split) -> Sample:
        for symbol in (*OPERATORS, END):
            writer.check(symbol)

        def write(tree: Tree) -> str:
            return tree.nested if self.parentheses else " ".join(tree.symbols)

        # So many symbols have the fewest tokens where all but two are digits: no longer tree fits than one of that kind.
        def least(more: int) -> int:
            flat = operation("[MAX", [Tree(0, ("0",), "0")] * (self.above - 1 + more))
            return writer.count(f"{write(flat)} 0")

        room = self.below - self.above - 2
        if least(room) > length:
            room = fit(least, length, f"{self.name} of more than {self.above} symbols")

        for _ in range(MOST_DRAWS):
            tree = apart(rng, split, lambda draws: self.tree(draws, self.above + 2 + room))
            sample = make_sample(writer, write(tree), str(tree.value))
            if len(sample.ids) <= length:
                return sample
        raise TaskError(
            f"{self.name}: of {MOST_DRAWS} expressions of more than {self.above} symbols, none fits in {length} tokens. "
            "Set a longer length, or a smaller `above`."
        )

    def tree(self, rng: random.Random, below: int) -> Tree:
        """Return one with as many symbols as there may be."""
        for _ in range(MOST_TREES):
            try:
                tree = self.node(rng, 1, below - 1)
            except TooLong:
                continue
            if len(tree.symbols) > self.above:
                return tree
        raise TaskError(f"{self.name}: of {MOST_TREES} trees, none has more than {self.above} symbols and fewer than {below}.")

    def node(self, rng: random.Random, depth: int, limit: int) -> Tree:
        """limit: symbols that are left."""
        if depth >= self.depth or rng.random() > self.probability:
            if limit < 1:
                raise TooLong
            digit = rng.randrange(10)
            return Tree(digit, (str(digit),), str(digit))
        remaining, children = limit - 2, []
        for _ in range(rng.randint(2, self.arguments)):
            children.append(self.node(rng, depth + 1, remaining))
            remaining -= len(children[-1].symbols)
        return operation(rng.choice(list(OPERATORS)), children)

    def score(self, sample: Sample, written: str) -> float:
        """1 where the first number that is written is the answer."""
        assert sample.answers
        match = re.search(r"[0-9]+", written)
        return float(match is not None and match[0] == sample.answers[0])


def operation(name: str, arguments: list[Tree]) -> Tree:
    nested = name
    for part in (*(argument.nested for argument in arguments), END):
        nested = f"( {nested} {part} )"
    symbols = (name, *(symbol for argument in arguments for symbol in argument.symbols), END)
    return Tree(OPERATORS[name]([argument.value for argument in arguments]), symbols, nested)
