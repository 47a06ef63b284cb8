"""The elements of a head, as a spec lists them. The parts are those of the catalogue of ``blocks``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from blocks.catalogue import (
    ConvolutionConfig,
    FeatureMapConfig,
    MemoryConfig,
    MixerConfig,
    OutputConfig,
    PositionConfig,
    QueryKeyNormConfig,
    ReadConfig,
    UnshareConfig,
    ValuePositionConfig,
)
from blocks.part import Closed
from blocks.positions import Rope

EdgeText = Annotated[str, StringConstraints(pattern=r"^\s*[a-z][a-z0-9_]*\s*->\s*[a-z][a-z0-9_]*\s*$")]

MOST_MEMORIES = 32
"""The most memories of a head; rules compare every pair of them."""


class HeadSpec(Closed):
    """What one kind of head is composed of."""

    mix_input: MixerConfig | None = None
    """Mixes the hidden states over time, for the logits of latents, or for queries and keys."""
    unshare: UnshareConfig | None = None
    """Keys and values of each query head's own, where a group of query heads shares them."""
    qk_norm: QueryKeyNormConfig | None = None
    """A norm of queries and keys, before all else is made of them."""
    position: PositionConfig = Rope()
    """How queries and keys are rotated; a memory may override it."""
    value_position: ValuePositionConfig | None = None
    """How values are rotated before memories, and the output after them."""
    conv: ConvolutionConfig | None = None
    """Feeds the features only: exact memories see the raw queries and keys."""
    feature_map: FeatureMapConfig | None = None
    """What a state memory sees of queries and keys."""
    memory: Annotated[tuple[MemoryConfig, ...], Field(min_length=1, max_length=MOST_MEMORIES)]
    """From top to bottom: in a cascade, each memory evicts pairs into the next."""
    flow: Literal["cascade", "parallel"] = "cascade"
    """cascade: a pair enters the first memory, and the next one when it is evicted. parallel: every memory receives every pair."""
    graph: Annotated[tuple[EdgeText, ...], Field(min_length=1, max_length=MOST_MEMORIES**2)] | None = None
    """Which pairs each memory receives, in place of `flow`: `pairs -> NAME` (every pair), `NAME -> NAME` (the first evicts into the
    second)."""
    read: ReadConfig | None = None
    """How several memories are weighed against each other. Left out: shared."""
    output: OutputConfig | None = None
    """What is applied to the head's output before the output projection."""
