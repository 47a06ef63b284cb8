"""Feature maps: they map queries and keys to the features of a state. A new one is added to the catalogue in one line below."""

from __future__ import annotations

from typing import Annotated

from blocks.feature_maps.base import FeatureMap
from blocks.feature_maps.elu import OnePlusElu
from blocks.feature_maps.exponential import Exponential
from blocks.feature_maps.hedgehog import Hedgehog
from blocks.feature_maps.identity import Identity
from blocks.feature_maps.relu import Relu
from blocks.feature_maps.t2r import LearnedRelu
from blocks.registry import Role

FEATURE_MAPS = Role("feature map", FeatureMap, Identity, OnePlusElu, Relu, LearnedRelu, Exponential, Hedgehog)
FeatureMapConfig = Annotated[FeatureMap, FEATURE_MAPS]
