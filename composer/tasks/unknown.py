"""Texts that a tokenizer cannot write, said alike wherever a model reads one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_UNKNOWN = 0.02
"""Share of tokens that stand for what a tokenizer cannot write, before somebody should be told."""


def unknown_token(tokenizer: Any) -> int | None:
    """What it writes for what it cannot write, where that is nothing else."""
    other = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    return None if tokenizer.unk_token_id in other else tokenizer.unk_token_id


def hardly_written(what: str, ids: np.ndarray | Sequence[int], unknown: int | None) -> str | None:
    """What to say of texts that the tokenizer cannot write, or nothing. what: they are. unknown: as ``unknown_token`` has it."""
    ids = np.asarray(ids)
    share = float((ids == unknown).mean()) if unknown is not None and ids.size else 0.0
    if share <= MOST_UNKNOWN:
        return None
    return (
        f"{share:.0%} of the tokens of {what} are the one that the tokenizer has for what it cannot write, so they are hardly "
        "there. Take texts that the model's tokenizer can write."
    )
