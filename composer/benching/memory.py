"""Peak memory of a run: what the allocator of a GPU counts, or what is resident of a process on a CPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

Gauge = Callable[[Callable[[], Any], int], tuple[Any, int | None]]
"""Calls a function while a cache of so many bytes is held: what it returns, and the peak bytes of the two together."""
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def unmeasured(run: Callable[[], Any], held: int) -> tuple[Any, None]:
    return run(), None


def allocated(device: str) -> Gauge:
    """The peak of CUDA tensors, by ``torch.cuda.max_memory_allocated``, less all earlier tensors except the cache."""
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
    """The peak of this process's resident memory, as Linux counts it (VmHWM, reset before), less all memory that was resident
    before, except the cache.

    Right only where the allocator returns freed tensors to the system at once: ``composer.benching.children`` starts such
    processes. Tensors smaller than a page may still reuse memory, so the result is no less than the cache.
    """
    CLEAR.write_text("5")
    before = bytes_of("VmRSS") - held
    answer = run()
    return answer, max(bytes_of("VmHWM") - before, held)


def bytes_of(field: str) -> int:
    """The bytes of a field of /proc/self/status, which has them in kB."""
    (kilobytes,) = re.findall(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    return 1024 * int(kilobytes)


def can_tell_resident() -> bool:
    """Whether this system reports resident memory, and lets its peak be reset."""
    try:
        bytes_of("VmHWM")
        CLEAR.write_text("5")
    except (OSError, ValueError):
        return False
    return True
