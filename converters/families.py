"""The families that can be read. A new one is a file with its table, and a line here."""

from __future__ import annotations

from converters.bounded import brief
from converters.composed import COMPOSED_FAMILY
from converters.errors import ConfigError
from converters.family import Config, Family
from converters.liger import LIGER
from converters.llama import LLAMA

FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA, LIGER, COMPOSED_FAMILY)}


def family_of(config: Config) -> Family:
    """The family that ``config.json`` names, or a ``ConfigError`` that lists those there are."""
    name = config.get("model_type")
    known = ", ".join(f"{family.model_type} ({family.title})" for family in FAMILIES.values())
    if name is None:
        raise ConfigError(f"config.json has no 'model_type' to tell its family by. Families that can be read: {known}.")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError(f"No converter for the family {brief(name)}. Families that can be read: {known}.")
    return FAMILIES[name]
