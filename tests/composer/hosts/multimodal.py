"""Tiny random models of transformers that read images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForImageTextToText, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from composer.model.mixers import hybrids_run
from tests.composer.hosts.families import skip_before

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
IMAGE = 95
"""The token in whose place a part of an image is."""
OLD_KEY, KEY = {"image_token_index": IMAGE}, {"image_token_id": IMAGE}
SIGLIP: dict[str, Any] = {**VISION, "model_type": "siglip_vision_model"}
SEGMENTS: dict[str, Any] = {
    "hidden_size": 16,
    "output_channels": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 64,
    "patch_size": 16,
    "global_attn_indexes": [0],
    "mlp_dim": 24,
    "window_size": 2,
}
MULTIMODAL: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "aya_vision": ({**LOCAL, "model_type": "cohere2"}, SIGLIP, OLD_KEY),
    "cohere2_vision": ({**LOCAL, "model_type": "cohere2"}, SIGLIP, {**KEY, "alignment_intermediate_size": 32}),
    "gemma3": (LOCAL, VISION, {"mm_tokens_per_image": 4, **OLD_KEY}),
    "got_ocr2": ({"model_type": "qwen2"}, SEGMENTS, OLD_KEY),
    "idefics3": ({"model_type": "llama"}, VISION, {**KEY, "pad_token_id": 0}),
    "internvl": ({"model_type": "qwen2"}, {**VISION, "image_size": [16, 16], "patch_size": [8, 8]}, KEY),
    "lfm2_vl": ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, VISION, {}),
    "llava": ({"model_type": "llama"}, {**VISION, "model_type": "clip_vision_model"}, OLD_KEY),
    "mistral3": ({"model_type": "mistral"}, {**VISION, "model_type": "pixtral", "head_dim": 8}, OLD_KEY),
    "paligemma": ({"model_type": "gemma"}, {**SIGLIP, "projection_dim": 32}, {**OLD_KEY, "projection_dim": 32}),
    "qwen2_5_vl": (SECTIONS, {**QWEN_VISION, "fullatt_block_indexes": [0]}, KEY),
    "qwen2_vl": (SECTIONS, {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2}, KEY),
    "qwen3_5": (DELTA, QWEN_VISION, {}),
    "qwen3_vl": (SECTIONS, {**QWEN_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}, KEY),
    "smolvlm": ({"model_type": "llama"}, VISION, {**KEY, "pad_token_id": 0}),
}
"""By family, what its text decoder, its reader of images and the rest of its config have beside the usual sizes."""

HYBRID = {"lfm2_vl", "qwen3_5"}
LATER = dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), "5.17")
"""Those that transformers had before, with attention that needs an angle for each of three axes."""


def multimodal(family: str, seed: int = 0, **text: Any) -> PreTrainedModel:
    """Return a model of the family with every parameter away from values that hide its effect. text: settings of its text
    decoder.
    """
    if family in LATER:
        skip_before(LATER[family], f"{family} whose angles are of one row")
    if family in HYBRID and not hybrids_run():
        pytest.skip(f"transformers {transformers.__version__} cannot continue the states of {family}'s layers")
    inner, vision, more = MULTIMODAL[family]
    config = CONFIG_MAPPING[family](text_config=TEXT | inner | text, vision_config=vision, **more)
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@torch.no_grad()
def text_and_image(family: str, model: Any, *, padding: int = 0) -> dict[str, torch.Tensor]:
    """Two rows with an image each among their tokens, as a processor passes them to a model. padding: of the first row, at its
    left."""
    generator = torch.Generator().manual_seed(1)
    if family.startswith("qwen"):
        return _grids(model, padding, generator)
    size = model.config.vision_config.image_size
    size = size if isinstance(size, int) else size[0]
    pixels = torch.randn(2, 3, size, size, generator=generator)
    image: dict[str, torch.Tensor] = {"pixel_values": pixels[:, None] if family in ("idefics3", "smolvlm") else pixels}
    if family == "mistral3":
        image["image_sizes"] = torch.tensor([[size, size]] * 2)
    features = model.get_image_features(**image).pooler_output
    count = sum(of_image.flatten(0, -2).shape[0] for of_image in features) // 2
    most = min(90, model.config.get_text_config().vocab_size)
    text = torch.randint(3, most, (2, padding + 14), generator=generator)
    ids = torch.cat((text[:, : padding + 5], torch.full((2, count), IMAGE), text[:, padding + 5 :]), dim=1)
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    types = {"gemma3": ids == IMAGE, "paligemma": torch.arange(ids.shape[1]).expand_as(ids) >= padding + 9}
    types = {"token_type_ids": types[family].long()} if family in types else {}
    return {"input_ids": ids, "attention_mask": mask, **image, **types}


def _grids(model: Any, padding: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """The same of a model that reads images as patches in a grid, two tokens high and wide here."""
    vision = model.config.vision_config
    patch = 3 * vision.temporal_patch_size * vision.patch_size**2
    text = torch.randint(3, 90, (2, padding + 14), generator=generator)
    ids = torch.cat((text[:, : padding + 5], torch.full((2, 4), IMAGE), text[:, padding + 5 :]), dim=1)
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "pixel_values": torch.randn(32, patch, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * 2),
        "mm_token_type_ids": (ids == IMAGE).long(),
    }
