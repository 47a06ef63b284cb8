"""The untrained teacher: a small model of one of two families."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

Family = Literal["llama", "qwen3"]
FAMILIES: tuple[str, ...] = get_args(Family)
MAKERS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}
HEAD = 32
"""Width of a head; two query heads share a key-value head."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model. The defaults are the shipped teacher's. qwen3 has norms of queries and keys before they are rotated."""

    family: Family = "llama"
    layers: int = 2
    width: int = 128
    mlp: int = 320


def token_id(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    """Return the id of one special token."""
    number = tokenizer.convert_tokens_to_ids(token)
    assert isinstance(number, int)
    return number


def build_model(tokenizer: PreTrainedTokenizerFast, tokens: int, sizes: Sizes) -> PreTrainedModel:
    """Return an untrained model with random weights. tokens: of its longest text."""
    config_class, model_class = MAKERS[sizes.family]
    config = config_class(
        vocab_size=len(tokenizer),
        hidden_size=sizes.width,
        intermediate_size=sizes.mlp,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.width // HEAD,
        num_key_value_heads=max(1, sizes.width // HEAD // 2),
        head_dim=HEAD,
        max_position_embeddings=tokens,
        tie_word_embeddings=False,
        initializer_range=0.05,
        pad_token_id=token_id(tokenizer, "<pad>"),
        bos_token_id=token_id(tokenizer, "<bos>"),
        eos_token_id=token_id(tokenizer, "<eos>"),
    )
    model = model_class(config)
    # Large embeddings keep the words apart while the layers learn to compare them. With small ones (0.02), which were
    # tied to the output besides, recall stayed at chance.
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=1.0)
    return model
