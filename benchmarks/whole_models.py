"""Whole models at the sizes of Llama-3.2-1B and Llama-3.1-8B: a teacher with SDPA, and students built from it, in one run.

    python benchmarks/whole_models.py [--sizes llama-3.2-1b,llama-3.1-8b] [--device cuda] [--seconds 30]
    python benchmarks/whole_models.py --sizes tiny --device cpu --prefill 64,128 --decode 600,1200 --batches 1,2 --train 32

Random weights, made on the device, in bfloat16 (float32 on a CPU); the students share the teacher's. Prefill is one pass over a
prompt with the logits of its last token; decode one token of each row far into a text, by students in a CUDA graph; training the
loss on each next token and the gradients of all weights, 4,096 tokens a step, without the optimiser, which costs all the same. All
take turns at each workload, and each has its minimum and median: read the ratios. The first run of each warms up, and memory is
measured in it. A teacher's cache is filled with random numbers; a student's state is that after the last 512 tokens before the
position, which is as large as any.

What there is no memory for is a cell that says so. A table has so many seconds (--seconds) beside what is done before it, where
kernels are compiled and tuned; what they do not suffice for is not run, and says so. Writes
benchmarks/results/whole_models_<size>_<device>.json and says which goals are met; `make docs` makes a table of it.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.contestants import BEFORE, SIZES, STUDENTS, TEACHER, Contestant, make
from benchmarks.harness import NO_ROOM, NO_TIME, RESULTS, Budget, Goal, about, rounds, settle_of, show_goals, worst, write
from composer.benching.memory import gauge_allocations
from composer.benching.trial import NoRoom, cache_bytes, room, run_unmeasured

PREFILL, DECODE, BATCHES, TRAIN = (1024, 4096, 16_384, 32_768, 131_072), (2048, 8192, 32_768, 131_072), (1, 8, 64), (1024, 4096)
TRAINED = 4096
"""Tokens of a training step, where a row is no longer than that."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """What all are timed on. tokens: of a row, or those before the one that is decoded."""

    kind: str
    tokens: int
    batch: int


@dataclass
class Bench:
    """Contestants, and the seconds of a table. expected: by contestant and kind, the last workload's tokens and seconds."""

    contestants: Sequence[Contestant]
    device: str
    seconds: float
    most: int = 20
    """Rounds of a workload."""
    expected: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)

    def table(self, workloads: Sequence[Workload]) -> Iterator[Row]:
        """The rows of one table; each workload has its share of the time that is left."""
        budget = Budget(self.seconds)
        for index, workload in enumerate(workloads):
            yield from self.row(workload, budget, len(workloads) - index)
            self.free()

    def free(self) -> None:
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()

    def row(self, workload: Workload, budget: Budget, waiting: int) -> list[Row]:
        """What each does with one workload. waiting: workloads that the time is left for, this one among them."""
        with torch.set_grad_enabled(workload.kind == "train"):
            runs: dict[str, Callable[[], Any]] = {}
            rows = {contestant.name: self.first(contestant, workload, budget, runs) for contestant in self.contestants}
            share = max(budget.seconds_left, 0.0) / waiting
            timed = rounds(runs, share, self.device, most=self.most) if runs else {}
        for name, figures in timed.items():
            rows[name] |= {"failure": NO_ROOM} if figures is None else {"seconds": figures}
        first = rows[self.contestants[0].name]
        for row in rows.values():
            row["of_teacher"] = _ratio(first, row)
        return list(rows.values())

    def first(self, contestant: Contestant, workload: Workload, budget: Budget, runs: dict[str, Callable[[], Any]]) -> Row:
        """Return the first run, with its memory; then the run alternates with the others, as far as memory and time suffice."""
        row: Row = {"model": contestant.name, **vars(workload), "seconds": None, "failure": None}
        if budget.seconds_left < max(2 * self.expects(contestant, workload), 0.0):  # and the first round after it
            return row | {"failure": NO_TIME}
        try:
            with room():
                run, cache = self.prepare(contestant, workload)
                held = cache_bytes(cache)
                gauge = gauge_allocations(self.device) if self.device.startswith("cuda") else run_unmeasured
                began = time.perf_counter()
                answer, peak = gauge(run, held)
                settle_of(self.device)()
                self.expected[contestant.name, workload.kind] = workload.tokens, time.perf_counter() - began
                if answer is not None:
                    row["finite"] = bool(torch.isfinite(answer.logits).all())
                    held = cache_bytes(answer.past_key_values)
                    del answer
                if cache is not None:
                    row["replayed"] = contestant.record(cache, run)
                runs[contestant.name] = run
                return row | {"peak_bytes": peak, "state_bytes": held or None}
        except NoRoom:
            self.free()  # the error is deleted, and with it the frames that held the memory
            return row | {"failure": NO_ROOM}

    def prepare(self, contestant: Contestant, workload: Workload) -> tuple[Callable[[], Any], Any]:
        """Return the run, and the cache that it starts with."""
        if workload.kind == "decode":
            cache = contestant.at(workload.tokens, workload.batch)
            return contestant.decoding(cache, workload.batch), cache
        ids, run = (
            contestant.ids(workload.batch, workload.tokens),
            contestant.prefill if workload.kind == "prefill" else contestant.train,
        )
        return lambda: run(ids), None

    def expects(self, contestant: Contestant, workload: Workload) -> float:
        """Seconds of a run, after the last one of its kind; 0 where there has been none, and for a token in decode."""
        tokens, seconds = self.expected.get((contestant.name, workload.kind), (workload.tokens, 0.0))
        return 0.0 if workload.kind == "decode" else seconds * (workload.tokens / tokens) ** contestant.growth


