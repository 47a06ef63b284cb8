"""The families that can be read. A new one is a file with its table, and a line here."""

from __future__ import annotations

from converters.bounded import brief, is_name
from converters.composed import COMPOSED_FAMILY
from converters.errors import ConfigError
from converters.family import Config, Family
from converters.hosts import host_family
from converters.llama import LIGER, LLAMA, needs_host

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
