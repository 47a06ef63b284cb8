"""Gauges measure the peak memory of a run, its cache included and earlier memory excluded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from composer.benching import memory
from composer.benching.memory import AT_ONCE, bytes_of, can_tell_resident, gauge_allocations, resident
from composer.benching.trial import run_unmeasured

MIB = 2**20
RUN = """
import torch
from composer.benching.memory import resident
before, cache = torch.ones(8 << 18), torch.ones(4 << 18)
def run():
    one = torch.ones(16 << 18)
    two = one + 1
    del one, two
    return torch.ones(2 << 18).sum().item()
for _ in range(3):
    print(*resident(run, cache.nbytes))
print(*resident(lambda: 7, 5))
"""


def test_unmeasured_runs_have_no_peak() -> None:
    assert run_unmeasured(lambda: 7, 5) == (7, None)


@pytest.mark.skipif(not can_tell_resident(), reason="this system does not report resident memory")
def test_resident_memory_is_measured() -> None:
    """Two blocks of 16 MiB beside a cache of 4 MiB are measured each time, without the earlier 8 MiB, within about a MiB."""
    done = subprocess.run([sys.executable, "-c", RUN], env=os.environ | AT_ONCE, capture_output=True, text=True, check=True)
    *held, (answer, least) = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    assert [size for size, _ in held] == [2 << 18] * 3
    assert all(35 * MIB < peak < 38 * MIB for _, peak in held), held
    assert answer == 7
    assert 5 <= least < 2 * MIB


def test_the_peak_is_at_least_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors reuse freed memory, so the gauge reports at least the cache."""
    monkeypatch.setattr(memory, "bytes_of", lambda _: 1000)
    monkeypatch.setattr(memory, "CLEAR", type("Nowhere", (), {"write_text": lambda *_: None}))
    assert resident(lambda: None, 300) == (None, 300)


def test_systems_without_memory_figures_give_none(monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory) -> None:
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")  # pyright: ignore[reportOperatorIssue]
    assert not can_tell_resident()
    with pytest.raises(FileNotFoundError):
        bytes_of("VmHWM")
    (tmp_path / "status").write_text("Name: it\n")  # pyright: ignore[reportOperatorIssue]
    assert not can_tell_resident()


@pytest.mark.gpu
def test_allocated_memory_is_measured() -> None:
    before, cache = (torch.ones(size << 18, device="cuda") for size in (8, 4))

    def run() -> int:
        block = torch.ones(16 << 18, device="cuda")
        del block
        return 7

    assert gauge_allocations("cuda")(run, cache.nbytes) == (7, 20 * MIB)
    assert before.nbytes == 8 * MIB
