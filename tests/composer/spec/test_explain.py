"""The figures of `explain` equal a computation by hand: parameters, bytes, operations, and LoLA's compression rates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer.graph.wiring import build_graph
from composer.model.head import Head
from composer.spec.explain import explain_resolved, state_bytes, state_size
from composer.spec.explained import Explanation
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, resolve
from tests.composer.graph.heads import SIZE, resolved, shipped
from tests.covers import in_turns
from tests.shipped import COVERING, FEW

LLAMA_8B = Dimensions(hidden_size=4096, layers=32, heads=32, key_heads=8, head_dim=128, rope_theta=5e5)


def explained(document: dict[str, Any], size: Dimensions = SIZE, **options: Any) -> Explanation:
    return explain_resolved(resolve(load_spec({"compose": 1, "name": "case", **document}), size), **options)


def test_state_of_lolcats_matches_a_hand_computed_value() -> None:
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
    rotary, window = 2 * 3 * (4 + 2) * 8, 2 * 2 * 64 * 4 * 8
    maps, state = (4 + 4) * (2 * 8 * 64 + 128), 2 * 128 * 9 * (4 + 4)
    assert group.decode_flops_per_token == rotary + window + maps + state
    assert group.prefill_flops_per_token == rotary + window + maps + state + 2 * 64 * 4 * (128 + 9)
    assert costs.fresh_parameters == 4 * group.fresh_parameters
    assert costs.state_bytes == 4 * group.state_bytes + 8  # tokens are counted once
    assert costs.kv_cache_bytes == 4 * group.kv_cache_bytes
    assert costs.compression == pytest.approx(4 * group.kv_cache_bytes / costs.state_bytes)
    assert costs.decode_flops_per_token == 4 * group.decode_flops_per_token
    # In pairs: the window's, and 8 for a state however many features it has.
    assert costs.compression_lola == group.compression_lola == pytest.approx(1000 / (64 + 8))
    assert (costs.name, costs.hash) == ("lolcats", shipped("lolcats").hash)


def test_state_of_lawcat_matches_a_hand_computed_value() -> None:
    costs = explain_resolved(shipped("lawcat"), sequence=1000, dtype="float32")
    (group,) = costs.groups
    # Filters of 4 taps and 8 numbers for 4 query and 4 key heads; one matrix of 8 × 8 a head; W₁: 24 × 32, W₂: 32 × (4 · 16), b.
    assert group.fresh_parameters == (4 + 4) * 8 * 4 + 4 * 8 * 8 + 24 * 32 + 32 * 64 + 64
    # Three inputs of 4 + 2 heads for the convolution; 4 states of 16 × 9.
    assert group.state_bytes == 3 * (4 + 2) * 8 * 4 + 4 * 16 * 9 * 4
    convolution, gate = 2 * 4 * 8 * (4 + 4), 2 * 32 * (24 + 64)
    maps, state = (4 + 4) * (2 * 8 * 8 + 16), 2 * 16 * 9 * (4 + 4) + 16 * 9 * 4
    assert group.decode_flops_per_token == convolution + gate + maps + state


def test_groups_of_heads_are_counted_separately() -> None:
    """Layer 0 is split between two heads. The other layers are exact."""
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


@pytest.mark.parametrize(
    ("row", "at_2k", "at_4k"),
    [
        ("lolcats", 11, 22),
        ("lolcats-p", 6.4, 13),
        ("lola", 6.4, 13),
        ("lolcats-pp", 4.0, 8.0),
        ("lola-pp", 4.0, 8.0),
        ("lolcats-ppp", 2.3, 4.6),
        ("lola-ppp", 2.3, 4.6),
        ("lola-pppp", 1.2, 2.4),
    ],
)
def test_rates_match_lolas_table_1(row: str, at_2k: float, at_4k: float) -> None:
    """The rates for Llama-3.1-8B match to two digits. For 4K the paper doubles a rounded number."""
    costs = explain_resolved(shipped(f"ablations/lola-cache-sizes:{row}", LLAMA_8B), sequence=2048)
    assert costs.compression_lola is not None
    rounded = float(f"{costs.compression_lola:.2g}")
    assert (rounded, float(f"{2 * rounded:.2g}")) == (at_2k, at_4k)
    twice = explain_resolved(shipped(f"ablations/lola-cache-sizes:{row}", LLAMA_8B), sequence=4096)
    assert twice.compression_lola == pytest.approx(2 * costs.compression_lola)


def test_bytes_match_lolas_table_1() -> None:
    """The same rows have keys and values in bfloat16 with positions, and for each of 32 query heads a cache with positions and a
    state of 128 features in float32 with its normaliser.
    """
    pair, cache, state = 2 * 8 * 128 * 2 + 8, 32 * (2 * 128 * 2 + 8), 32 * 128 * (128 + 1) * 4
    for row, held, rates in (
        ("lolcats", 64 * pair + state, (3.53, 7.06)),
        ("lola", 2 * 64 * pair + 64 * cache + state, (2.26, 4.53)),
        ("lola-pp", 2 * 128 * pair + 128 * cache + state, (1.58, 3.17)),
        ("lola-ppp", 2 * 256 * pair + 256 * cache + state, (0.99, 1.98)),
        ("lola-pppp", 2 * 512 * pair + 512 * cache + state, (0.57, 1.13)),
    ):
        for sequence, rate in zip((2048, 4096), rates, strict=True):
            spec = shipped(f"ablations/lola-cache-sizes:{row}", LLAMA_8B)
            costs = explain_resolved(spec, sequence=sequence, dtype="bfloat16")
            assert costs.state_bytes == 32 * held + 8
            assert costs.compression == pytest.approx(rate, abs=0.005)
    exact = explain_resolved(shipped("softmax", LLAMA_8B), sequence=4096)
    assert exact.compression_lola == 1.0
    assert exact.compression == pytest.approx(1.0, rel=1e-2)  # positions of 8 bytes beside pairs of 8,192


WIDE = {"kind": "hedgehog", "dim": 64}
PAIR, OWN_PAIR, SUMS = 2 * 2 * 8 * 2 + 8, 2 * 8 * 2 + 8, 4 * 128 * 9 * 4
"""Bytes in bfloat16 of a pair of 2 key heads with its position, of one query head's, and of 4 states of 128 features."""


