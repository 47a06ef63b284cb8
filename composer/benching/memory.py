"""Peak memory of a run: what the allocator of a GPU counts, or what is resident of a process on a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Gauge = Callable[[Callable[[], Any], int], tuple[Any, int | None]]
"""Runs something beside a cache of so many bytes; gives what it returns, and the most bytes that the two took together."""
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def unmeasured(run: Callable[[], Any], held: int) -> tuple[Any, None]:
    return run(), None


def allocated(device: str) -> Gauge:
    """Of CUDA tensors, from ``torch.cuda.max_memory_allocated``, less all that was there before but for the cache."""
    import torch

    def gauge(run: Callable[[], Any], held: int) -> tuple[Any, int]:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) - held
        answer = run()
        torch.cuda.synchronize(device)
        return answer, torch.cuda.max_memory_allocated(device) - before

    return gauge


def resident(run: Callable[[], Any], held: int) -> tuple[Any, int]:
    """Of this process, as Linux counts it: VmHWM, set back to what is resident now, less that but for the cache.

    Right only where the process's allocator gives freed tensors back at once: ``composer.benching.children`` starts such ones. What
    is smaller than a page may still stand where something else stood before, so a cache is the least that is told.
    """
    CLEAR.write_text("5")
    before = bytes_of("VmRSS") - held
    answer = run()
    return answer, max(bytes_of("VmHWM") - before, held)


def bytes_of(field: str) -> int:
    """A line of /proc/self/status that is in kB."""
    (kilobytes,) = re.findall(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    return 1024 * int(kilobytes)


def can_tell_resident() -> bool:
    """Whether this system says what is resident, and lets the most be set back."""
    try:
        bytes_of("VmHWM")
        CLEAR.write_text("5")
    except (OSError, ValueError):
        return False
    return True
