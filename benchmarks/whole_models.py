"""Whole models at the sizes of Llama-3.2-1B and Llama-3.1-8B: a teacher with SDPA, and students built from it, in one run.

    python benchmarks/whole_models.py [--sizes llama-3.2-1b,llama-3.1-8b] [--device cuda] [--seconds 30]
    python benchmarks/whole_models.py --sizes tiny --device cpu --prefill 64,128 --decode 600,1200 --batches 1,2 --train 32

Random weights, made on the device, in bfloat16 (float32 on a CPU); the students share the teacher's. Prefill is one pass over a
prompt with the logits of its last token; decode one token of each row far into a text, by students in a CUDA graph; training the
loss on each next token and the gradients of all weights, 4,096 tokens a step, without the optimiser, which costs all the same. All
run in turn on each workload, with minimum and median: compare the ratios. The first run of each warms up, and its memory is
measured. A teacher's cache is filled with random numbers. A student's state is that after the last 512 tokens before the position,
and has its full size.

A cell without enough memory is reported as such. --seconds are for each table, without the time in which kernels are compiled and
tuned. Runs that the seconds do not suffice for are reported as not run. Writes benchmarks/results/whole_models_<size>_<device>.json
and prints which goals are met; `make docs` makes a table of it.
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
from benchmarks.harness import (
    NO_ROOM,
    NO_TIME,
    RESULTS,
    Budget,
    Goal,
    choose_settle,
    describe_machine,
    find_worst,
    show_goals,
    time_rounds,
    write,
)
from composer.benching.memory import gauge_allocations
from composer.benching.trial import NoRoom, cache_bytes, room, run_unmeasured

PREFILL, DECODE, BATCHES, TRAIN = (1024, 4096, 16_384, 32_768, 131_072), (2048, 8192, 32_768, 131_072), (1, 8, 64), (1024, 4096)
TRAINED = 4096
"""Tokens of a training step, unless a row is longer."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """A workload. tokens: of a row; in decode, those before the decoded token."""

    kind: str
    tokens: int
    batch: int


@dataclass
class Bench:
    """The contestants, and the seconds of a table. expected: tokens and seconds of the last run, by contestant and kind."""

    contestants: Sequence[Contestant]
    device: str
    seconds: float
    max_rounds: int = 20
    """The largest number of rounds of a workload."""
    expected: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)

    def run_table(self, workloads: Sequence[Workload]) -> Iterator[Row]:
        """Yield the rows of one table. Each workload has its share of the remaining time."""
        budget = Budget(self.seconds)
        for index, workload in enumerate(workloads):
            yield from self.run_workload(workload, budget, len(workloads) - index)
            self.free()

    def free(self) -> None:
        gc.collect()
        if self.device.startswith("cuda"):
            torch.cuda.empty_cache()

    def run_workload(self, workload: Workload, budget: Budget, waiting: int) -> list[Row]:
        """Return a row for each contestant. waiting: number of workloads that share the remaining time, with this one."""
        with torch.set_grad_enabled(workload.kind == "train"):
            runs: dict[str, Callable[[], Any]] = {}
            rows = {contestant.name: self.run_first(contestant, workload, budget, runs) for contestant in self.contestants}
            share = max(budget.seconds_left, 0.0) / waiting
            timed = time_rounds(runs, share, self.device, max_rounds=self.max_rounds) if runs else {}
        for name, figures in timed.items():
            rows[name] |= {"failure": NO_ROOM} if figures is None else {"seconds": figures}
        first = rows[self.contestants[0].name]
        for row in rows.values():
            row["of_teacher"] = _compute_speed(first, row)
        return list(rows.values())

    def run_first(self, contestant: Contestant, workload: Workload, budget: Budget, runs: dict[str, Callable[[], Any]]) -> Row:
        """Run a workload once. Return a row with its memory, and add the run to ``runs`` if memory and time suffice."""
        row: Row = {"model": contestant.name, **vars(workload), "seconds": None, "failure": None}
        if budget.seconds_left < max(2 * self.expect_seconds(contestant, workload), 0.0):  # this run, and the first round
            return row | {"failure": NO_TIME}
        try:
            with room():
                run, cache = self.prepare(contestant, workload)
                held = cache_bytes(cache)
                gauge = gauge_allocations(self.device) if self.device.startswith("cuda") else run_unmeasured
                began = time.perf_counter()
                answer, peak = gauge(run, held)
                choose_settle(self.device)()
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
            cache = contestant.fill_cache(workload.tokens, workload.batch)
            return contestant.build_step(cache, workload.batch), cache
        ids, run = (
            contestant.draw_ids(workload.batch, workload.tokens),
            contestant.prefill if workload.kind == "prefill" else contestant.train,
        )
        return lambda: run(ids), None

    def expect_seconds(self, contestant: Contestant, workload: Workload) -> float:
        """Return the expected seconds, extrapolated from the last run of its kind; 0 without such a run, and in decode."""
        tokens, seconds = self.expected.get((contestant.name, workload.kind), (workload.tokens, 0.0))
        return 0.0 if workload.kind == "decode" else seconds * (workload.tokens / tokens) ** contestant.growth


def _compute_speed(teacher: Row, row: Row) -> float | None:
    """Return the speed relative to the teacher: the teacher's least seconds over the model's."""
    return teacher["seconds"]["least"] / row["seconds"]["least"] if teacher["seconds"] and row["seconds"] else None


def warm(bench: Bench, workloads: Sequence[Workload]) -> None:
    """Run these workloads once on each contestant, so that kernels are compiled and tuned."""
    endless = Budget(float("inf"))
    for workload in workloads:
        with torch.set_grad_enabled(workload.kind == "train"):
            for contestant in bench.contestants:
                bench.run_first(contestant, workload, endless, {})
        bench.free()
    bench.expected.clear()


def list_workloads(
    prefill: Sequence[int], decode: Sequence[int], batches: Sequence[int], train: Sequence[int]
) -> list[list[Workload]]:
    """Return the workloads of each table."""
    return [
        [Workload("prefill", tokens, 1) for tokens in prefill],
        [Workload("decode", tokens, batch) for batch in batches for tokens in decode],
        [Workload("train", tokens, max(1, TRAINED // tokens)) for tokens in train],
    ]


def check_goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals of the models."""

    def select_rows(model: str, **settings: int | str) -> list[Row]:
        return [row for row in rows if row["model"] == model and all(row[name] == value for name, value in settings.items())]

    long_prompts = [row for row in select_rows("lawcat", kind="prefill") if row["tokens"] >= 4096]
    goal_list = [
        Goal(
            "prefill of lawcat from 4,096 tokens on, speed of the teacher's",
            find_worst(_list_speeds(long_prompts, rows), "at least"),
            "at least",
            1,
        )
    ]
    for model in STUDENTS:
        far = _list_speeds(select_rows(model, kind="decode", batch=64, tokens=32_768), rows)
        goal_list.append(
            Goal(f"decode of {model}, 64 rows at 32,768, speed of the teacher's", find_worst(far, "at least"), "at least", 3)
        )
        flat = []
        for batch in sorted({row["batch"] for row in select_rows(model, kind="decode")}):
            seconds = [row["seconds"] and row["seconds"]["least"] for row in select_rows(model, kind="decode", batch=batch)]
            timed = [figure for figure in seconds if figure is not None]
            flat.append(max(timed) / min(timed) if timed and len(timed) == len(seconds) else None)
        goal_list.append(Goal(f"decode of {model}, slowest position over fastest", find_worst(flat, "at most"), "at most", 1.1))
        longest = [float(row["finite"]) if "finite" in row else None for row in select_rows(model, kind="prefill", tokens=131_072)]
        goal_list.append(Goal(f"logits of {model} after 131,072 tokens are finite", find_worst(longest, "at least"), "at least", 1))
    return goal_list


