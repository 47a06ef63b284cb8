"""Small random models in memory, with their sources."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, LlamaConfig, LlamaForCausalLM, StaticCache

import composer
from composer.model.modeling import ComposedForCausalLM
from composer.spec.loading import load_spec
from composer.spec.shipped import shipped_specs
from tests.composer.hosts.families import small
from tests.covers import covering_specs, some

CAUSAL = [name for name in shipped_specs() if not name.startswith("ablations/") and load_spec(name).direction == "causal"]
"""The shipped specs but for ablations, those of published students among them."""
FEW = some(CAUSAL, covering_specs(CAUSAL))
"""All of them. All but few that together have every part are marked ``full``."""

OTHER_CACHES: list[Callable[[Any], Any]] = [
    lambda config: StaticCache(config, max_cache_len=16),
    lambda _: DynamicCache(),
    lambda _: EncoderDecoderCache(DynamicCache(), DynamicCache()),
    lambda _: ((torch.zeros(1, 2, 3, 8),) * 2,) * 2,
]
"""Make caches of other classes than those of composed models, from a model's config."""

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one key head a query head": {"num_key_value_heads": 4},
    "one key head": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "llama 3.1 positions": {
        "max_position_embeddings": 256,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "wide heads": {"head_dim": 24},
}


def llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Return a random Llama with larger weights than at initialisation, so that its logits differ clearly."""
    settings = {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**(settings | changes))).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name or "norm" in name:
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def student(spec: str, *overrides: str, source: LlamaForCausalLM | None = None) -> ComposedForCausalLM:
    """Return a student in float64 with fresh parameters away from their start."""
    if source is not None:
        return moved(composer.build(spec, source, overrides=overrides))
    made, numbers = _built_once(spec, overrides)
    torch.set_rng_state(numbers)
    return copy.deepcopy(made)


@functools.cache
def _built_once(spec: str, overrides: tuple[str, ...]) -> tuple[ComposedForCausalLM, Tensor]:
    """Return a cached student of the usual source, to copy, and the random state after its build."""
    with torch.inference_mode(mode=False), torch.enable_grad():  # whoever asks first may do so elsewhere
        return moved(composer.build(spec, llama(), overrides=overrides)), torch.get_rng_state()


@functools.cache
def pair(family: str) -> tuple[Any, ComposedForCausalLM]:
    """Return a small source of a family, and its softmax student, in float32."""
    source: Any = llama().float() if family == "llama" else small(family)
    return source, composer.build("softmax", source)


def moved(model: Any) -> ComposedForCausalLM:
    """Move the fresh parameters away from their start."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".composed." in name:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Draw random ids without special tokens."""
    return torch.randint(3, 97, (batch, length), generator=torch.Generator().manual_seed(seed))
