"""Feature maps: what a state memory sees of queries and keys. One line below is all that a new one adds to the catalogue."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from blocks.feature_maps.elu import OnePlusElu
from blocks.feature_maps.exponential import Exponential
from blocks.feature_maps.hedgehog import Hedgehog
from blocks.feature_maps.identity import Identity
from blocks.feature_maps.relu import Relu
from blocks.feature_maps.t2r import LearnedRelu
from blocks.part import bare, kinds

FeatureMapConfig = Annotated[
    Identity | OnePlusElu | Relu | LearnedRelu | Exponential | Hedgehog,
    Field(discriminator="kind"),
    BeforeValidator(bare),
]
FEATURE_MAPS = kinds(FeatureMapConfig)
