"""Rows of the tables that are measured on a GPU: how they are timed, kept and continued."""

from __future__ import annotations

import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import RESULTS, describe_machine
from composer.benching.trial import NO_ROOM
from composer.system.devices import NoRoom, room

SHORTEST, LONGEST = 0.1, 0.6
"""The seconds in which one row is timed, at least and at most, after its first runs."""
FLUSHED = 256 << 20
"""Bytes that are written before each timed run, so that no input is left in the cache of the GPU."""
CYCLES = 2e9
"""Clock cycles of a GPU in a second, at most."""
Row = dict[str, Any]
Run = Callable[[], object]


@dataclass
class Bench:
    """How a table is measured.

    - device: cuda, or cpu for a dry run in Triton's interpreter, with tiny sizes.
    - tuned: whether autotuners and compilers try all configurations and lengths.
    - warm: whether runs are only compiled and run once, with few layers.
    - end: the time at which the table ends, as ``time.monotonic`` counts.
    """

    device: str
    tuned: bool = False
    warm: bool = False
    end: float = float("inf")
    waiting: int = 1
    """The number of rows that share the seconds that are left."""
    _clock: Any = field(default=None, repr=False)

    @property
    def tiny(self) -> bool:
        """Whether this is a dry run."""
        return not self.device.startswith("cuda")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.tiny else torch.bfloat16

    @property
    def seconds_left(self) -> float:
        return self.end - time.monotonic()

    def time_in_turn(self, runs: Mapping[str, Run], *, wall: bool = False) -> dict[str, Row]:
        """Return the least and the median seconds of each run, and those in which the host launches it; or its failure.

        All runs take turns, after rounds to warm up. wall: measure on the clock of the host, with the time of its launches.
        Otherwise a run begins after all of its launches.
        """
        clock = time_on_host if wall or self.tiny else self._time_on_device
        figures: dict[str, Row] = {name: {"seconds": [], "launch": 0.0} for name in runs}
        first, last = (0, 1) if self.tiny or self.warm else (2, 100)
        end = time.monotonic() + min(max(self.seconds_left / self.waiting, SHORTEST), LONGEST)
        for round_ in range(first + last):
            for name, run in runs.items():
                figure = figures[name]
                if "failure" in figure:
                    continue
                taken, failure = attempt(partial(clock, run, figure["launch"]))
                if failure:
                    figures[name] = failure
                    self.free()
                    continue
                figure["launch"] = taken[1]
                figure["seconds"] += [taken[0]] if round_ >= first else []
            if round_ < first:
                end = time.monotonic() + min(max(self.seconds_left / self.waiting, SHORTEST), LONGEST)
            elif time.monotonic() > end:
                break
        return {name: figure if "failure" in figure else _summarise(**figure) for name, figure in figures.items()}

    def _time_on_device(self, run: Run, launch: float) -> tuple[float, float]:
        """Return the seconds between two events of the device, and those in which the host launched the run.

        The device first waits for as long as the host launched the run before, so that it never waits for the host in between.
        """
        if self._clock is None:
            events = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._clock = (*events, torch.empty(FLUSHED, dtype=torch.int8, device=self.device))
        start, end, flushed = self._clock
        torch.cuda.synchronize()
        flushed.zero_()
        torch.cuda._sleep(int(CYCLES * min(1.5 * launch, 0.2)))
        start.record()
        began = time.perf_counter()
        returned = run()
        launch = time.perf_counter() - began
        end.record()
        torch.cuda.synchronize()
        del returned
        return start.elapsed_time(end) / 1e3, launch

    def free(self) -> None:
        """Return memory of deleted tensors to the device."""
        gc.collect()
        if not self.tiny:
            torch.cuda.empty_cache()

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as PyTorch compiles it, once for all lengths unless ``tuned``. A dry run compiles nothing."""
        if self.tiny:
            return function
        setattr(torch._dynamo.config, "recompile_limit", 1000)  # beyond it, the function would run uncompiled  # noqa: B010
        compiled = [torch.compile(function, dynamic=dynamic) for dynamic in ((False,) if self.tuned else (True, False))]

        def run(*arguments: Any, **options: Any) -> Any:
            while True:
                try:
                    return compiled[0](*arguments, **options)
                except Exception:
                    if len(compiled) == 1:
                        raise
                    del compiled[0]

        return run


def time_on_host(run: Run, launch: float) -> tuple[float, float]:
    """Return the seconds of a run, and those before its launches had returned, on the clock of the host."""
    settle()
    began = time.perf_counter()
    returned = run()
    launch = time.perf_counter() - began
    settle()
    seconds = time.perf_counter() - began
    del returned
    return seconds, launch


def settle() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def attempt(run: Callable[[], Any]) -> tuple[Any, Row]:
    """Return a run's result, and its failure: that memory ran out, or the last line of its error. An error of the device itself is
    raised, as nothing runs after it.
    """
    try:
        with room():
            return run(), {}
    except NoRoom:
        return None, {"failure": NO_ROOM}
    except torch.AcceleratorError:
        raise
    except Exception as error:
        traceback.print_exc()
        return None, {"failure": f"{type(error).__name__}: {' '.join(str(error).split())[-200:]}"}


def _summarise(seconds: list[float], launch: float) -> Row:
    figures = {"least": min(seconds), "median": statistics.median(seconds), "launch": launch}
    return {name: float(f"{number:.4g}") for name, number in figures.items()} | {"rounds": len(seconds)}


def differentiate(run: Callable[[], Any], leaves: list[torch.Tensor], outputs: int = 1) -> Run:
    """Return a run of forward and backward, from random gradients of the first ``outputs`` results; without leaves the run."""
    if not leaves:
        return run
    upstream: list[torch.Tensor] = []

    def run_both() -> object:
        results = run()
        results = [*results[:outputs]] if isinstance(results, tuple) else [results]
        if not upstream:
            upstream.extend(torch.randn_like(result) for result in results)
        return torch.autograd.grad(results, leaves, upstream, allow_unused=True)

    return run_both


def measure_table(
    rows: Mapping[str, Callable[[], Row]], bench: Bench, path: Path, only: str = "", tell: Callable[[str], object] = print
) -> bool:
    """Measure the rows that the file lacks, and write each one at once. Return whether the device still works.

    A row that fails is kept with its error. only: the beginning of the rows' names.
    """
    done = {row["row"] for row in read_rows(path)}
    waiting = {name: measure for name, measure in rows.items() if name not in done and name.startswith(only)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        if waiting:
            print(json.dumps({"about": describe_machine(bench.device, tuned=bench.tuned)}), file=file, flush=True)
        for place, (name, measure) in enumerate(waiting.items()):
            if bench.seconds_left <= 0:
                tell(f"{path.stem}: no time left for {len(waiting) - place} of {len(rows)} rows")
                break
            bench.waiting, began = len(waiting) - place, time.monotonic()
            works = True
            try:
                figures, failure = attempt(measure)
            except torch.AcceleratorError as error:
                figures, failure, works = None, {"failure": f"the device failed: {' '.join(str(error).split())[:200]}"}, False
            row = {"row": name, **(figures or failure), "took": round(time.monotonic() - began, 1)}
            print(json.dumps(row), file=file, flush=True)
            tell(f"{path.stem}: {name}: {row.get('failure') or 'done'} ({row['took']} s)")
            if not works:
                return False
            bench.free()
    return True


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file, each with the machine that it was measured on as ``about``. A line that was cut off is skipped."""
    rows, about = [], {}
    for line in read_lines(path):
        about = line.get("about", about)
        if "row" in line:
            rows.append({**line, "about": about})
    return rows


def read_lines(path: Path) -> Iterator[Row]:
    """Yield the lines of a file that are whole; none if there is no file."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def path_of(table: str, folder: Path = RESULTS) -> Path:
    """Return the file of a table."""
    return folder / f"gpu_{table}.jsonl"