def _ratio(first: Row, own: Row) -> float | None:
    """The teacher's least seconds over one's own: how many times as fast it is."""
    return first["seconds"]["least"] / own["seconds"]["least"] if first["seconds"] and own["seconds"] else None


def warm(bench: Bench, workloads: Sequence[Workload]) -> None:
    """Let each do the first of its workloads, so that kernels are compiled and tuned."""
    endless = Budget(float("inf"))
    for workload in workloads:
        with torch.set_grad_enabled(workload.kind == "train"):
            for contestant in bench.contestants:
                bench.first(contestant, workload, endless, {})
        bench.free()
    bench.expected.clear()


def workloads_of(
    prefill: Sequence[int], decode: Sequence[int], batches: Sequence[int], train: Sequence[int]
) -> list[list[Workload]]:
    """A table's each."""
    return [
        [Workload("prefill", tokens, 1) for tokens in prefill],
        [Workload("decode", tokens, batch) for batch in batches for tokens in decode],
        [Workload("train", tokens, max(1, TRAINED // tokens)) for tokens in train],
    ]


def goals(rows: Sequence[Row]) -> list[Goal]:
    """What the models are meant to reach."""

    def of(model: str, **settings: int | str) -> list[Row]:
        return [row for row in rows if row["model"] == model and all(row[name] == value for name, value in settings.items())]

    ahead = [row for row in of("lawcat", kind="prefill") if row["tokens"] >= 4096]
    goal_list = [
        Goal(
            "prefill of lawcat from 4,096 tokens on, speed of the teacher's", worst(_speeds(ahead, rows), "at least"), "at least", 1
        )
    ]
    for model in STUDENTS:
        far = _speeds(of(model, kind="decode", batch=64, tokens=32_768), rows)
        goal_list.append(
            Goal(f"decode of {model}, 64 rows at 32,768, speed of the teacher's", worst(far, "at least"), "at least", 3)
        )
        flat = []
        for batch in sorted({row["batch"] for row in of(model, kind="decode")}):
            seconds = [row["seconds"] and row["seconds"]["least"] for row in of(model, kind="decode", batch=batch)]
            known = [figure for figure in seconds if figure is not None]
            flat.append(max(known) / min(known) if known and len(known) == len(seconds) else None)
        goal_list.append(Goal(f"decode of {model}, slowest position over fastest", worst(flat, "at most"), "at most", 1.1))
        longest = [float(row["finite"]) if "finite" in row else None for row in of(model, kind="prefill", tokens=131_072)]
        goal_list.append(Goal(f"logits of {model} after 131,072 tokens are finite", worst(longest, "at least"), "at least", 1))
    return goal_list


def _speeds(own: Sequence[Row], rows: Sequence[Row]) -> Iterator[float | None]:
    """Beside the teacher's, where it had room: one that itself had none is infinitely slow."""
    for row in own:
        (teacher,) = (
            other_row
            for other_row in rows
            if all(other_row[name] == row[name] for name in ("kind", "tokens", "batch")) and other_row["model"] == TEACHER
        )
        if teacher["failure"] != NO_ROOM:
            yield 0.0 if row["failure"] == NO_ROOM else row["of_teacher"]


def cell(row: Row) -> str:
    """Milliseconds, how many times the teacher's speed, and MB at the peak; or why there are none."""
    if row["failure"] is not None:
        return row["failure"]
    ratio = "" if row["of_teacher"] is None else f", {row['of_teacher']:.2f}×"
    peak = "" if row.get("peak_bytes") is None else f", {row['peak_bytes'] / 1e6:,.0f} MB"
    return f"{row['seconds']['least'] * 1e3:.4g} ms{ratio}{peak}"


def columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """A table's header and lines: a line a workload, a column a model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    cells: dict[tuple[str, int, int], dict[str, str]] = {}
    for row in rows:
        cells.setdefault((row["kind"], row["batch"], row["tokens"]), {})[row["model"]] = cell(row)
    lines = [[kind, f"{batch} × {tokens:,}", *(of[model] for model in models)] for (kind, batch, tokens), of in cells.items()]
    return ["", "rows × tokens", *models], lines


def measure(tables: Sequence[Sequence[Workload]], bench: Bench) -> dict[str, Any]:
    """Return all tables, and the seconds before them."""
    began = time.perf_counter()
    warm(bench, [table[0] for table in tables if table])
    spent = time.perf_counter() - began
    rows = [row for table in tables for row in bench.table(table)]
    return {"warm_seconds": spent, "rows": rows, "goals": [goal.document() for goal in goals(rows)]}


def main(arguments: Sequence[str] | None = None, folder: Path = RESULTS) -> None:
    """Make, measure, print, write; one size after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="llama-3.2-1b,llama-3.1-8b", help=", ".join(SIZES))
    parser.add_argument("--device", default="cuda", help="cpu or cuda")
    parser.add_argument("--backend", default="auto", help="which forms run the students' heads")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each of the three tables of a size")
    parser.add_argument("--rounds", type=int, default=20, help="of a workload, at most")
    for name, default in (("prefill", PREFILL), ("decode", DECODE), ("batches", BATCHES), ("train", TRAIN)):
        parser.add_argument(f"--{name}", default=",".join(map(str, default)))
    options = parser.parse_args(arguments)
    lengths = [[int(number) for number in getattr(options, name).split(",")] for name in ("prefill", "decode", "batches", "train")]
    if unknown := set(options.sizes.split(",")) - set(SIZES):
        parser.error(f"--sizes: {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}")
    if min(lengths[1]) <= BEFORE:
        parser.error(f"--decode: positions start after {BEFORE}")
    dtype = torch.bfloat16 if options.device.startswith("cuda") else torch.float32
    console = Console()
    for name in options.sizes.split(","):
        began = time.perf_counter()
        contestants = make(SIZES[name], options.device, dtype, options.backend)
        built = time.perf_counter() - began
        result = measure(workloads_of(*lengths), Bench(contestants, options.device, options.seconds, options.rounds))
        del contestants
        gc.collect()
        facts = about(
            options.device, size=name, dtype=str(dtype).removeprefix("torch."), backend=options.backend, seconds=options.seconds
        )
        console.print(f"{name}: built in {built:.0f} s, first runs {result['warm_seconds']:.0f} s")
        header, lines = columns(result["rows"])
        table = Table(*header)
        for line in lines:
            table.add_row(*line)
        console.print(table)
        show_goals((Goal(number["goal"], number["found"], number["way"], number["bound"]) for number in result["goals"]), console)
        write(f"whole_models_{name}_{options.device.partition(':')[0]}", {"about": facts, "built_seconds": built, **result}, folder)


if __name__ == "__main__":
    main()
