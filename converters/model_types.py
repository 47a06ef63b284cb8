"""The model types of this project in transformers, as configurations have them."""

from __future__ import annotations

OWN = "composed"
"""The model type of models with the project's own decoder around the heads."""
PREFIX = f"{OWN}_"
"""The prefix of all other model types, before their host's: ``composed_qwen3``."""


def is_composed_type(model_type: object) -> bool:
    """Whether a model type is one of this project."""
    return isinstance(model_type, str) and (model_type == OWN or model_type.startswith(PREFIX))
