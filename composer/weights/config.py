"""The ``config.json`` of a composed model, written without transformers: a build needs neither it nor its import time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer.spec.resolve import Resolved
from converters.composed import TRUNK_KEYS
from converters.hosts import Host
from converters.model_types import OWN, PREFIX
from converters.trunk import DEFAULTS, DTYPE_KEYS, Sizes, Trunk


def config_dict(trunk: Sizes, resolved: Resolved, dtype: str) -> dict[str, Any]:
    """A host's own fields, or Llama's for a trunk of ours with those that Llama has not, and the resolved spec."""
    spec = {"spec": resolved.model_dump(mode="json"), "spec_hash": resolved.hash}
    if isinstance(trunk, Host):
        own = {key: value for key, value in trunk.config.items() if key not in DTYPE_KEYS}
        host = str(own["model_type"])
        return {**own, "architectures": ["ComposedForCausalLM"], "model_type": f"{PREFIX}{host}", "dtype": dtype, **spec}
    assert isinstance(trunk, Trunk), "there are two"
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": trunk.rope_theta}
    if trunk.rope_scaling is not None:
        rope |= {"rope_type": "llama3", **trunk.rope_scaling}
    own = {key: value for key, field in TRUNK_KEYS.items() if (value := getattr(trunk, field)) != DEFAULTS[field]}
    if trunk.labels is not None:
        own["id2label"] = {str(label): f"LABEL_{label}" for label in range(trunk.labels)}
        own["label2id"] = {f"LABEL_{label}": label for label in range(trunk.labels)}
    return {
        "architectures": ["ComposedForCausalLM" if trunk.labels is None else "ComposedForSequenceClassification"],
        "model_type": OWN,
        "vocab_size": trunk.vocabulary_size,
        "hidden_size": trunk.hidden_size,
        "intermediate_size": trunk.intermediate_size,
        "num_hidden_layers": trunk.layers,
        "num_attention_heads": trunk.heads,
        "num_key_value_heads": trunk.key_heads,
        "head_dim": trunk.head_dim,
        "hidden_act": trunk.activation,
        "rms_norm_eps": trunk.norm_epsilon,
        "attention_bias": trunk.attention_bias,
        "mlp_bias": trunk.mlp_bias,
        "tie_word_embeddings": trunk.tied_embeddings,
        "rope_parameters": rope,
        "max_position_embeddings": trunk.max_positions,
        "initializer_range": trunk.initializer_range,
        "bos_token_id": trunk.bos_token_id,
        "eos_token_id": trunk.eos_token_id,
        "pad_token_id": trunk.pad_token_id,
        "dtype": dtype,
        **own,
        **spec,
    }


def recorded_trunk(stored: Mapping[str, Any]) -> Sizes:
    """The trunk as a record stores it."""
    return Host(**stored) if "config" in stored else Trunk(**stored)
