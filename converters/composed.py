"""Models of this project: Llama's names and keys, further fields, parameters of heads; and all families that are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from converters.bounded import brief, is_name
from converters.config import MOST_LABELS, number, positive_int, word
from converters.errors import ConfigError
from converters.family import Config, Family
from converters.hosts import host_family
from converters.llama import LIGER, LLAMA, needs_host, read_trunk
from converters.model_types import AUTO_MAP, OWN
from converters.trunk import CLASSIFIER, COMPOSED, MLP, POSITIONS, Activation, PositionEmbedding, Trunk, TrunkNorm

SPEC_KEYS = ("spec", "spec_hash")
"""The keys of a model's config for its heads: the resolved spec, and its hash."""

ADAPTER_KEY = "adapter"
"""The folder of adapters that belong to the weights, where there are any."""

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files in that folder, by PEFT's names."""

RECORD = "composition.json"
"""The file beside the weights that records their origin."""

EXPORT = "export.json"
"""The record of an exported model, beside its weights. Its config names a class in its Python file."""

SPEC_FILE = "spec.yaml"
"""The spec in an export, and in a repository of the Hub that has a spec alone."""

TRUNK_KEYS: Mapping[str, str] = {
    "norm_type": "norm",
    "mlp_type": "mlp",
    "position_embedding": "position_embedding",
    "residual_dropout": "dropout",
    "labels": "labels",
}
"""Keys for fields that Llama's config lacks, each with its field of ``Trunk``. A key is left out at Llama's value."""

_NORMS = ("model.layers.{i}.input_layernorm.bias", "model.layers.{i}.post_attention_layernorm.bias", "model.norm.bias")
NAMES = {**LLAMA.names, **{name: name for name in (*_NORMS, POSITIONS, CLASSIFIER, COMPOSED)}}


def read_config(config: Config, notes: list[str]) -> Trunk:
    """Return the trunk in Llama's keys and in our own. The keys for heads are not read here."""
    if config.get(ADAPTER_KEY) is not None:
        adapter_folder(config[ADAPTER_KEY])
    composed_config = {
        *SPEC_KEYS,
        *TRUNK_KEYS,
        ADAPTER_KEY,
        "hidden_act",
        "problem_type",
        *(["auto_map"] if config.get("auto_map") == AUTO_MAP else []),
    }
    trunk = read_trunk({key: value for key, value in config.items() if key not in composed_config}, notes)
    return replace(
        trunk,
        activation=word(config, "hidden_act", get_args(Activation)),
        norm=word(config, "norm_type", get_args(TrunkNorm)),
        mlp=word(config, "mlp_type", get_args(MLP)),
        position_embedding=word(config, "position_embedding", get_args(PositionEmbedding)),
        dropout=number(config, "residual_dropout", 0.0, maximum=1),
        labels=positive_int(config, "labels", maximum=MOST_LABELS) if config.get("labels") is not None else None,
    )


def adapter_folder(name: object) -> str:
    """Return the name of the folder of adapters, which is one inside the model's own. Raises ``ConfigError``."""
    if not (isinstance(name, str) and is_name(name) and "\\" not in name):
        raise ConfigError(f"config.json has {ADAPTER_KEY}: {brief(name)}; expected the name of a folder beside it.")
    return name


COMPOSED_FAMILY = Family(
    model_type=OWN,
    title="models built by this project",
    names=NAMES,
    passed_over=LLAMA.passed_over,
    read_config=read_config,
)


FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA, LIGER, COMPOSED_FAMILY)}


def family_of(config: Config) -> Family:
    """Return the family that ``config.json`` names, or a ``ConfigError`` that lists those there are."""
    name = config.get("model_type")
    if name is None:
        raise ConfigError("config.json has no 'model_type'; expected the name of a family, such as llama, qwen3 or mistral.")
    if not isinstance(name, str) or not is_name(name):
        raise ConfigError(
            f"config.json has model_type: {brief(name)}; expected the name of a family, such as llama, qwen3 or mistral."
        )
    if name == LLAMA.model_type and needs_host(config):
        return host_family(name)
    return FAMILIES.get(name) or host_family(name)
