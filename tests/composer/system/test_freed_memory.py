"""Memory that a step frees is reused by the next step without new pages, and is returned to the system afterwards."""

from __future__ import annotations

import ctypes

import pytest

from composer.system.devices import _glibc, give_back, keep_freed_memory
from tests.composer.programs import printed_behind_composer

PROGRAM = """
    import resource
    import torch
    from composer.system.devices import keep_freed_memory

    def new_pages():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [torch.ones(4 << 20) for _ in range(12)]
        del held
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with keep_freed_memory():
        found = [new_pages() for _ in range(5)]
    print(*found, new_pages())
"""
"""Pages that the system provides for six steps, each with the same tensors, the last one outside of the block."""


@pytest.mark.skipif(_glibc() is None, reason="another C library than glibc")
def test_later_steps_take_few_new_pages() -> None:
    """It runs in another process, since other tests leave fragments. Under load, a single step may use new pages."""
    first, *later, after = map(int, printed_behind_composer(PROGRAM).split())
    assert min(later) < first / 4
    assert after > first / 4, "the memory was returned to the system"


def test_other_c_libraries_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library without ``mallopt`` is opened, and nothing of it is called."""
    opened: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", opened.append)
    with keep_freed_memory():
        give_back()
    assert len(opened) == 2
