"""The spec document: what a YAML file says, before it meets a source model. Version 1.

The parts inside come from the catalogue of ``blocks``; each is told by its ``kind``, and a bare word ``x`` is ``{kind: x}``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, PrivateAttr, StringConstraints

from blocks.catalogue import (
    ConvolutionConfig,
    FeatureMapConfig,
    MemoryConfig,
    PositionConfig,
    ReadConfig,
)
from blocks.part import Closed
from blocks.positions import Rope
from composer.spec.places import Path, Place, Places

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$")]


class HeadSpec(Closed):
    """What one kind of head is composed of."""

    position: PositionConfig = Rope()
    """How queries and keys are turned; a memory may override it."""
    conv: ConvolutionConfig | None = None
    """Feeds the features only: exact memories see the raw queries and keys."""
    feature_map: FeatureMapConfig | None = None
    """What a state memory sees of queries and keys."""
    memory: Annotated[tuple[MemoryConfig, ...], Field(min_length=1)]
    """Top to bottom: in a cascade, pairs fall from one into the next."""
    flow: Literal["cascade", "parallel"] = "cascade"
    """cascade: a pair enters the first memory and falls when evicted. parallel: every memory sees every pair."""
    read: ReadConfig | None = None
    """How several memories are weighed against each other. Left out: shared."""


class HeadsOf(Closed):
    """Consecutive query heads of a layer that are composed alike."""

    head: Name
    """Which head they are."""
    heads: PositiveInt
    """How many query heads; whole groups of those that share a key head."""


class LayerRule(Closed):
    """Which layers take which head. A later rule overrides an earlier one."""

    at: int | tuple[int, ...] | Annotated[str, StringConstraints(pattern=r"^(all|(-?\d+)?:(-?\d+)?(:-?\d+)?)$")]
    """A layer, a list of layers, a range ``first:end:step`` as Python slices, or ``all``. -1 is the last layer."""
    use: Name | Annotated[tuple[HeadsOf, ...], Field(min_length=1)]
    """A head for all heads of the layer, or a list ``{head, heads}`` of groups inside it, in this order."""


class Lora(Closed):
    """Low-rank adapters for the second stage."""

    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0
    targets: tuple[Literal["q", "k", "v", "o"], ...] = ("q", "k", "v", "o")


Schedule = Literal["constant", "cosine", "plateau"]


class Transfer(Closed):
    """Stage 1: fresh parameters learn the teacher's attention, layer by layer."""

    loss: Literal["mse", "cross_entropy"] = "mse"
    lr: PositiveFloat
    epochs: PositiveInt
    schedule: Schedule = "constant"


class Finetune(Closed):
    """Stage 2: the whole model learns the next token."""

    lora: Lora | None = None
    lr: PositiveFloat
    epochs: PositiveInt
    schedule: Schedule = "constant"


class Recipe(Closed):
    """How the paper trains it. Kept with the model; it is no part of the spec's hash."""

    data: str | None = None
    transfer: Transfer | None = None
    finetune: Finetune | None = None


class Spec(Closed):
    """One YAML document, after ``extends`` and overrides."""

    compose: Literal[1]
    """Version of the document. Defaults never change within a version."""
    name: Name
    """Each file says its own; it is not inherited."""
    paper: str | None = None
    """Where it comes from."""
    head: HeadSpec | None = None
    """The head of every layer that no rule names."""
    heads: dict[Name, HeadSpec] = Field(default_factory=dict)
    """Further heads, by name, for ``layers`` to use."""
    layers: tuple[LayerRule, ...] = ()
    """Which layers take which head; a later rule overrides an earlier one."""
    recipe: Recipe | None = None
    """How it is trained: kept with the model, no part of what the spec means."""
    _places: Places = PrivateAttr(default_factory=Places)

    def place(self, path: Path) -> Place | None:
        """The file, line and column that say ``path``, or the nearest thing around it; None where the spec stands in no file."""
        return self._places.find(path)
