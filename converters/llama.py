"""Llama 1, 2, 3 and 3.x, and what calls itself so. Its names are the canonical ones.

Liger's students of Llama (arXiv:2503.01496) have Llama's names and keys, and no further tensors. A spec describes their heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from converters.bounded import brief, list_first
from converters.config import MOST_LAYERS, number, positive_int, positive_number, switch, token_id, token_ids
from converters.errors import ConfigError
from converters.family import Config, Family
from converters.trunk import RopeScaling, Trunk, read_dtype

NAMES = {
    "model.embed_tokens.weight": "model.embed_tokens.weight",
    "model.layers.{i}.input_layernorm.weight": "model.layers.{i}.input_layernorm.weight",
    "model.layers.{i}.self_attn.q_proj.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "model.layers.{i}.self_attn.q_proj.bias": "model.layers.{i}.self_attn.q_proj.bias",
    "model.layers.{i}.self_attn.k_proj.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "model.layers.{i}.self_attn.k_proj.bias": "model.layers.{i}.self_attn.k_proj.bias",
    "model.layers.{i}.self_attn.v_proj.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "model.layers.{i}.self_attn.v_proj.bias": "model.layers.{i}.self_attn.v_proj.bias",
    "model.layers.{i}.self_attn.o_proj.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "model.layers.{i}.self_attn.o_proj.bias": "model.layers.{i}.self_attn.o_proj.bias",
    "model.layers.{i}.post_attention_layernorm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "model.layers.{i}.mlp.gate_proj.weight": "model.layers.{i}.mlp.gate_proj.weight",
    "model.layers.{i}.mlp.gate_proj.bias": "model.layers.{i}.mlp.gate_proj.bias",
    "model.layers.{i}.mlp.up_proj.weight": "model.layers.{i}.mlp.up_proj.weight",
    "model.layers.{i}.mlp.up_proj.bias": "model.layers.{i}.mlp.up_proj.bias",
    "model.layers.{i}.mlp.down_proj.weight": "model.layers.{i}.mlp.down_proj.weight",
    "model.layers.{i}.mlp.down_proj.bias": "model.layers.{i}.mlp.down_proj.bias",
    "model.norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
}

PASSED_OVER = {
    "model.layers.{i}.self_attn.rotary_emb.inv_freq": "rotary frequencies, which follow from rope_theta",
}

_READ = frozenset(
    {
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "attention_bias",
        "mlp_bias",
        "tie_word_embeddings",
        "rope_theta",
        "rope_scaling",
        "rope_parameters",
        "max_position_embeddings",
        "hidden_act",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "initializer_range",
    }
)
# Keys that do not change the model's computation at inference.
_HARMLESS = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "dtype",
        "id2label",
        "label2id",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "pretraining_tp",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
# Keys of other models that change the computation: each must have a value at which it does nothing.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "quantization_config": (None,),
    "partial_rotary_factor": (None, 1, 1.0),
    "rope_interleaved": (None, False),
    "sliding_window": (None,),
    "layer_types": (None,),
    "qk_norm": (None, False),
    "use_qk_norm": (None, False),
    "attn_logit_softcapping": (None, 0),
    "final_logit_softcapping": (None, 0),
    "embedding_multiplier": (None, 1, 1.0),
    "attention_multiplier": (None,),
    "residual_multiplier": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0),
    "logit_scale": (None, 1, 1.0),
}
HOSTED = ("linear", "dynamic", "yarn", "longrope")
"""Types of rotary positions that only transformers' Llama has."""
_SCALING_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def read_config(config: Config, notes: list[str]) -> Trunk:
    """Llama's config in its old and its new style. A missing key has transformers' default."""
    trunk = read_trunk(config, notes)
    if trunk.head_dim % 2:
        raise ConfigError(f"head_dim is {trunk.head_dim}; rotary positions rotate pairs, so it must be even.")
    return trunk


