"""Memory that a step frees is there for the next one, without new pages; afterwards the system has it back."""

from __future__ import annotations

import ctypes
import resource

import pytest
import torch

from composer.training.freed_memory import _glibc, give_back, keep_freed_memory

BLOCKS, BYTES = 12, 16 << 20


def new_pages() -> int:
    """Pages that the system had to provide for a step's worth of tensors."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(BYTES // 4) for _ in range(BLOCKS)]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(_glibc() is None, reason="another C library than glibc")
def test_a_second_step_takes_no_new_pages() -> None:
    pages = BLOCKS * BYTES // resource.getpagesize()
    with keep_freed_memory():
        new_pages()
        assert new_pages() < pages // 50
    assert new_pages() > 0, "it was returned"


def test_other_libraries_do_as_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    with keep_freed_memory():
        give_back()
