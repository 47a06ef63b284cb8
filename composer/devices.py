"""Where a model can run, and how to tell that it has no room there."""

from __future__ import annotations

import re
from pathlib import Path

from composer.errors import BuildError, ComposerError

ALLOCATION = "allocate memory|out of memory|size calculation overflowed|multiplication overflow"
"""What PyTorch says where memory ends: on a CPU that is no error of a kind of its own."""

_GROUP = Path("/sys/fs/cgroup")


def check_device(device: str) -> None:
    """Whether there is such a device here. Raises ComposerError."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    known = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if device not in known:
        raise ComposerError(f'there is no device "{device}" here; there is {", ".join(known)}')


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error is of memory that has come to its end."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return type(error) is RuntimeError and re.search(ALLOCATION, str(error)) is not None


def check_memory(needed: int, what: str) -> None:
    """Says so before the first byte where memory cannot take what is sure to be taken. Raises BuildError."""
    free = free_memory()
    if needed > free:
        raise BuildError(f"No memory for {what}: that takes {needed:,} bytes, and {free:,} are free.")


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, of its control group, and of its own limit."""
    import psutil

    rooms = [psutil.virtual_memory().available + psutil.swap_memory().free, _left_in_group()]
    if hasattr(psutil, "RLIMIT_AS"):
        process = psutil.Process()
        limit = process.rlimit(psutil.RLIMIT_AS)[0]
        if limit != psutil.RLIM_INFINITY:
            rooms.append(limit - process.memory_info().vms)
    return max(0, min(room for room in rooms if room is not None))


def _left_in_group() -> int | None:
    """Of a container's memory, with what files hold of it and would give back; None where it has no limit."""
    try:
        most = int((_GROUP / "memory.max").read_text())
        taken = int((_GROUP / "memory.current").read_text())
        told = (line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        return most - taken + sum(int(count) for name, count in told if name in ("active_file", "inactive_file"))
    except (OSError, ValueError):  # no control groups, or "max"
        return None
