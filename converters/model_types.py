"""What transformers calls the models of this project: the model type of their configuration."""

from __future__ import annotations

OWN = "composed"
"""With the project's own decoder around the heads."""
PREFIX = f"{OWN}_"
"""What the model types of all others begin with, before that of their host: ``composed_qwen3``."""


def is_composed_type(model_type: object) -> bool:
    """Whether a configuration says that its model was built by this project."""
    return isinstance(model_type, str) and (model_type == OWN or model_type.startswith(PREFIX))
