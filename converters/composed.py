"""Students of this project: Llama's names, and beside them the parameters of composed heads, handed through."""

from __future__ import annotations

from converters.canonical import COMPOSED
from converters.family import Config, Family
from converters.llama import LLAMA
from converters.trunk import Trunk

SPEC_KEYS = ("spec", "spec_hash")
"""Where a student's config says what its heads are."""

NAMES = {**LLAMA.names, COMPOSED: COMPOSED}


def read_config(config: Config, notes: list[str]) -> Trunk:
    """A student's trunk is written with Llama's keys; what its config says of its heads is the spec's affair."""
    return LLAMA.read_config({key: value for key, value in config.items() if key not in SPEC_KEYS}, notes)


COMPOSED_FAMILY = Family(
    model_type="composed",
    title="models built by this project",
    names=NAMES,
    passed_over=LLAMA.passed_over,
    read_config=read_config,
)