def read_trunk(config: Config, notes: list[str]) -> Trunk:
    """Read the config of a family that may have heads without rotary positions. A missing key has transformers' default."""
    _refuse_what_changes_the_computation(config)
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"config.json has hidden_act: {brief(activation)}; only 'silu' is supported.")
    hidden, heads = positive_int(config, "hidden_size"), positive_int(config, "num_attention_heads")
    max_positions = positive_int(config, "max_position_embeddings", 2048)
    theta, scaling = _rope(config, max_positions)
    vocabulary = positive_int(config, "vocab_size")
    trunk = Trunk(
        vocabulary_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=positive_int(config, "intermediate_size"),
        layers=positive_int(config, "num_hidden_layers", maximum=MOST_LAYERS),
        heads=heads,
        key_heads=positive_int(config, "num_key_value_heads", heads),
        head_dim=positive_int(config, "head_dim", _head_dim(config, hidden, heads)),
        norm_epsilon=number(config, "rms_norm_eps", 1e-6),
        attention_bias=switch(config, "attention_bias", False),
        mlp_bias=switch(config, "mlp_bias", False),
        tied_embeddings=switch(config, "tie_word_embeddings", False),
        rope_theta=theta,
        rope_scaling=scaling,
        max_positions=max_positions,
        activation="silu",
        bos_token_id=token_id(config, "bos_token_id", vocabulary, 1),
        eos_token_id=token_ids(config, "eos_token_id", vocabulary, 2),
        pad_token_id=token_id(config, "pad_token_id", vocabulary),
        dtype=read_dtype(config),
        initializer_range=number(config, "initializer_range", 0.02, maximum=1),
    )
    unknown = sorted(set(config) - _READ - _HARMLESS - set(_NEUTRAL))
    if unknown:
        notes.append(f"config.json has unknown keys for a Llama; they were left out: {list_first(unknown)}.")
    if config.get("auto_map"):
        notes.append("config.json names its own code (auto_map); it was not run, and Llama's code is used.")
    return trunk


def _refuse_what_changes_the_computation(config: Config) -> None:
    for key, neutral in _NEUTRAL.items():
        value = config.get(key)
        if value not in neutral:
            raise ConfigError(f"config.json has {key}: {brief(value)}, which changes what the model computes and is not Llama's.")


def _head_dim(config: Config, hidden: int, heads: int) -> int | None:
    if config.get("head_dim") is None and hidden % heads:
        raise ConfigError(f"hidden_size {hidden} does not divide by {heads} heads, and config.json has no 'head_dim'.")
    return hidden // heads


def needs_host(config: Config) -> bool:
    """Whether only transformers' own Llama has the rotary positions of this config."""
    positions = _positions(config)
    return isinstance(positions, Mapping) and _kind(positions) in HOSTED


def _positions(config: Config) -> object:
    """``rope_parameters`` (new) or ``rope_scaling`` (old), as transformers weighs them."""
    return config.get("rope_scaling") or config.get("rope_parameters") or {}


def _kind(positions: Mapping[str, object]) -> object:
    return positions.get("rope_type", positions.get("type", "default"))


def _rope(config: Config, max_positions: int) -> tuple[float, RopeScaling | None]:
    """Return the base of rotary positions, which the old style has outside of their settings, and their scaling."""
    positions = _positions(config)
    if not isinstance(positions, Mapping):
        raise ConfigError(f"config.json has rope_parameters: {brief(positions)}; expected a mapping or null.")
    theta = positive_number(positions, "rope_theta", positive_number(config, "rope_theta", 10000.0))
    kind = _kind(positions)
    if kind == "default":
        scaling_keys: tuple[str, ...] = ()
        scaling = None
    elif kind == "llama3":
        scaling_keys = _SCALING_KEYS
        scaling = RopeScaling(
            factor=positive_number(positions, "factor"),
            low_freq_factor=positive_number(positions, "low_freq_factor"),
            high_freq_factor=positive_number(positions, "high_freq_factor"),
            original_max_position_embeddings=positive_int(positions, "original_max_position_embeddings", max_positions),
        )
        if scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
            raise ConfigError("config.json has low_freq_factor ≥ high_freq_factor; Llama 3's scaling blends between the two.")
    else:
        raise ConfigError(
            f"config.json has rotary positions of type {brief(kind)}; supported are {', '.join(map(repr, HOSTED))}, "
            "'default' and 'llama3'. "
            "A model stretched in another way would compute something else than its source."
        )
    unknown = sorted(set(positions) - {"rope_theta", "rope_type", "type", *scaling_keys})
    if unknown:
        raise ConfigError(f"config.json has unknown rotary settings for the type {kind!r}: {list_first(unknown)}.")
    return theta, scaling


LLAMA = Family(model_type="llama", title="Llama 1, 2, 3 and 3.x", names=NAMES, passed_over=PASSED_OVER, read_config=read_config)


LIGER = replace(LLAMA, model_type="liger_gla", title="Liger-GLA, for published/liger-gla")
