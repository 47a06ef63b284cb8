"""Tiny random models of transformers' families."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from composer.model.mixers import hybrids_run

PASSED = [
    "afmoe", "apertus", "arcee", "aria_text", "axk1", "biogpt", "bitnet", "cohere", "cohere2", "cohere2_moe", "cwm",
    "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo", "flint",
    "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt2", "gpt_bigcode", "gpt_neox",
    "gpt_oss", "granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoeshared", "helium", "hy_v3",
    "hyperclovax", "internlm3", "iquestcoder", "jais2", "kolibri1", "laguna", "llama", "mellum", "minicpm3", "minimax_m2",
    "ministral", "ministral3", "mistral", "mixtral", "modernbert-decoder", "nanochat", "nemotron", "olmo", "olmo2", "olmo3",
    "olmoe", "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3",
    "solar_open", "stablelm", "starcoder2", "vaultgemma", "youtu",
]  # fmt: skip
"""The families whose softmax students are their sources."""
UNLIKE = [
    "cohere", "cohere2_moe", "deepseek_v3", "ernie4_5_moe", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss",
    "granite", "granitemoe_swa", "helium", "minicpm3", "minimax_m2", "mixtral", "modernbert-decoder", "nanochat", "nemotron",
    "olmo", "persimmon", "phi", "phi3", "qwen2_moe", "qwen3", "seed_oss", "stablelm", "vaultgemma",
]  # fmt: skip
"""Few families that together have each setting of two families or more, and each way to project, to scale and to norm."""
HYBRIDS = [
    "bailing_hybrid", "bamba", "falcon_h1", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "lfm3",
    "minimax", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
]  # fmt: skip
"""Those of which some layers have no attention, or a state of another kind beside it."""
LATER = {"nemotron": "5.13"}
"""Those of which transformers has had the attention from a later version on than the oldest that is taken."""

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALWAYS = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "pad_token_id", "bos_token_id", "eos_token_id"}
"""Sizes that a config takes under another name where it has not this one."""
EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 24,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 24,
    "moe_num_experts": 4,
    "moe_k": 2,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 20,
    "kv_lora_rank": 12,
    "head_dim": 6,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
THREE = {"num_hidden_layers": 3}
LINEAR = ["linear_attention", "full_attention", "linear_attention"]
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_expand": 2, "mamba_chunk_size": 8}
PECULIAR: dict[str, dict[str, Any]] = {
    "cohere2": {"layer_types": ["sliding_attention", "full_attention"]},
    "dots1": {"n_shared_experts": 1, "first_k_dense_replace": 1},
    "gemma2": {"query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0},
    "gemma3_text": {"query_pre_attn_scalar": 24, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma4_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 96,
        "num_experts": None,
    },
    "granite": {"attention_multiplier": 0.3, "residual_multiplier": 0.7, "embedding_multiplier": 2.0, "logits_scaling": 3.0},
    "helium": {"head_dim": 8},
    "bamba": {**THREE, **MAMBA, "attn_layer_indices": [1]},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "granitemoehybrid": {
        **THREE,
        **MAMBA,
        "layer_types": LINEAR,
        "shared_intermediate_size": 48,
        "position_embedding_type": "rope",
    },
    "jamba": {**THREE, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "lfm2": {**THREE, "layer_types": ["conv", "full_attention", "conv"]},
    "lfm2_moe": {**THREE, "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "lfm3": {**THREE, "layer_types": ["conv", "full_attention", "sliding_attention"]},
    "minimax": {**THREE, "layer_types": LINEAR, "block_size": 4},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "moe"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "n_routed_experts": 4,
        "moe_shared_expert_intermediate_size": 24,
    },
    "kimi_linear": {**THREE, **LATENT, "layer_types": LINEAR, "linear_head_dim": 8, "linear_num_heads": 4},
    "bailing_hybrid": {**THREE, **LATENT, "layer_types": LINEAR},
    "olmo_hybrid": {**THREE, "layer_types": LINEAR},
    "qwen3_5_moe_text": {**THREE, **DELTA, "layer_types": LINEAR},
    "qwen3_5_text": {**THREE, **DELTA, "layer_types": LINEAR},
    "qwen3_next": {**THREE, **DELTA, "layer_types": LINEAR},
    "phi": {"partial_rotary_factor": 0.5},
    **dict.fromkeys(("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu"), LATENT),
}


def tokens(rows: int = 2, length: int = 23) -> torch.Tensor:
    """Draw random ids without special tokens."""
    return torch.randint(3, 90, (rows, length), generator=torch.Generator().manual_seed(1))


def is_before(version: str) -> bool:
    """Return whether this transformers is older than a version."""
    return Version(transformers.__version__) < Version(version)


def skip_before(version: str, what: str) -> None:
    """Skip the test where transformers is older than the first version that has ``what``."""
    if is_before(version):
        pytest.skip(f"transformers {transformers.__version__} has no {what}")


def skip_unless_composed(family: str) -> None:
    """Skip the test where this transformers lacks the family, or cannot continue the states of its layers."""
    if family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    if family in HYBRIDS and not hybrids_run():
        pytest.skip(f"transformers {transformers.__version__} cannot continue the states of {family}'s layers")


def small(family: str, seed: int = 0, **more: Any) -> PreTrainedModel:
    """Return a language model of the family with every parameter away from values that hide its effect.

    Skips the test where this transformers has no such source.
    """
    skip_unless_composed(family)
    # By name: flash-linear-attention registers classes of its own for some families once it is imported.
    host = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family])
    make = host.config_class
    usual = make()
    known = set(usual.to_dict()) | set(getattr(usual, "attribute_map", {}))
    settings = {name: size for name, size in (SIZES | EXPERTS).items() if name in known or name in ALWAYS}
    if getattr(usual, "sliding_window", None):
        settings["sliding_window"] = 8
    config = make(**(settings | PECULIAR.get(family, {}) | more))
    torch.manual_seed(seed)
    model = host._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter) * 0.1
            parameter.copy_(parameter + noise if parameter.dim() == 1 else noise * 1.2)
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0.0  # transformers does so whenever it loads a Youtu
    return model
