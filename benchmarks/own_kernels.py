"""This project's own kernels against PyTorch's forms of the same heads, and against softmax attention, on a GPU.

    python benchmarks/own_kernels.py [--quick] [--device cuda] [--seconds 100]

Heads of the shipped specs from queries, keys and values to their output, without projections: B 1, H 32, K 8, D 128, bfloat16,
states in float32. The own kernels, the same heads in PyTorch's and in fla's forms, and softmax attention are timed in turn in each
round, with minimum and median of many rounds: compare the ratios. `apart` is the largest difference between the outputs of the
kernels and of PyTorch's forms, relative to the largest absolute value. Errors against the definition in float64 are measured at
1,024 tokens; outputs are checked for finite values at 131,072. Measurements that the seconds do not suffice for are reported as not
run. Writes benchmarks/results/own_kernels_<device>.json and prints which goals are met. `TRITON_INTERPRET=1 python
benchmarks/own_kernels.py --quick --device cpu` tries the script without a GPU: small sizes, one round, and nothing is written.
"""
# Tensors of a call are unpacked into its inputs.
# pyright: reportCallIssue=false

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.harness import (
    NO_ROOM,
    NO_TIME,
    RESULTS,
    Budget,
    Goal,
    compute_difference,
    describe_machine,
    find_worst,
    show_goals,
    write,
)
from benchmarks.own_heads import HEADS, Bench, Run, measure_map, measure_taps_and_map
from blocks.flow import Tokens
from composer.benching.trial import NoRoom, room
from composer.graph.program import HeadInputs
from composer.notices import FallsBack

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
COMPOSED = frozenset({"lolcats", "lolcats-terraced"})
"""Heads that fla's forms are timed on. In the other heads fla has a form of the state only, inside a loop in PyTorch."""
ASKED, EXACT, LONG, CLOSE = 8192, 1024, 131_072, 2e-2
"""Lengths in tokens: of the goals' times, of the errors, and of the check for finite values; and the largest accepted error."""


def run_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return causal softmax attention of states ``B T H D``."""
    rows = [states.transpose(1, 2) for states in (query, key, value)]
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(rows[0], rows[1], rows[2], is_causal=True, enable_gqa=True).transpose(1, 2)


def prefill(bench: Bench, name: str, length: int, *, backward: bool) -> dict[str, Any]:
    """Time a whole text in one call."""
    head, shape = bench.build_head(name)
    inputs = [tensor.requires_grad_(backward) for tensor in bench.draw_inputs(shape, 1, length)]
    composed = ("torch", "fla") if name in COMPOSED else ("torch",)
    tokens = Tokens(torch.arange(length, device=bench.device)[None])
    head.requires_grad_(backward)

    def differentiate(output: Tensor) -> Tensor:
        for tensor in (*inputs, *head.parameters()):
            tensor.grad = None
        if backward:
            output.sum().backward()
        return output.detach()

    def run(backend: str) -> Tensor:
        with torch.set_grad_enabled(backward):
            output, _ = head(HeadInputs(*inputs, tokens), head.empty_state(1, bench.kind, inputs[0].device), backend)
            return differentiate(output)

    def attend() -> Tensor:
        with torch.set_grad_enabled(backward):
            return differentiate(run_softmax(*inputs[1:]))

    figures = {"apart": compute_difference(run("triton"), run("torch"))}
    runs: dict[str, Run] = {backend: lambda backend=backend: run(backend) for backend in ("triton", *composed)}
    return figures | bench.time_in_turn(runs | {"softmax": attend})


@torch.no_grad()
def measure_errors(bench: Bench, name: str) -> dict[str, Any]:
    """Return the kernels' error against the definition in float64, on equal inputs, and whether late outputs are finite."""
    head, shape = bench.build_head(name)
    near, far = (40, 70) if bench.quick else (EXACT, LONG)

    def run(length: int, kind: torch.dtype, backend: str) -> Tensor:
        inputs = [tensor.to(kind) for tensor in bench.draw_inputs(shape, 1, length)]
        tokens, empty = Tokens(torch.arange(length, device=bench.device)[None]), head.empty_state(1, kind, inputs[0].device)
        return head.to(kind)(HeadInputs(*inputs, tokens), empty, backend)[0]

    finite = bool(torch.isfinite(run(far, bench.kind, "triton")).all())
    output = run(near, bench.kind, "triton").double()
    return {"error": compute_difference(output, run(near, torch.float64, "reference")), "finite": finite, "long": far}


def decode(bench: Bench, name: str, batch: int) -> dict[str, Any]:
    """Time one token far into a text, where windows and caches are full."""
    head, shape = bench.build_head(name)
    length = 30 if bench.quick else 1000
    before = bench.draw_inputs(shape, batch, length)
    with torch.no_grad():
        start = torch.arange(length, device=bench.device).expand(batch, -1)
        empty = head.empty_state(batch, bench.kind, before[0].device)
        _, state = head(HeadInputs(*before, Tokens(start)), empty, "torch")
        inputs, states = bench.draw_inputs(shape, batch, 1), {name: dict(state) for name in ("triton", "torch")}
        states["triton"] = {name: tensor.clone() for name, tensor in state.items()}
        tokens = Tokens(start[:, -1:] + 1)

        def run(backend: str) -> Tensor:
            output, states[backend] = head(HeadInputs(*inputs, tokens), states[backend], backend, True)
            return output

        figures = {"apart": compute_difference(run("triton"), run("torch"))}
        return figures | bench.time_in_turn({"triton": lambda: run("triton"), "torch": lambda: run("torch")})


