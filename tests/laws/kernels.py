"""Heads on a kernel backend: a file that imports this module is skipped if Triton compiles instead of interpreting."""

from __future__ import annotations

import tests.interpreter  # noqa: F401  which skips
from composer.laws.kernels import (
    CANCELLED,
    LENGTH,
    assert_on_kernels,
    documents_and_padding,
    packed_tokens,
    padded_tokens,
    plain,
)

__all__ = ["CANCELLED", "LENGTH", "assert_on_kernels", "documents_and_padding", "packed_tokens", "padded_tokens", "plain"]
