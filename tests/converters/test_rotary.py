"""Rotary settings that transformers cannot compute are rejected in every spelling. All others are read."""

from __future__ import annotations

from typing import Any

import pytest

from converters.errors import ConfigError
from converters.rotary import check_rotary

FACTORS = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
READ: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("qwen3", {}),
    "null": ("qwen3", {"rope_scaling": None}),
    "old": ("qwen3", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "new": ("qwen3", {"rope_parameters": {"rope_type": "yarn", "factor": 2, "rope_theta": 1e4}}),
    "both names": ("qwen3", {"rope_scaling": {"rope_type": "dynamic", "type": "dynamic", "factor": 2.0}}),
    "no type": ("qwen3", {"rope_parameters": {"rope_theta": 1e4}}),
    "by layer": (
        "gemma3_text",
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {"rope_theta": 1e4}}},
    ),
    "longrope": ("phi3", {"rope_scaling": {"type": "longrope", **FACTORS}}),
    "su": ("phi3", {"rope_scaling": {"type": "su", "original_max_position_embeddings": 64, **FACTORS}}),
    "half of the pairs": (
        "phi3",
        {"partial_rotary_factor": 0.5, "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 2, "long_factor": [1] * 2}},
    ),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no mapping": ("qwen3", {"rope_scaling": "linear"}, "rope_scaling: 'linear'; expected a mapping or null"),
    "su of others": (
        "qwen3",
        {"rope_scaling": {"type": "su"}},
        "type: 'su'; transformers has .* 'su' is the old name of 'longrope'",
    ),
    "su without a length": ("phi3", {"rope_scaling": {"type": "su", **FACTORS}}, "'su', an old name of 'longrope', without"),
    "another type": ("qwen2", {"rope_scaling": {"type": "mrope"}}, "rope_scaling.type: 'mrope'; transformers has"),
    "a type of null": ("qwen2", {"rope_parameters": {"rope_type": None, "type": "linear"}}, "rope_parameters.rope_type: None"),
    "a number": ("qwen2", {"rope_scaling": {"type": 5}}, "type: 5; transformers has"),
    "no factor": ("mistral", {"rope_scaling": {"type": "linear"}}, "no 'factor'; expected a number greater than 0"),
    "a factor of letters": ("mistral", {"rope_scaling": {"type": "yarn", "factor": "2"}}, "factor: '2'; expected a number"),
    "no list": ("phi3", {"rope_scaling": {"type": "longrope"}}, "short_factor: None; expected a list of 4 numbers"),
    "a short list": (
        "phi3",
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 3}},
        "long_factor: a list of 3; expected a list of 4 numbers",
    ),
    "a layer without a factor": (
        "gemma3_text",
        {"rope_parameters": {"full_attention": {"rope_type": "linear"}, "sliding_attention": {}}},
        "no 'factor'",
    ),
}


@pytest.mark.parametrize("how", READ)
def test_rotary_settings_of_transformers_are_read(how: str) -> None:
    model_type, config = READ[how]
    check_rotary(model_type, config, 8)


@pytest.mark.parametrize("how", REFUSED)
def test_rotary_settings_that_transformers_cannot_compute_are_refused(how: str) -> None:
    model_type, config, wrong = REFUSED[how]
    with pytest.raises(ConfigError, match=wrong):
        check_rotary(model_type, config, 8)
