"""The figures of `explain`, worked out by hand: parameters, bytes, operations, and LoLA's own compression rates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer.graph.explain import Explanation, explain_resolved, state_bytes, state_size
from composer.graph.graph import build_graph
from composer.model.head import Head
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, resolve
from tests.composer.graph.heads import SIZE, resolved, shipped
from tests.shipped import SHIPPED

LLAMA_8B = Dimensions(hidden_size=4096, layers=32, heads=32, key_heads=8, head_dim=128, rope_theta=5e5)


def explained(document: dict[str, Any], size: Dimensions = SIZE, **options: Any) -> Explanation:
    return explain_resolved(resolve(load_spec({"compose": 1, "name": "case", **document}), size), **options)


def test_lolcats_by_hand() -> None:
    """4 layers of 4 query heads and 2 key heads of 8 numbers; a window of 64 above a state of 128 features."""
    costs = explain_resolved(shipped("lolcats"), sequence=1000, dtype="bfloat16")
    (group,) = costs.groups
    assert (group.head, group.layers, group.heads, group.key_heads) == ("head", (0, 1, 2, 3), 4, 2)
    # Two matrices of 8 × 64 for each of 4 heads, and a weight for each.
    assert group.fresh_parameters == 2 * 4 * 8 * 64 + 4
    # 64 pairs of 2 × 2 × 8 numbers of 2 bytes with positions of 8; 4 states of 128 × (8 + 1) numbers of 4 bytes.
    assert group.state_bytes == 64 * (2 * 2 * 8 * 2 + 8) + 4 * 128 * 9 * 4
    assert group.kv_cache_bytes == 1000 * 2 * 2 * 8 * 2
    assert not group.state_grows
    # Turning 6 heads in each memory; the window's two products; maps for 4 + 4 heads; entering and reading 4 states.
    turning, window = 2 * 3 * (4 + 2) * 8, 2 * 2 * 64 * 4 * 8
    maps, state = (4 + 4) * (2 * 8 * 64 + 128), 2 * 128 * 9 * (4 + 4)
    assert group.decode_flops_per_token == turning + window + maps + state
    assert group.prefill_flops_per_token == turning + window + maps + state + 2 * 64 * 4 * (128 + 9)
    assert costs.fresh_parameters == 4 * group.fresh_parameters
    assert costs.state_bytes == 4 * group.state_bytes + 8  # tokens are counted once
    assert costs.kv_cache_bytes == 4 * group.kv_cache_bytes
    assert costs.compression == pytest.approx(4 * group.kv_cache_bytes / costs.state_bytes)
    assert costs.decode_flops_per_token == 4 * group.decode_flops_per_token
    # In pairs: the window's, and 8 for a state however many features it has.
    assert costs.compression_lola == group.compression_lola == pytest.approx(1000 / (64 + 8))
    assert (costs.name, costs.hash) == ("lolcats", shipped("lolcats").hash)


def test_lawcat_by_hand() -> None:
    costs = explain_resolved(shipped("lawcat"), sequence=1000, dtype="float32")
    (group,) = costs.groups
    # Filters of 4 taps and 8 numbers for 4 query and 4 key heads; one matrix of 8 × 8 a head; W₁: 24 × 32, W₂: 32 × (4 · 16), b.
    assert group.fresh_parameters == (4 + 4) * 8 * 4 + 4 * 8 * 8 + 24 * 32 + 32 * 64 + 64
    # Three inputs of 4 + 2 heads for the convolution; 4 states of 16 × 9.
    assert group.state_bytes == 3 * (4 + 2) * 8 * 4 + 4 * 16 * 9 * 4
    convolution, gate = 2 * 4 * 8 * (4 + 4), 2 * 32 * (24 + 64)
    maps, state = (4 + 4) * (2 * 8 * 8 + 16), 2 * 16 * 9 * (4 + 4) + 16 * 9 * 4
    assert group.decode_flops_per_token == convolution + gate + maps + state


def test_groups_of_heads_are_counted_by_themselves() -> None:
    """Layer 0 is split between two heads; the others are exact."""
    costs = explained(
        {
            "heads": {
                "near": {"memory": [{"kind": "window", "size": 8, "evict": "drop"}]},
                "exact": {"memory": ["full"]},
            },
            "layers": [
                {"at": "all", "use": "exact"},
                {"at": 0, "use": [{"head": "near", "heads": 2}, {"head": "exact", "heads": 2}]},
            ],
        },
        sequence=100,
        dtype="float32",
    )
    figures = {(group.head, group.heads): group for group in costs.groups}
    assert {key: group.layers for key, group in figures.items()} == {("near", 2): (0,), ("exact", 2): (0,), ("exact", 4): (1, 2, 3)}
    pair = 2 * 8 * 4
    assert figures["near", 2].state_bytes == 8 * (1 * pair + 8)
    assert figures["exact", 2].state_bytes == 100 * (1 * pair + 8)
    assert figures["exact", 4].state_bytes == 100 * (2 * pair + 8)
    assert [figures[key].state_grows for key in figures] == [key[0] == "exact" for key in figures]
    assert costs.state_bytes == 8 * (pair + 8) + 100 * (pair + 8) + 3 * 100 * (2 * pair + 8) + 8
    assert costs.kv_cache_bytes == 4 * 100 * 2 * pair
    # In pairs: 8 of a window and 100 of a cache in one key head each, 100 in both of three layers.
    assert costs.compression_lola == pytest.approx(4 * 2 * 100 / (8 + 100 + 3 * 2 * 100))


def test_lolas_table_1() -> None:
    """Llama-3.1-8B has 128 numbers a head, so a state is 128 pairs: LoLCATs is 11 and 21 times smaller at 2K and 4K."""
    for sequence, rate in ((2048, 10.667), (4096, 21.333)):
        costs = explain_resolved(shipped("lolcats", LLAMA_8B), sequence=sequence, dtype="bfloat16")
        assert costs.compression_lola == pytest.approx(rate, abs=1e-3)
        assert costs.groups[0].compression_lola == pytest.approx(sequence / (64 + 128))
    exact = explain_resolved(shipped("softmax", LLAMA_8B), sequence=4096)
    assert exact.compression_lola == 1.0
    assert exact.compression == pytest.approx(1.0, rel=1e-2)  # positions of 8 bytes beside pairs of 8,192


def test_bytes_follow_the_dtype() -> None:
    def state(dtype: str) -> int:
        return explain_resolved(shipped("lolcats"), dtype=dtype).groups[0].state_bytes

    numbers, sums, counters = 64 * 2 * 2 * 8, 4 * 128 * 9, 64 * 8
    assert state("float32") == 4 * numbers + 4 * sums + counters
    assert state("bfloat16") == state("float16") == 2 * numbers + 4 * sums + counters
    assert state("float64") == 8 * numbers + 8 * sums + counters


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SHIPPED)
def test_the_bytes_are_those_of_the_tensors(name: str, dtype: str) -> None:
    for head in shipped(name).heads.values():
        shape = SIZE.shape(4)
        held = Head(head, shape).empty_state(1, getattr(torch, dtype), torch.device("cpu"))
        slots = state_size(build_graph(head, shape), 0)
        assert {slot: tuple(tensor.shape[1:]) for slot, tensor in held.items()} == {slot: of.shape for slot, of in slots.items()}
        assert sum(tensor.nbytes for tensor in held.values()) == state_bytes(slots, dtype)


@pytest.mark.parametrize("name", SHIPPED)
def test_parameters_are_those_of_the_module(name: str) -> None:
    for group in explain_resolved(shipped(name)).groups:
        module = Head(shipped(name).heads[group.head], SIZE.shape(group.heads))
        assert group.fresh_parameters == sum(parameter.numel() for parameter in module.parameters())


def test_only_full_attention_costs_more_as_the_past_grows() -> None:
    for name in ("lolcats", "lawcat", "gla", "softmax", "window"):
        short, long = (explain_resolved(shipped(name), sequence=sequence) for sequence in (1000, 9000))
        assert (short.state_bytes < long.state_bytes) is (name == "softmax")
        assert (short.decode_flops_per_token < long.decode_flops_per_token) is (name == "softmax")
    single = resolved({"memory": ["full"]})
    # The 1,001st token of a decode meets 1,001 pairs of 8 numbers for 4 heads; rope turns 6 heads.
    (group,) = explain_resolved(single, sequence=1000).groups
    assert group.decode_flops_per_token == 2 * 2 * 1001 * 4 * 8 + 3 * 6 * 8
