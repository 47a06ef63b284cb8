"""The devices that a model can run on, and whether their memory suffices."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from composer.errors import BuildError, ComposerError, first_line
from converters.bounded import brief

ALLOCATION = "allocate memory|out of memory|size calculation overflowed|multiplication overflow|STATUS_ALLOC_FAILED"
"""Messages of PyTorch where memory has run out: on a CPU, and in CUDA's libraries, this error has no separate class."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``."""
LARGEST = 32 << 20
"""Bytes: the largest threshold for blocks that glibc maps by themselves."""
NEVER = -1
SMALL = 10_000_000
"""Parameters of a model below which it is small."""
_GROUP = Path("/sys/fs/cgroup")


def check_device(device: str) -> None:
    """Raise ComposerError if there is no such device here."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ["cpu", *(["cuda"] if count else []), *(f"cuda:{index}" for index in range(count))]
    if device not in devices:
        raise ComposerError(f'there is no device "{device}" here; there is {", ".join(devices)}')


def check_place(device: str) -> None:
    """Raise ComposerError if PyTorch can put nothing on such a device here."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        why = first_line(error)
        raise ComposerError(f'there is no device "{device}" here: {why}') from error


@contextmanager
def seed_for_block(seed: int, device: str) -> Iterator[None]:
    """Seed the random numbers of the CPU and of the device for the block. Afterwards the caller's random numbers continue
    unchanged."""
    import torch

    with torch.random.fork_rng([] if device == "cpu" else [device]):
        torch.default_generator.manual_seed(seed)
        if device != "cpu":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def device_type(device: str) -> str:
    """``cuda`` of ``cuda:0``, and so on, of a device that need not be here. Raises ComposerError."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise ComposerError(f"a model runs on cpu or cuda, not on {brief(device)}")
    return device.partition(":")[0]


def device_name(device: str) -> str:
    """Return the name of the GPU or the processor."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()


class NoRoom(Exception):
    """Memory has run out, and the caller has a remedy."""


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory has run out."""
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return type(error) in (RuntimeError, torch.AcceleratorError) and re.search(ALLOCATION, str(error)) is not None


@contextmanager
def room(refusal: Callable[[], Exception] = NoRoom) -> Iterator[None]:
    """For the block, raises what ``refusal`` makes if memory runs out; other errors pass."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch's error is a RuntimeError
        if not ran_out_of_memory(error):
            raise
        raise refusal() from error


def room_for(
    activity: str, remedy: str | Callable[[], str], refusal: type[ComposerError] = ComposerError
) -> AbstractContextManager[None]:
    """``room`` with a message: where memory ran out, or during which work, and what to do. remedy: the advice, or a function that
    returns it."""
    return room(lambda: refusal(f"Out of memory {activity}. {remedy if isinstance(remedy, str) else remedy()}"))


def check_memory(needed: int, purpose: str) -> None:
    """Raise BuildError, before anything is allocated, if memory does not suffice for ``needed`` bytes."""
    free = free_memory()
    if needed > free:
        raise BuildError(f"Not enough memory for {purpose}: it needs {needed:,} bytes, and {free:,} are free.")


def free_memory() -> int:
    """Bytes that this process may still allocate: of the machine, of its control group, and of its limit."""
    import psutil

    rooms = [psutil.virtual_memory().available + psutil.swap_memory().free, _left_in_group()]
    if hasattr(psutil, "RLIMIT_AS"):
        process = psutil.Process()
        limit = process.rlimit(psutil.RLIMIT_AS)[0]
        if limit != psutil.RLIM_INFINITY:
            rooms.append(limit - process.memory_info().vms)
    return max(0, min(room for room in rooms if room is not None))


def _left_in_group() -> int | None:
    """Bytes that a container's limit leaves, its cache of files counted as free; None where it has no limit."""
    try:
        limit = int((_GROUP / "memory.max").read_text())
        used = int((_GROUP / "memory.current").read_text())
        fields = (line.split() for line in (_GROUP / "memory.stat").read_text().splitlines())
        return limit - used + sum(int(count) for name, count in fields if name in ("active_file", "inactive_file"))
    except (OSError, ValueError):  # no control groups, or "max"
        return None


@contextmanager
def few_threads(model: Any) -> Iterator[None]:
    """For the block, PyTorch uses at most as many threads as cores are idle, and one for a small model, on a CPU.

    ``OMP_NUM_THREADS`` overrides this. Threads wait for each other after each kernel, much longer than they compute on busy cores.
    """
    import torch

    threads, idle = torch.get_num_threads(), (os.cpu_count() or 1) - round(os.getloadavg()[0])
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1 if model.num_parameters() < SMALL else min(threads, max(1, idle)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def processes_started() -> int:
    """Return the number of processes that torchrun has started, with this one; 1 without it. Raises BuildError if the environment
    variable of torchrun is no number."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or not int(text):
        raise BuildError(
            f'WORLD_SIZE is "{text}": expected a number of processes, as torchrun sets it. Unset it to use one process'
        )
    return int(text)


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
        # The final value of glibc's own adjustment, which is disabled once a threshold is set.
        library.mallopt(TRIM_THRESHOLD, 2 * LARGEST)
        give_back()


def give_back() -> None:
    """Give freed memory back to the system: glibc keeps pieces of it, and the next layer may not fit into them."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> Any:
    """Return the C library of this process, or None where it is another one than glibc."""
    try:
        library = ctypes.CDLL(None)
        return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
    except (OSError, TypeError):  # Windows has none by this name
        return None
