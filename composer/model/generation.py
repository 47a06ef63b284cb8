"""What a model's own settings may say of how it writes: which tokens begin, end and pad a text, and nothing else."""

from __future__ import annotations

from typing import Any

TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def keep_tokens_alone(model: Any) -> None:
    """How a text is written, whoever asks for one says: beams, penalties and lengths of a source's settings go."""
    from transformers import GenerationConfig

    said = model.generation_config
    model.generation_config = GenerationConfig(**{name: getattr(said, name, None) for name in TOKENS})
