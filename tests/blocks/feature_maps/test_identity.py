"""The identity returns its inputs."""

from __future__ import annotations

import torch

from blocks.feature_maps.identity import Identity
from tests.blocks.support import random


def test_identity_equals_its_formula() -> None:
    query, key = random(1, 3, 4, 4), random(1, 3, 2, 4)
    features = Identity().map({}, query, key)
    assert torch.equal(features[0], query)
    assert torch.equal(features[1], key)
