"""Peak memory of a run: what the allocator of a GPU counts, or what is resident of a process on a CPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blocks.external_parts import list_named_parts, register_parts
from composer.benching.options import BenchOptions
from composer.benching.report import Workload
from composer.benching.trial import Contestant, Gauge, Trial, run_trial, warm
from composer.errors import BenchError
from composer.reporting.progress import silence_transformers
from composer.system.subprocesses import environment_of_child

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def gauge_allocations(device: str) -> Gauge:
    """Return the peak of CUDA tensors, by ``torch.cuda.max_memory_allocated``, less all earlier tensors except the cache."""
    import torch

    def gauge(run: Callable[[], Any], cache_bytes: int) -> tuple[Any, int]:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device) - cache_bytes
        result = run()
        torch.cuda.synchronize(device)
        return result, torch.cuda.max_memory_allocated(device) - before

    return gauge


def resident(run: Callable[[], Any], cache_bytes: int) -> tuple[Any, int]:
    """Return the peak of this process's resident memory, as Linux counts it (VmHWM, reset before), less all memory that was
    resident before, except the cache.

    Right only where the allocator returns freed tensors to the system at once, as in the processes that ``peaks_of`` starts.
    Tensors smaller than a page may still reuse memory, so the result is no less than the cache.
    """
    CLEAR.write_text("5")
    before = bytes_of("VmRSS") - cache_bytes
    result = run()
    return result, max(bytes_of("VmHWM") - before, cache_bytes)


def bytes_of(field: str) -> int:
    """Return the bytes of a field of /proc/self/status, which has them in kB."""
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


AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "4096"}
"""Make glibc return freed tensors of a page or more at once: resident memory is then allocated memory, without holes in the
heap."""

Peaks = dict[Workload, int | None]


def peaks_of(folder: Path, options: BenchOptions, trial: Trial, tell: Callable[[Workload], None]) -> Peaks:
    """Peak bytes of a model on each workload; None where memory did not suffice.

    Where the system kills the process, the result lacks this workload and all later ones. Raises BenchError for other failures.
    """
    request = {
        "folder": str(folder),
        "dtype": options.dtype,
        "backend": options.backend,
        "threads": options.threads,
        "parts": list_named_parts(),
        "trial": trial.model_dump(),
    }
    environment = environment_of_child(**AT_ONCE)
    command = [sys.executable, "-m", "composer.benching.memory", json.dumps(request)]
    peaks: Peaks = {}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as child,
    ):
        assert child.stdout is not None
        try:
            for line in child.stdout:
                kind, length, batch, peak = json.loads(line)
                peaks[Workload(kind, length, batch)] = peak
                tell(Workload(kind, length, batch))
        except BaseException:  # such as Ctrl-C
            child.kill()
            raise
        child.wait()
        errors.seek(0)
        message = errors.read().strip()
    if child.returncode > 0:
        last = message.splitlines()[-1] if message else "it printed no message"
        raise BenchError(f"The process that measures the memory of {folder} failed: {last}. Fix the cause, or leave --memory out.")
    return peaks


def main(request: dict[str, Any]) -> None:
    """The main function of the process: prints a line of JSON for each workload."""
    import torch

    from composer.weights.opened import open_models

    silence_transformers("error")
    register_parts(request["parts"])
    torch.set_num_threads(request["threads"])
    trial = Trial.model_validate(request["trial"])
    (opened,) = open_models([request["folder"]], BenchError, request["dtype"])
    contestant = Contestant(opened.label, opened.load(request["dtype"], "cpu", request["backend"]))
    for parameter in contestant.model.parameters():
        parameter.sum()  # reads the parameter, so that all of it is resident from here on
    warm([contestant], trial)
    for workload, measured in run_trial([contestant], trial, resident):
        print(json.dumps([*workload, measured[contestant.label].peak_bytes]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
