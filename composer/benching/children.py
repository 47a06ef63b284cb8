"""Peak memory on a CPU: each model runs every workload once, alone in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blocks.outside import named_parts, register_parts
from composer.benching.options import BenchOptions
from composer.benching.report import Workload
from composer.benching.trial import Trial
from composer.errors import BenchError
from composer.progress import silence_transformers

AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "4096"}
"""Glibc gives freed tensors of a page or more back at once: what is resident is what is held, without the holes of the heap."""

Peaks = dict[Workload, int | None]


def peaks_of(folder: Path, options: BenchOptions, trial: Trial, tell: Callable[[Workload], None]) -> Peaks:
    """Peak bytes of a model on each workload; None where memory did not suffice.

    Where the system kills the process, the result lacks this workload and all later ones. Raises BenchError for other failures.
    """
    asked = {
        "folder": str(folder),
        "dtype": options.dtype,
        "backend": options.backend,
        "threads": options.threads,
        "parts": named_parts(),
        "trial": trial.model_dump(),
    }
    environment = {**os.environ, **AT_ONCE, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    command = [sys.executable, "-m", "composer.benching.children", json.dumps(asked)]
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
        said = errors.read().strip()
    if child.returncode > 0:
        last = said.splitlines()[-1] if said else "it said nothing"
        raise BenchError(f"The process that measures the memory of {folder} failed: {last}. Leave --memory out, or mend it.")
    return peaks


def main(asked: dict[str, Any]) -> None:
    """The main function of the process: prints a line of JSON for each workload."""
    import torch

    from composer.benching.memory import resident
    from composer.benching.trial import Contestant, run_trial, warm
    from composer.weights.opened import open_models

    silence_transformers("error")
    register_parts(asked["parts"])
    torch.set_num_threads(asked["threads"])
    trial = Trial.model_validate(asked["trial"])
    (opened,) = open_models([asked["folder"]], BenchError, asked["dtype"])
    contestant = Contestant(opened.label, opened.load(asked["dtype"], "cpu", asked["backend"]))
    for parameter in contestant.model.parameters():
        parameter.sum()  # reads the parameter, so that all of it is resident from here on
    warm([contestant], trial)
    for workload, found in run_trial([contestant], trial, resident):
        print(json.dumps([*workload, found[contestant.label].peak_bytes]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
