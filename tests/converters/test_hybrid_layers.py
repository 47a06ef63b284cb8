"""The layers with attention of a hybrid are read from its config as transformers reads it, and errors name the key."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from converters.errors import ConfigError
from converters.hybrid_layers import HYBRIDS, count_of_layers, layers_without_attention


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("bamba", {"attn_layer_indices": [1, 4]}),
        ("jamba", {"attn_layer_period": 3, "attn_layer_offset": 2}),
        ("lfm2", {"full_attn_idxs": [2]}),
        ("lfm3", {}),
        ("minimax", {}),
        ("olmo_hybrid", {}),
        ("olmo_hybrid", {"num_hidden_layers": 3}),
        ("qwen3_next", {}),
        ("qwen3_5_text", {"full_attention_interval": 2}),
        ("granitemoehybrid", {"layer_types": ["mamba", "attention", "mamba"], "num_hidden_layers": 3}),
        ("falcon_h1", {}),
    ],
)
def test_layers_without_attention_equal_those_of_transformers(family: str, config: dict[str, Any]) -> None:
    layers = config.get("num_hidden_layers", 9)
    made = CONFIG_MAPPING[family](**{"num_hidden_layers": layers, **config})
    expected = tuple(i for i, kind in enumerate(made.layer_types) if kind not in ("full_attention", "sliding_attention", "hybrid"))
    assert layers_without_attention(family, config, layers) == expected


def test_nemotron_h_states_its_layers_by_their_types() -> None:
    for config in ({"hybrid_override_pattern": "M*-E"}, {"layers_block_type": ["mamba", "attention", "mlp", "moe"]}):
        assert count_of_layers("nemotron_h", config) == 4
        assert layers_without_attention("nemotron_h", config, 4) == (0, 2, 3)


@pytest.mark.parametrize(
    ("family", "config", "words"),
    [
        ("qwen3_next", {"layer_types": ["full_attention"]}, "layer_types for 1 layers; expected one for each of its 2"),
        ("qwen3_next", {"layer_types": ["full_attention", "other"]}, "'other'; expected some of"),
        ("qwen3_next", {"layer_types": 3}, "layer_types: 3; expected a list"),
        ("qwen3_next", {"layer_types": ["linear_attention"] * 2}, "no layer with softmax attention"),
        ("nemotron_h", {"hybrid_override_pattern": "M?"}, "'M\\?'; expected a text of the letters"),
        ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 2}, "from 0 to 1, below attn_layer_period"),
        ("bamba", {"attn_layer_indices": [2]}, "expected a list of layers, from 0 to 1"),
    ],
)
def test_invalid_layer_types_are_refused(family: str, config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        layers_without_attention(family, config, 2)


def test_other_families_have_attention_in_all_layers() -> None:
    assert "llama" not in HYBRIDS
    assert layers_without_attention("llama", {"layer_types": ["linear_attention"]}, 1) == ()
