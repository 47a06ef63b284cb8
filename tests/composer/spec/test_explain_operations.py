"""Operations that depend on the parts around a memory equal a computation by hand."""

from __future__ import annotations

from typing import Any

import pytest

from composer.spec.explain import explain_resolved
from tests.composer.graph.heads import shipped
from tests.composer.spec.test_explain import WIDE, explained

PLAIN = {"position": "none", "feature_map": WIDE}


def decoded(head: dict[str, Any]) -> int:
    (group,) = explained({"head": head}, sequence=1000).groups
    assert group.decode_flops_per_token is not None
    return group.decode_flops_per_token


@pytest.mark.parametrize(("window", "falling"), [("sliding", 1), ("terraced", 32)])
def test_a_cache_is_scored_once_per_eviction(window: str, falling: int) -> None:
    """4 query heads of 8 numbers and 128 features: each eviction scores the 16 pairs of the cache and the evicted pairs, with
    one product of features and state per pair. A terraced window evicts 32 pairs every 32 tokens.
    """

    def cost(keep: str) -> int:
        memory = [{"kind": "window", "size": 32, "shape": window}, {"kind": "sparse", "size": 16, "keep": keep}, "state"]
        return decoded(PLAIN | {"memory": memory})

    assert cost("self_recall") - cost("recent") == 4 * 2 * (16 + falling) * 128 * 8 // falling


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_the_decay_of_a_delta_state_is_counted(gate: str) -> None:
    """Each of 4 states of 128 × 8 numbers is multiplied by its decay once per token, in addition to the gate."""

    def cost(kind: str, gate: str) -> int:
        plain = {"normalise": False} if kind == "state" else {}
        return decoded(PLAIN | {"memory": [{"kind": kind, "gate": gate} | plain]})

    assert cost("delta", gate) - cost("delta", "none") == cost("state", gate) - cost("state", "none")
    assert cost("delta", gate) - cost("delta", "none") >= 4 * 128 * 8


def test_local_layers_of_the_source_keep_their_window() -> None:
    """2 key heads of 8 numbers in float32 hold 64 tokens in three layers, and 1,000 in the last. 4 heads see the same tokens."""
    resolved = shipped("softmax")
    costs = explain_resolved(resolved, sequence=1000, dtype="float32", windows=(64, 64, 64, None))
    local, whole = costs.groups
    assert [(group.layers, group.source_window) for group in costs.groups] == [((0, 1, 2), 64), ((3,), None)]
    assert (local.kv_cache_bytes, whole.kv_cache_bytes) == (64 * 2 * 2 * 8 * 4, 1000 * 2 * 2 * 8 * 4)
    assert costs.kv_cache_bytes == 3 * local.kv_cache_bytes + whole.kv_cache_bytes
    rotary = 3 * (4 + 2) * 8
    assert local.decode_flops_per_token == rotary + 64 * 4 * 4 * 8
    assert whole.decode_flops_per_token == rotary + 1001 * 4 * 4 * 8
    seen = sum(min(token, 64) for token in range(1, 1001))
    assert local.prefill_flops_per_token == rotary + seen * 4 * 4 * 8 // 1000
    assert whole.prefill_flops_per_token == rotary + 1001 * 4 * 4 * 8 // 2
    everywhere = explain_resolved(resolved, sequence=1000, dtype="float32")
    # `full` holds every pair where 64 are seen, and is told so, with what holds no more.
    assert (local.bounded, whole.bounded) == ("{kind: window, size: 64, evict: drop}", None)
    assert everywhere.groups[0].bounded is None
    note = "every pair is held, and 64 are seen: {kind: window, size: 64, evict: drop} holds these alone"
    assert " ".join(str(costs).split()).count(note) == 1
    assert everywhere.groups[0].layers == (0, 1, 2, 3)
    assert everywhere.kv_cache_bytes == 4 * whole.kv_cache_bytes


def test_a_window_in_a_local_layer_is_bounded_by_the_layers_window() -> None:
    """The note on `full` suggests a window, except for decaying pairs and for logits that grow with the length."""
    window = {"head": {"memory": [{"kind": "window", "size": 64, "evict": "drop"}]}}
    (bounded,) = explained(window, sequence=1000, windows=(64,) * 4).groups
    assert (bounded.state_grows, bounded.bounded) == (False, None)
    for more in ({"gate": "head"}, {"length_scale": 2.0}):
        (other,) = explained({"head": {"memory": [{"kind": "full"} | more]}}, windows=(64,) * 4).groups
        assert (other.source_window, other.bounded) == (64, None)
