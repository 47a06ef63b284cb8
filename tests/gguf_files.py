"""Tiny GGUF files, as llama.cpp's converter writes them, for tests to read and to damage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

MERGES = ("t h", "th e", "Ġ the", "c a", "ca t", "Ġ cat", "a n", "an d", "Ġ and")
SPECIAL = ("<|endoftext|>", "<|end|>", "<|user|>", "<|model|>")
TOKENS = (*bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES), *SPECIAL)
PADDING = -len(TOKENS) % 32
VOCABULARY = len(TOKENS) + PADDING
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|model|>{% endif %}"
)
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 5000.0,
    "rms_norm_eps": 1e-5,
    "bos_token_id": TOKENS.index("<|endoftext|>"),
    "eos_token_id": TOKENS.index("<|end|>"),
}
CONFIGS: Mapping[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def gguf_model(family: str, **sizes: Any) -> PreTrainedModel:
    """Return a tiny random model of a family that transformers reads from GGUF. For qwen3, transformers does not read the head
    dimension.
    """
    torch.manual_seed(0)
    config = CONFIGS[family](**{**SIZES, **({"head_dim": 128} if family == "qwen3" else {}), **sizes})
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.1 + ("norm" in name))
    return model.eval()


def write_gguf(
    file: Path,
    model: PreTrainedModel,
    kind: str = "Q8_0",
    *,
    tokenizer: bool = True,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, numpy.ndarray] | None = None,
    changed: Mapping[str, Any] | None = None,
    template: str | None = TEMPLATE,
) -> Path:
    """Write a model with matrices of this type and vectors in float32. metadata: further integers, floats and strings by key.
    tensors: further tensors in float32. changed: sizes in the metadata that replace the model's.
    """
    config = {**model.config.to_dict(), **(changed or {})}
    writer = GGUFWriter(file, config["model_type"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if config["model_type"] == "llama":
        writer.add_rope_dimension_count(model.config.head_dim)
    if tokenizer:
        _add_tokenizer(writer)
        if template is not None:
            writer.add_chat_template(template)
    else:
        writer.add_vocab_size(config["vocab_size"])
    adders = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in (metadata or {}).items():
        adders[type(value)](key, value)
    for name, tensor in model.named_parameters():
        _add_tensor(writer, _name(name), _as_stored(name, tensor.detach(), model.config).float().numpy(), kind)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: GGUFWriter) -> None:
    padding = tuple(f"[PAD{number}]" for number in range(PADDING))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*TOKENS, *padding])
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS] + [5] * PADDING)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(TOKENS.index("<|endoftext|>"))
    writer.add_eos_token_id(TOKENS.index("<|end|>"))


def _name(name: str) -> str:
    """Return llama.cpp's name of a parameter."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, inner = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[inner]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def _as_stored(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """Reorder queries and keys of a Llama as llama.cpp does, with both halves of each rotated pair side by side."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if config.model_type != "llama" or heads is None:
        return tensor
    return tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def _add_tensor(writer: GGUFWriter, name: str, array: numpy.ndarray, kind: str) -> None:
    if kind == "F32" or array.ndim == 1:
        writer.add_tensor(name, array)
        return
    of = GGMLQuantizationType[kind]
    writer.add_tensor(name, quants.quantize(array, of), raw_dtype=of)
