"""Every part there is, by role and kind. ``compose parts``, the JSON schema, the page of parts and the laws read this list.

A new part adds its line to the union of its role (in the role's own ``__init__`` or file) and is everywhere from then on.
"""

from __future__ import annotations

from blocks.convolution import CONVOLUTIONS, ConvolutionConfig
from blocks.feature_maps import FEATURE_MAPS, FeatureMapConfig
from blocks.feature_maps.convolved import CONVOLVED_MAP
from blocks.gates import GATES, GateConfig
from blocks.memories import MEMORIES, MemoryConfig
from blocks.memories import PATTERNS as OF_MEMORIES
from blocks.mixers import MIXERS, MixerConfig
from blocks.outputs import OUTPUTS, OutputConfig
from blocks.part import Part
from blocks.positions import POSITIONS, PositionConfig
from blocks.qk_norms import QUERY_KEY_NORMS, QueryKeyNormConfig
from blocks.rates import RATES, RateConfig
from blocks.reads import READS, ReadConfig
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

PATTERNS = (*OF_MEMORIES, CONVOLVED_MAP)
"""Neighbouring parts that one form computes together, those that cover most first."""

CATALOGUE: dict[str, dict[str, type[Part]]] = {
    "mix input": MIXERS,
    "unshare": UNSHARES,
    "qk norm": QUERY_KEY_NORMS,
    "position": POSITIONS,
    "value position": VALUE_POSITIONS,
    "convolution": CONVOLUTIONS,
    "feature map": FEATURE_MAPS,
    "gate": GATES,
    "rate": RATES,
    "score": SCORES,
    "memory": MEMORIES,
    "read": READS,
    "output": OUTPUTS,
}
