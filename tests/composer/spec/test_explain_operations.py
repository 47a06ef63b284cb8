"""Operations that turn on what stands around a memory, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.composer.spec.test_explain import WIDE, explained

PLAIN = {"position": "none", "feature_map": WIDE}


def decoded(head: dict[str, Any]) -> int:
    (group,) = explained({"head": head}, sequence=1000).groups
    assert group.decode_flops_per_token is not None
    return group.decode_flops_per_token


@pytest.mark.parametrize(("window", "falling"), [("sliding", 1), ("terraced", 32)])
def test_a_cache_is_scored_once_a_fall(window: str, falling: int) -> None:
    """4 query heads of 8 numbers and 128 features: each fall scores the 16 pairs of the cache and those that fall with one product
    of features and state a pair, and a terraced window lets 32 pairs fall every 32 tokens."""

    def cost(keep: str) -> int:
        memory = [{"kind": "window", "size": 32, "shape": window}, {"kind": "sparse", "size": 16, "keep": keep}, "state"]
        return decoded(PLAIN | {"memory": memory})

    assert cost("self_recall") - cost("recent") == 4 * 2 * (16 + falling) * 128 * 8 // falling
