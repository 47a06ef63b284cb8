"""Triton's interpreter in tests: a file that imports this module is skipped if Triton compiles. fla is imported, too."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from tests.compiling import operations_alone

if os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("Triton compiles here, and does not interpret", allow_module_level=True)

from blocks.kernels import Kernel
from composer.laws.interpreter import LIBRARY, nothing_refused

__all__ = ["LIBRARY", "count_launches", "nothing_refused"]

operations_alone()


@contextmanager
def count_launches() -> Iterator[Counter[str]]:
    """How often each kernel has answered within."""
    counts, call = Counter[str](), Kernel.__call__

    def count(kernel: Kernel, *inputs: Any, **options: Any) -> Any:
        result = call(kernel, *inputs, **options)
        counts[kernel.name] += 1
        return result

    with patch.object(Kernel, "__call__", count):
        yield counts
