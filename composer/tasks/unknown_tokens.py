"""Texts that a tokenizer cannot write, or that a model cannot read, in the same words wherever a model reads a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_UNKNOWN = 0.02
"""The share of unknown tokens in a text from which a warning is due."""


def unknown_token(tokenizer: Any) -> int | None:
    """Return the token that a tokenizer writes for unknown text; None where it has none, or where that token has another use."""
    other = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    return None if tokenizer.unk_token_id in other else tokenizer.unk_token_id


def hardly_written(what: str, ids: np.ndarray | Sequence[int], unknown: int | None) -> str | None:
    """Return the warning for texts that the tokenizer cannot write; None for others. what: the texts in words. unknown: the token
    of ``unknown_token``."""
    ids = np.asarray(ids)
    share = float((ids == unknown).mean()) if unknown is not None and ids.size else 0.0
    if share <= MOST_UNKNOWN:
        return None
    return (
        f"{share:.0%} of the tokens of {what} are the tokenizer's token for unknown text, so most of their content is lost. Use "
        "texts that the model's tokenizer can write."
    )


def without_embedding(what: str, ids: np.ndarray | Sequence[int], vocabulary: int, tokenizer: Any) -> str | None:
    """Return the error for texts with a token that the model has no embedding for; None for others. what: the texts in words.
    vocabulary: the number of the model's embeddings."""
    ids = np.asarray(ids)
    if not ids.size or (ids.min() >= 0 and ids.max() < vocabulary):
        return None
    wrong = int(ids.max()) if ids.max() >= vocabulary else int(ids.min())
    return (
        f"{what}: token {wrong:,} is not among the model's {vocabulary:,}: the tokenizer ({len(tokenizer):,} tokens) does not fit "
        "the model. Use the model's own tokenizer"
    )
