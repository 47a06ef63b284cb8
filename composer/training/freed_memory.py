"""Memory that a process has freed: kept for the next step of training, or returned to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""
LARGEST = 32 << 20
"""Bytes: the largest threshold for blocks that glibc maps by themselves."""
NEVER = -1


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory in this process for the block, and return it to the system afterwards.

    A training step frees what it has saved for its gradients, and the next step needs as much again. glibc returns it in between,
    and the system then clears every page anew. Other C libraries are left as they are.
    """
    library = _glibc()
    if library is None:
        yield
        return
    library.mallopt(MMAP_THRESHOLD, LARGEST)
    library.mallopt(TRIM_THRESHOLD, NEVER)
    try:
        yield
    finally:
        # What glibc's own adjustment ends with, which a threshold that is set turns off.
        library.mallopt(TRIM_THRESHOLD, 2 * LARGEST)
        give_back()


def give_back() -> None:
    """Return freed memory to the system: glibc keeps pieces of it, and the next layer may not fit into them."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> Any:
    """The C library of this process, or None where it is another one than glibc."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):  # Windows has none by this name
        return None