def list_tasks(lengths: Sequence[int], batches: Sequence[int]) -> dict[str, Callable[[Bench], dict[str, Any]]]:
    """Return all measurements by their titles in the table. Those with goals come first."""
    measurements: dict[str, Callable[[Bench], dict[str, Any]]] = {}

    def add(title: str, measure: Callable[..., dict[str, Any]], *arguments: Any, **options: Any) -> None:
        measurements[title] = lambda bench: measure(bench, *arguments, **options)

    for length in sorted(lengths, key=lambda length: length != ASKED):
        add(f"lolcats forward {length}", prefill, "lolcats", length, backward=False)
        add(f"lolcats-terraced forward {length}", prefill, "lolcats-terraced", length, backward=False)
        if length <= ASKED:
            add(f"lolcats with backward {length}", prefill, "lolcats", length, backward=True)
            add(f"lola forward {length}", prefill, "lola", length, backward=False)
            add(f"streaming with backward {length}", prefill, "streaming", length, backward=True)
            add(f"hedgehog with backward {length}", measure_map, length)
            add(f"taps and hedgehog with backward {length}", measure_taps_and_map, length)
    for batch in batches:
        for name in ("lolcats", "lola"):
            add(f"{name} decode, batch {batch}", decode, name, batch)
    return measurements


def check_goals(rows: dict[str, dict[str, Any]], exact: dict[str, dict[str, Any]]) -> list[Goal]:
    """Return the goals of the kernels."""

    def compute_speed(title: str) -> float | None:
        """Return the least seconds of PyTorch's and fla's forms over the kernel's."""
        row = rows.get(title, {})
        times = [row[backend]["least"] for backend in ("torch", "fla") if row.get(backend)]
        return min(times) / row["triton"]["least"] if times and row.get("triton") else None

    return [
        Goal(
            f"window and state in one pass at {ASKED:,}, speed of composition",
            compute_speed(f"lolcats forward {ASKED}"), "at least", 2,
        ),
        Goal("the same with backward", compute_speed(f"lolcats with backward {ASKED}"), "at least", 1.5),
        Goal(f"LoLA's prefill at {ASKED:,}, speed of the loop", compute_speed(f"lola forward {ASKED}"), "at least", 5),
        Goal(
            "largest error against float64",
            find_worst((figures["error"] for figures in exact.values()), "at most"), "at most", CLOSE,
        ),
        Goal(
            f"all outputs at {LONG:,} tokens are finite",
            find_worst((float(figures["finite"]) if figures["long"] == LONG else None for figures in exact.values()), "at least"),
            "at least", 1,
        ),
    ]  # fmt: skip


def measure_all(bench: Bench, tasks_by_title: dict[str, Callable[[Bench], dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each measurement, each in its share of the time that is left."""
    rows: dict[str, dict[str, Any]] = {}
    for index, (title, measure) in enumerate(tasks_by_title.items()):
        bench.waiting = len(tasks_by_title) - index
        try:
            with room():
                rows[title] = {"failure": NO_TIME} if bench.budget.seconds_left < 0 else measure(bench)
        except NoRoom:
            rows[title] = {"failure": NO_ROOM}
    return rows


def show(rows: dict[str, dict[str, Any]], exact: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table("", "triton, ms", "torch / triton", "fla / triton", "softmax / triton", "apart")
    for name, row in rows.items():
        if row.get("triton") is None:
            table.add_row(name, row.get("failure", NO_ROOM))
            continue
        own = row["triton"]["least"]
        ratios = [f"{row[kind]['least'] / own:.2f}" if row.get(kind) else "" for kind in ("torch", "fla", "softmax")]
        table.add_row(name, f"{own * 1e3:.3f}", *ratios, f"{row['apart']:.1e}")
    console.print(table)
    table = Table("head", "error against float64", "finite far out")
    for name, figures in exact.items():
        table.add_row(name, f"{figures['error']:.1e}", "yes" if figures["finite"] else "no")
    console.print(table)


def main(arguments: Sequence[str] | None = None, folder: Path = RESULTS) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda; cpu in Triton's interpreter")
    parser.add_argument("--quick", action="store_true", help="small sizes, once, and nothing is written")
    parser.add_argument("--seconds", type=float, default=100.0, help="for all times together")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        importlib.import_module("tests.interpreter")
    warnings.simplefilter("error", FallsBack)
    bench = Bench(options.device, options.quick)
    exact = {name: measure_errors(bench, name) for name in HEADS}
    bench.budget = Budget(options.seconds)
    tasks_by_title = list_tasks((40,), (1,)) if options.quick else list_tasks(LENGTHS, (1, 8, 64))
    rows, console = measure_all(bench, tasks_by_title), Console()
    measured_goals = check_goals(rows, exact)
    show(rows, exact, console)
    show_goals(measured_goals, console)
    if not options.quick:
        facts = describe_machine(options.device, dtype=str(bench.kind).removeprefix("torch."))
        result = {"about": facts, "rows": rows, "errors": exact, "goals": [goal.to_json() for goal in measured_goals]}
        write(f"own_kernels_{options.device}", result, folder)


if __name__ == "__main__":
    main()
