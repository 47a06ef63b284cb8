"""Tiny random models of transformers that read images."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TEXT: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
    "num_channels": 3,
}
QWEN_VISION: dict[str, Any] = {"depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32}
SECTIONS: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}}
DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
LOCAL: dict[str, Any] = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
MULTIMODAL: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3": (LOCAL, VISION, {"mm_tokens_per_image": 4, "image_token_index": 95}),
    "internvl": ({"model_type": "qwen2"}, {**VISION, "image_size": [16, 16], "patch_size": [8, 8]}, {}),
    "lfm2_vl": ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, VISION, {}),
    "llava": ({"model_type": "llama"}, {**VISION, "model_type": "clip_vision_model"}, {"image_token_index": 95}),
    "mistral3": ({"model_type": "mistral"}, {**VISION, "model_type": "pixtral", "head_dim": 8}, {"image_token_index": 95}),
    "paligemma": ({"model_type": "gemma"}, {**VISION, "model_type": "siglip_vision_model", "projection_dim": 32}, {}),
    "qwen2_5_vl": (SECTIONS, {**QWEN_VISION, "fullatt_block_indexes": [0]}, {}),
    "qwen3_5": (DELTA, QWEN_VISION, {}),
    "qwen3_vl": (SECTIONS, {**QWEN_VISION, "deepstack_visual_indexes": [0]}, {}),
    "smolvlm": ({"model_type": "llama"}, VISION, {}),
}
"""By family, what its text decoder, its reader of images and the rest of its config have beside the usual sizes."""


def multimodal(family: str, seed: int = 0, **text: Any) -> PreTrainedModel:
    """Return a model of the family with every parameter away from values that hide its effect. text: settings of its text
    decoder.
    """
    inner, vision, more = MULTIMODAL[family]
    config = CONFIG_MAPPING[family](text_config=TEXT | inner | text, vision_config=vision, **more)
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model
