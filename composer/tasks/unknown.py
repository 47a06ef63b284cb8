"""Texts that a tokenizer cannot write, said alike wherever a model reads one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_UNKNOWN = 0.02
"""The share of unknown tokens in a text from which a warning is due."""


def unknown_token(tokenizer: Any) -> int | None:
    """The token that a tokenizer writes for unknown text; None where it has none, or where that token has another use."""
    other = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    return None if tokenizer.unk_token_id in other else tokenizer.unk_token_id


def hardly_written(what: str, ids: np.ndarray | Sequence[int], unknown: int | None) -> str | None:
    """The warning for texts that the tokenizer cannot write; None for others. what: the texts in words. unknown: the token of
    ``unknown_token``."""
    ids = np.asarray(ids)
    share = float((ids == unknown).mean()) if unknown is not None and ids.size else 0.0
    if share <= MOST_UNKNOWN:
        return None
    return (
        f"{share:.0%} of the tokens of {what} are the one that the tokenizer has for what it cannot write, so they are hardly "
        "there. Take texts that the model's tokenizer can write."
    )
