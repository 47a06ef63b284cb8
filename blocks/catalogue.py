"""All parts, by role and kind.

``compose parts``, the JSON schema, docs/parts.md and the laws read this catalogue. A part of this project is added to its role,
in the role's own ``__init__`` or file. ``blocks.external_parts`` registers parts of other packages and files.
"""

from __future__ import annotations

from blocks.convolution import CONVOLUTIONS, ConvolutionConfig
from blocks.feature_maps import FEATURE_MAPS, FeatureMapConfig
from blocks.gates import GATES, GateConfig
from blocks.memories import MEMORIES, MemoryConfig
from blocks.memories import PATTERNS as OF_MEMORIES
from blocks.mixers import MIXERS, MixerConfig
from blocks.outputs import OUTPUTS, OutputConfig
from blocks.positions import POSITIONS, PositionConfig
from blocks.qk_norms import QUERY_KEY_NORMS, QueryKeyNormConfig
from blocks.rates import RATES, RateConfig
from blocks.reads import READS, ReadConfig
from blocks.registry import Patterns, Role
from blocks.scores import SCORES, ScoreConfig
from blocks.unshared import UNSHARES, UnshareConfig
from blocks.value_positions import VALUE_POSITIONS, ValuePositionConfig

__all__ = [
    "CATALOGUE",
    "PATTERNS",
    "ConvolutionConfig",
    "FeatureMapConfig",
    "GateConfig",
    "MemoryConfig",
    "MixerConfig",
    "OutputConfig",
    "PositionConfig",
    "QueryKeyNormConfig",
    "RateConfig",
    "ReadConfig",
    "ScoreConfig",
    "UnshareConfig",
    "ValuePositionConfig",
]

PATTERNS = Patterns(*OF_MEMORIES)
"""Patterns of operations that one form computes together. Those that cover the most operations are first."""

CATALOGUE: dict[str, Role] = {
    role.name: role
    for role in (
        MIXERS,
        UNSHARES,
        QUERY_KEY_NORMS,
        POSITIONS,
        VALUE_POSITIONS,
        CONVOLUTIONS,
        FEATURE_MAPS,
        GATES,
        RATES,
        SCORES,
        MEMORIES,
        READS,
        OUTPUTS,
    )
}