@pytest.mark.parametrize(
    ("head", "state", "pairs"),
    [
        pytest.param(
            {"feature_map": WIDE, "memory": [{"kind": "window", "shape": "terraced", "size": 5}, "state"]},
            10 * PAIR + SUMS,
            10 + 8,
            id="a terraced window has room for two chunks",
        ),
        pytest.param(
            {"feature_map": WIDE, "memory": [{"kind": "window", "size": 5}, {"kind": "sparse", "size": 3}, "state"]},
            5 * PAIR + 3 * 4 * OWN_PAIR + SUMS,
            5 + 3 + 8,
            id="a sparse cache is each query head's own",
        ),
        pytest.param(
            {
                "feature_map": WIDE,
                "memory": [{"kind": "window", "size": 5}, {"kind": "sparse", "size": 3, "keep": "squared_error"}, "state"],
            },
            5 * (PAIR + 4 * 4) + 3 * 4 * (OWN_PAIR + 4) + SUMS,
            5 + 3 + 8,
            id="errors are summed for each pair and query head",
        ),
        pytest.param(
            {
                "conv": {"kernel": 4},
                "feature_map": WIDE,
                "memory": [{"kind": "window", "size": 5}, {"kind": "sparse", "size": 3}, "state"],
            },
            3 * (4 + 2) * 8 * 2 + 5 * (PAIR + 4 * 8 * 2) + 3 * 4 * (OWN_PAIR + 8 * 2) + SUMS,
            5 + 3 + 8,
            id="convolved keys fall with the raw ones",
        ),
        pytest.param(
            {"feature_map": WIDE, "memory": [{"kind": "window", "size": 5}, {"kind": "delta"}], "read": "sum"},
            5 * (PAIR + 4 * 4) + 4 * 128 * 8 * 4,
            5 + 8,
            id="rates fall with the pairs, and the delta rule has no normaliser",
        ),
        pytest.param(
            {"memory": [{"kind": "latents", "size": 12}]},
            4 * 3 * (8 + 2) * 4,
            3 / 2,
            id="of each latent a mean, a maximum and a sum",
        ),
        pytest.param(
            {
                "mix_input": "rglru",
                "memory": [{"kind": "window", "size": 5, "weight": "token"}, {"kind": "latents", "size": 12}],
                "flow": "parallel",
                "read": "mixture",
            },
            24 * 4 + 5 * PAIR + 4 * 3 * (8 + 2) * 4,
            5 + 3 / 2,
            id="the RG-LRU has a number a channel",
        ),
        pytest.param(
            {"mix_input": {"kind": "conv", "kernel": 3}, "memory": [{"kind": "latents", "size": 12}]},
            2 * 24 * 2 + 4 * 3 * (8 + 2) * 4,
            3 / 2,
            id="a convolution of the inputs keeps the last of them",
        ),
    ],
)
def test_state_bytes_match_a_hand_computed_value(head: dict[str, Any], state: int, pairs: float) -> None:
    """Compute a state of 2 key heads and 4 query heads of 8 numbers on 24 channels in bfloat16, and the bytes that LoLA counts
    separately.
    """
    costs = explained({"head": head}, sequence=100, dtype="bfloat16")
    (group,) = costs.groups
    assert group.state_bytes == state
    assert group.compression == pytest.approx(group.kv_cache_bytes / state)
    assert group.pairs == pairs
    assert costs.compression_lola == group.compression_lola == pytest.approx(100 / pairs)


