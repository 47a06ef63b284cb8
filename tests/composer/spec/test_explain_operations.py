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


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_what_a_delta_state_forgets_is_counted(gate: str) -> None:
    """As of any state: each of 4 states of 128 × 8 numbers is multiplied once a token, beside what the gate itself takes."""

    def cost(kind: str, gate: str) -> int:
        plain = {"normalise": False} if kind == "state" else {}
        return decoded(PLAIN | {"memory": [{"kind": kind, "gate": gate} | plain]})

    assert cost("delta", gate) - cost("delta", "none") == cost("state", gate) - cost("state", "none")
    assert cost("delta", gate) - cost("delta", "none") >= 4 * 128 * 8
