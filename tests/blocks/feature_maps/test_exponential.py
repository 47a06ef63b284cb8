"""The map is exp(u) ‖ exp(-u). Its logarithms are u and -u, so nothing overflows."""

from __future__ import annotations

import torch

from blocks.feature_maps.exponential import Exponential
from tests.blocks.support import ALIKE, close, random, started


def test_exponential_equals_its_formula() -> None:
    part, x = Exponential(), random(1, 3, 2, 4)
    query, _ = part.map(started(part, ALIKE), x, x)
    close(query, torch.cat((torch.exp(x), 1 / torch.exp(x)), dim=-1))
    single = Exponential(two_sided=False)
    close(single.map(started(single, ALIKE), x, x)[1], torch.exp(x))


def test_log_features_are_exact_where_exp_overflows() -> None:
    part, x = Exponential(), 500 * random(1, 3, 2, 4, dtype=torch.float32)
    _, key = part.map(started(part, ALIKE, torch.float32), x, x, scale="logarithm")
    assert torch.equal(key, torch.cat((x, -x), dim=-1))
