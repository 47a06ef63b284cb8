"""Heads on a kernel backend: a file that imports this module is skipped if Triton compiles instead of interpreting."""

from __future__ import annotations

import torch

import tests.interpreter  # noqa: F401  which skips
from blocks.flow import Tokens
from composer.laws.kernel_forms import (
    CANCELLED,
    LENGTH,
    assert_on_kernels,
    packed_tokens,
    padded_tokens,
    plain,
)

__all__ = ["CANCELLED", "LENGTH", "assert_on_kernels", "documents_and_padding", "packed_tokens", "padded_tokens", "plain"]
WHOLE, SHORT = 17, 2
"""Tokens of one row, and those of its first document."""


def documents_and_padding() -> Tokens:
    """Return one row of two documents and a padding token, the second so long that a window and the memory below it evict pairs."""
    position = torch.cat((torch.arange(SHORT), torch.arange(WHOLE - SHORT)))
    columns = torch.arange(WHOLE)
    return Tokens(position[None], (columns >= SHORT).long()[None], (columns < WHOLE - 1)[None])
