"""Reduces a model's generation settings to the tokens that begin, end and pad a text."""

from __future__ import annotations

from typing import Any

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def keep_tokens_alone(model: Any) -> None:
    """Remove beams, penalties and lengths from a model's generation settings: the caller of ``generate`` sets them."""
    from transformers import GenerationConfig

    said = model.generation_config
    model.generation_config = GenerationConfig(**{name: getattr(said, name, None) for name in TOKENS})
