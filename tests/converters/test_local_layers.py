"""The layers with a window equal those of the transformers class, whether or not the config lists its layers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from converters.errors import ConfigError
from converters.hosts import local_layers

LAYERS = 8
SAID: dict[str, dict[str, Any]] = {
    "cohere2": {"sliding_window": 64},
    "gemma2": {"sliding_window": 64},
    "gemma3_text": {"sliding_window": 64},
    "gpt_oss": {"sliding_window": 64},
    "olmo3": {"sliding_window": 64},
    "qwen2": {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
    "qwen3": {"sliding_window": 64, "max_window_layers": 3},
}
BY_FAMILY = {"gemma2", "gemma3_text", "cohere2", "qwen2", "qwen3"}
"""Those that are known without ``layer_types``, too, as older files come."""


@pytest.mark.parametrize("family", SAID)
def test_windows_are_those_of_transformers(family: str) -> None:
    fields = {"num_hidden_layers": LAYERS, **SAID[family]}
    config = CONFIG_MAPPING[family](**fields)
    wanted = tuple(64 if kind == "sliding_attention" else None for kind in config.layer_types)
    actual = local_layers(family, config.to_dict(), LAYERS)
    assert (actual or (None,) * LAYERS) == wanted
    if family in BY_FAMILY:
        assert local_layers(family, fields, LAYERS) == actual


def test_families_without_layer_types_have_one_window() -> None:
    assert local_layers("mistral", {"sliding_window": 64}, 2) == (64, 64)
    assert local_layers("mistral", {"sliding_window": None}, 2) is None
    assert local_layers("somebody", {"sliding_window": 64}, 2) is None
    with pytest.raises(ConfigError, match="one type for each of its 2 layers"):
        local_layers("gemma2", {"sliding_window": 64, "layer_types": ["full_attention"]}, 2)