def test_latents_match_hand_computed_values() -> None:
    """Latents rotate nothing by position. The rotations of values are counted once, although they are rotated on input and
    output.
    """
    head = {"position": "rope", "value_position": "vapor", "memory": [{"kind": "latents", "size": 12}]}
    (group,) = explained({"head": head}, sequence=100).groups
    assert group.fresh_parameters == 2 * 12 * 24 + 2 * 4
    rotations, logits, means = 3 * (2 + 4) * 8, 2 * 2 * 12 * 24, 5 * 12 * 8
    assert group.decode_flops_per_token == rotations + logits + means


def test_a_weight_of_the_token_is_counted() -> None:
    """The weight has 24 channels for each of 4 heads."""
    memory = {"kind": "window", "size": 5}
    alone, weighed = (
        explained({"head": {"feature_map": "elu", "memory": [memory | weight, "state"]}}).decode_flops_per_token
        for weight in ({}, {"weight": "token"})
    )
    assert weighed - alone == 4 * 2 * 24 * 4


def test_heads_without_state_have_no_rate() -> None:
    """A cache of size 0 is empty, and a bidirectional model keeps no state, so neither has a rate."""
    empty = {"memory": [{"kind": "sparse", "size": 0, "keep": "recent", "evict": "drop"}]}
    none = explain_resolved(resolve(load_spec({"compose": 1, "name": "empty", "head": empty}), SIZE, idle=True), sequence=100)
    assert (none.groups[0].compression, none.compression_lola) == (None, None)
    assert none.state_bytes == 8  # the count of the tokens
    both = explained({"direction": "bidirectional", "head": {"memory": ["full"]}}, sequence=100)
    assert (both.state_bytes, both.groups[0].pairs, both.groups[0].state_grows) == (0, 0, False)
    assert (both.compression, both.compression_lola) == (None, None)
    assert (both.kv_cache_bytes, both.decode_flops_per_token, both.groups[0].decode_flops_per_token) == (None, None, None)
    assert both.prefill_flops_per_token == 4 * (3 * (4 + 2) * 8 + 100 * 4 * 4 * 8)  # all 100 pairs of each token, in 4 layers
    latents = {"memory": [{"kind": "latents", "size": 8}], "mix_input": "rglru"}
    assert explained({"direction": "bidirectional", "head": latents}).state_bytes == 0


def test_bytes_follow_the_dtype() -> None:
    def state(dtype: str) -> int:
        return explain_resolved(shipped("lolcats"), dtype=dtype).groups[0].state_bytes

    numbers, sums, counters = 64 * 2 * 2 * 8, 4 * 128 * 9, 64 * 8
    assert state("float32") == 4 * numbers + 4 * sums + counters
    assert state("bfloat16") == state("float16") == 2 * numbers + 4 * sums + counters
    assert state("float64") == 8 * numbers + 8 * sums + counters


@pytest.mark.parametrize(("name", "dtype"), in_turns(COVERING, ["float32", "bfloat16"]))
def test_state_bytes_equal_those_of_the_tensors(name: str, dtype: str) -> None:
    spec = shipped(name)
    shape = spec.shape(4)
    for head in spec.heads.values():
        held = Head(head, shape).empty_state(1, getattr(torch, dtype), torch.device("cpu"))
        slots = state_size(build_graph(head, shape), 0)
        assert {slot: tuple(tensor.shape[1:]) for slot, tensor in held.items()} == {slot: of.shape for slot, of in slots.items()}
        assert sum(tensor.nbytes for tensor in held.values()) == state_bytes(slots, dtype)


@pytest.mark.parametrize("name", FEW)
def test_parameter_counts_equal_those_of_the_module(name: str) -> None:
    spec = shipped(name)
    for group in explain_resolved(spec).groups:
        module = Head(spec.heads[group.head], spec.shape(group.heads))
        assert group.fresh_parameters == sum(parameter.numel() for parameter in module.parameters())


def test_only_full_attention_costs_more_with_a_longer_past() -> None:
    for name in ("lolcats", "lawcat", "gla", "softmax", "window"):
        short, long = (explain_resolved(shipped(name), sequence=sequence) for sequence in (1000, 9000))
        assert (short.state_bytes < long.state_bytes) is (name == "softmax")
        assert (short.decode_flops_per_token < long.decode_flops_per_token) is (name == "softmax")
    single = resolved({"memory": ["full"]})
    # The 1,001st token of a decode meets 1,001 pairs of 8 numbers for 4 heads; rope turns 6 heads.
    (group,) = explain_resolved(single, sequence=1000).groups
    assert group.decode_flops_per_token == 2 * 2 * 1001 * 4 * 8 + 3 * 6 * 8
