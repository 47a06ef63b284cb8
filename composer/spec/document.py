"""The spec document: the contents of a YAML file, before it is resolved on a source model. Version 1.

The parts inside are those of the catalogue of ``blocks``. The ``kind`` selects the part, and a bare word ``x`` is ``{kind: x}``.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, PrivateAttr, StringConstraints, field_validator, model_validator

from blocks.part import TO_CHANGE_A_SPEC, Closed, FieldError, FieldPath, Integer
from composer.graph.composition import HeadSpec
from composer.spec.dimensions import Dimensions
from composer.spec.places import Place, Places, brief
from composer.spec.recipe import Recipe
from composer.spec.trunk import TrunkSpec

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$")]
HeadShare = Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,8}/[1-9][0-9]{0,8}$")]

MOST_GROUPS, MOST_RULES, MOST_NUMBERS = 256, 4096, 4096
"""Limits: groups in a layer, rules in a document, numbers of key heads in a group. The time to check groups and rules grows with
the square."""

REST = "rest"
KeyHeads = Annotated[tuple[NonNegativeInt, ...], Field(min_length=1, max_length=MOST_NUMBERS)]


class HeadsOf(Closed):
    """Query heads of a layer that are composed alike."""

    head: Name
    """Which head they are."""
    heads: PositiveInt | HeadShare | Literal["rest"] | KeyHeads
    """How many query heads, a share of the layer's such as ``1/4``, a list of the numbers of key heads from 0, or ``rest``."""


class LayerRule(Closed):
    """The heads of some layers. A later rule overrides an earlier one."""

    at: (
        int
        | tuple[int, ...]
        | Annotated[str, StringConstraints(pattern=r"^(all|(-?[0-9]{1,9})?:(-?[0-9]{1,9})?(:-?[0-9]{1,9})?)$")]
    )
    """A layer, a list of layers, a range ``first:end:step`` as Python slices, or ``all``. -1 is the last layer."""
    use: Name | Annotated[tuple[HeadsOf, ...], Field(min_length=1, max_length=MOST_GROUPS)]
    """A head for all heads of the layer, or a list ``{head, heads}`` of groups inside it. Groups with counts or shares follow each
    other in this order; groups with numbers are listed in any order."""


Varied = Annotated[str, StringConstraints(pattern=r"^[^\s=.\[\]]+(\.[^\s=.\[\]]+|\[-?\d+\])*$")]
VariantName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
Values = Annotated[tuple[Any, ...], Field(min_length=1)]

MOST_VARIANTS, MOST_VARIED = 1000, 64
"""The most specs that a sweep makes, and the most paths that they differ at."""


