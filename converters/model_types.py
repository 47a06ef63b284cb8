"""The model types of this project in transformers, as configurations have them, and the file that names the project."""

from __future__ import annotations

OWN = "composed"
"""The model type of models with the project's own decoder around the heads."""
PREFIX = f"{OWN}_"
"""The prefix of all other model types, before their host's: ``composed_qwen3``."""

STUB = "needs_attention_composer.py"
"""The file of a model's folder that transformers runs, if it may, where the package is not installed. It states what to install."""

AUTO_MAP = {"AutoConfig": f"{STUB.removesuffix('.py')}.Config"}
"""The key ``auto_map`` of a model's config. Where the package is imported, transformers has the model's classes and ignores it."""


def is_composed_type(model_type: object) -> bool:
    """Whether a model type is one of this project."""
    return isinstance(model_type, str) and (model_type == OWN or model_type.startswith(PREFIX))


def host_of(model_type: str) -> str:
    """Return the model type of the blocks around the heads; this project's own are Llama's."""
    return "llama" if model_type == OWN else model_type.removeprefix(PREFIX)