def _list_speeds(selected: Sequence[Row], rows: Sequence[Row]) -> Iterator[float | None]:
    """Yield the speeds relative to the teacher, if it had enough memory. A model without enough memory has speed 0."""
    for row in selected:
        (teacher,) = (
            other_row
            for other_row in rows
            if all(other_row[name] == row[name] for name in ("kind", "tokens", "batch")) and other_row["model"] == TEACHER
        )
        if teacher["failure"] != NO_ROOM:
            yield 0.0 if row["failure"] == NO_ROOM else row["of_teacher"]


def format_cell(row: Row) -> str:
    """Return milliseconds, speed relative to the teacher, and peak MB; or the reason why they are missing."""
    if row["failure"] is not None:
        return row["failure"]
    ratio = "" if row["of_teacher"] is None else f", {row['of_teacher']:.2f}×"
    peak = "" if row.get("peak_bytes") is None else f", {row['peak_bytes'] / 1e6:,.0f} MB"
    return f"{row['seconds']['least'] * 1e3:.4g} ms{ratio}{peak}"


def format_columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of a table with a line for each workload and a column for each model."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    cells: dict[tuple[str, int, int], dict[str, str]] = {}
    for row in rows:
        cells.setdefault((row["kind"], row["batch"], row["tokens"]), {})[row["model"]] = format_cell(row)
    lines = [
        [kind, f"{batch} × {tokens:,}", *(by_model[model] for model in models)] for (kind, batch, tokens), by_model in cells.items()
    ]
    return ["", "rows × tokens", *models], lines


def measure(tables: Sequence[Sequence[Workload]], bench: Bench) -> dict[str, Any]:
    """Return the rows of all tables, the goals, and the seconds of the first runs."""
    began = time.perf_counter()
    warm(bench, [table[0] for table in tables if table])
    spent = time.perf_counter() - began
    rows = [row for table in tables for row in bench.run_table(table)]
    return {"warm_seconds": spent, "rows": rows, "goals": [goal.to_json() for goal in check_goals(rows)]}


def main(arguments: Sequence[str] | None = None, folder: Path = RESULTS) -> None:
    """Build, measure, print and write, one size after the other."""
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
        result = measure(list_workloads(*lengths), Bench(contestants, options.device, options.seconds, options.rounds))
        del contestants
        gc.collect()
        facts = describe_machine(
            options.device, size=name, dtype=str(dtype).removeprefix("torch."), backend=options.backend, seconds=options.seconds
        )
        console.print(f"{name}: built in {built:.0f} s, first runs {result['warm_seconds']:.0f} s")
        header, lines = format_columns(result["rows"])
        table = Table(*header)
        for line in lines:
            table.add_row(*line)
        console.print(table)
        show_goals((Goal(goal["goal"], goal["found"], goal["way"], goal["bound"]) for goal in result["goals"]), console)
        write(f"whole_models_{name}_{options.device.partition(':')[0]}", {"about": facts, "built_seconds": built, **result}, folder)


if __name__ == "__main__":
    main()