class Vary(Closed):
    """A table of specs, by the values that its rows set. With both a grid and a zip, each combination of the grid is joined with
    each row of the zip."""

    grid: dict[Varied, Values] = Field(default_factory=dict)
    """Every combination: paths, as for ``--set``, and lists of their values. The last path changes fastest."""
    zip: dict[Varied, Values] = Field(default_factory=dict)
    """Side by side: the first value of each path, then the second of each, and so on."""
    names: Annotated[tuple[VariantName, ...], Field(min_length=1)] | None = None
    """One a variant, in their order. Left out: made of the values that differ."""

    @field_validator("grid")
    @classmethod
    def _values_differ(cls, grid: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        for path, values in grid.items():
            for index, value in enumerate(values[: MOST_VARIANTS + 1]):
                first = next(number for number, other in enumerate(values) if _alike(other, value))
                if first < index:
                    raise FieldError(f"the same value as [{first}], {brief(value)}: list it once", path, index)
        return grid

    @field_validator("zip")
    @classmethod
    def _sides_are_equally_long(cls, sides: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
        if len({len(values) for values in sides.values()}) > 1:
            counts = ", ".join(f"{path} has {len(values)}" for path, values in sides.items())
            raise ValueError(f"lists side by side need equally many values: {counts}")
        rows = list(zip(*sides.values(), strict=True))
        for index, row in enumerate(rows[: MOST_VARIANTS + 1]):
            first = next(number for number, other in enumerate(rows) if _alike(other, row))
            if first < index:
                values = ", ".join(map(brief, row))
                raise FieldError(f"the same values as [{first}], {values}: list them once", next(iter(sides)), index)
        return sides

    @field_validator("names")
    @classmethod
    def _names_differ(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        twice = [name for name, count in Counter(names or ()).items() if count > 1]
        if twice:
            raise ValueError(f'names two variants "{twice[0]}"')
        return names

    @model_validator(mode="after")
    def _check_paths(self) -> Self:
        steps = Counter(setting_steps(path) for path in (*self.grid, *self.zip))
        twice = [".".join(path) for path, count in steps.items() if count > 1]
        if not steps:
            raise ValueError("varies nothing: add `grid:` or `zip:` with a path and a list of its values, or remove `vary`")
        if twice:
            raise ValueError(f"varies {twice[0]} twice: write all its values in one list")
        if len(steps) > MOST_VARIED:
            raise ValueError(f"varies {len(steps):,} paths; a sweep has at most {MOST_VARIED}")
        if self.count > MOST_VARIANTS:
            raise ValueError(f"makes {self.count:,} specs; a sweep has at most {MOST_VARIANTS:,}")
        if self.names is not None and len(self.names) != self.count:
            raise ValueError(f"has {self.count} variants and {len(self.names)} names: write one per variant, or remove `names`")
        return self

    @property
    def count(self) -> int:
        """How many variants it has."""
        sides = next((len(values) for values in self.zip.values()), 1)
        return math.prod(len(values) for values in self.grid.values()) * sides


def _alike(value: Any, other: Any) -> bool:
    """Whether two values are equal in a spec: a bare word is the part of that kind, and true is not 1."""
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_alike(value[key], other[key]) for key in value)
    if isinstance(value, dict) or isinstance(other, dict):
        return {"kind": value} == other or value == {"kind": other}
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(_alike, value, other))
    if isinstance(value, float) and isinstance(other, float) and math.isnan(value):
        return math.isnan(other)
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def setting_steps(path: str) -> tuple[str, ...]:
    """``head.memory[0].size`` and ``head.memory.0.size`` as the steps that they name."""
    return tuple(path.replace("[", ".").replace("]", "").split("."))


class Spec(Closed):
    """One YAML document, after ``extends`` and overrides."""

    to_change: ClassVar[str] = TO_CHANGE_A_SPEC

    compose: Annotated[Literal[1], Integer]
    """Version of the document. Defaults never change within a version."""
    name: Name
    """Version of the format. Each file needs its own; it is not inherited."""
    paper: str | None = None
    """The paper of the heads."""
    direction: Literal["causal", "bidirectional"] = "causal"
    """bidirectional: every token sees those after it, too, as encoders do; such a model hands no state on and writes no text."""
    head: HeadSpec | None = None
    """The head of every layer that no rule names."""
    heads: dict[Name, HeadSpec] = Field(default_factory=dict)
    """Further heads, by name, for ``layers`` to use."""
    layers: Annotated[tuple[LayerRule, ...], Field(max_length=MOST_RULES)] = ()
    """The heads of some layers; a later rule overrides an earlier one."""
    dimensions: Dimensions | None = None
    """The sizes of the one kind of model that it is for, as `compose show SPEC --from SOURCE` writes them; left out, any."""
    trunk: TrunkSpec | None = None
    """Everything except the heads: the model is built with random weights. Left out: it is built from a source, and has the
    source's trunk."""
    recipe: Recipe | None = None
    """How it is trained: kept with the model, no part of what the spec means."""
    vary: Vary | None = None
    """Makes this a sweep: a table of specs that differ in these values only."""
    _places: Places = PrivateAttr(default_factory=Places)

    def place(self, path: FieldPath) -> Place | None:
        """Return the file, line and column of ``path``, or of the nearest element around it; None if the spec is not from a
        file."""
        return self._places.find(path)
