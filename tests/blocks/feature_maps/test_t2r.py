"""The map of T2R is max(xW + b, 0), or max(xW, 0) without a bias."""

from __future__ import annotations

import torch

from blocks.feature_maps.t2r import LearnedRelu
from tests.blocks.support import ALIKE, close, drawn, random


def test_t2r_equals_its_formula() -> None:
    part, x = LearnedRelu(), random(1, 2, 2, 4)
    parameters = drawn(part, ALIKE)
    query, _ = part.map(parameters, x, x)
    for token in range(2):
        for head in range(2):
            u = x[0, token, head] @ parameters["query_weight"][head] + parameters["query_bias"][head]
            close(query[0, token, head], torch.maximum(u, torch.zeros(4, dtype=torch.float64)))
    assert not LearnedRelu(bias=False).parameters(ALIKE).keys() & {"query_bias", "key_bias"}
