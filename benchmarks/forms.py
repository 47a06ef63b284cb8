"""Forms on a GPU against fla's best function, called by hand on the same tensors, and against PyTorch's attention.

    python benchmarks/forms.py [--lengths 2048,4096,8192,16384] [--seconds 60]

B 1, H 32, D 128, bfloat16, forward and with backward. All are timed in turn, with minimum and median of many runs: compare
the ratios. A form is timed only if it agrees with fla's function. Errors against the definition in float64 are measured at 2,048
tokens; outputs are checked for finite values at 131,072. Measurements that the seconds do not suffice for are reported as not run.
Writes benchmarks/results/forms_<device>.json and prints which goals are met. `TRITON_INTERPRET=1 python benchmarks/forms.py --quick
--device cpu` tries the script without a GPU: small sizes, one round, and nothing is written.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.harness import (
    NO_TIME,
    RESULTS,
    Budget,
    Goal,
    compute_difference,
    describe_machine,
    find_worst,
    show_goals,
    time_rounds,
    write,
)
from blocks.recurrences import additive, delta

CLOSE = 2e-2
Run = Callable[[], torch.Tensor]
Inputs = dict[str, torch.Tensor]
Row = dict[str, Any]
PASSED, EXACT, LONG = (4096, 1.05), 2048, 131_072
"""The number of tokens from which a form may need at most this multiple of the time of fla's function; the lengths at which the
error is measured; and those at which outputs are checked for finite values."""


@dataclass(frozen=True)
class Size:
    """The device, the sizes, and the largest number of rounds."""

    device: str
    heads: int
    width: int
    dtype: torch.dtype
    exact: int = EXACT
    long: int = LONG
    max_rounds: int = 20


def draw_inputs(size: Size, length: int) -> Inputs:
    """Draw features, values, decays and rates that cause no overflow."""
    shape, kind = (1, length, size.heads, size.width), {"device": size.device, "dtype": size.dtype}
    narrow = {name: torch.randn(shape, **kind) for name in ("query", "key", "value")}
    unit = {f"unit_{name}": torch.nn.functional.normalize(narrow[name].float(), dim=-1).to(size.dtype) for name in ("query", "key")}
    shares = {f"{name}_features": narrow[name].float().softmax(-1).to(size.dtype) for name in ("query", "key")}
    decays = {
        "head": torch.nn.functional.logsigmoid(torch.randn(shape[:3], device=size.device) + 4),
        "channel": torch.nn.functional.logsigmoid(torch.randn(shape, device=size.device) + 4),
    }
    return {**narrow, **unit, **shares, **decays, "rate": torch.rand(shape[:3], **kind)}


def normalise(output: torch.Tensor) -> torch.Tensor:
    """Return numerators over the mass in the last column."""
    width = output.shape[-1] - 1
    return output[..., :width] / output[..., width:]


HEADS = ("linear", "linear, normalised", "decay by head", "decay by channel, normalised", "gated delta")
DECAYS = {"decay by head": "head", "decay by channel, normalised": "channel", "gated delta": "head"}


def run_form(name: str, inputs: Inputs, backend: str = "fla") -> torch.Tensor:
    """Return the output of a form. backend: of the form; "reference" is the definition."""
    forms = delta.FORMS if name == "gated delta" else additive.FORMS
    (form,) = (candidate for candidate in forms if candidate.backend == backend and not candidate.decode)
    with_mass, value = name.endswith("normalised"), inputs["value"]
    value = torch.nn.functional.pad(value, (0, 1), value=1.0) if with_mass else value
    decay, wide = inputs[DECAYS[name]] if name in DECAYS else None, torch.float64 if value.dtype == torch.float64 else torch.float32
    empty = torch.zeros(1, value.shape[2], inputs["key"].shape[-1], value.shape[-1], device=value.device, dtype=wide)
    if name == "gated delta":
        return form.run(inputs["unit_query"], inputs["unit_key"], value, inputs["rate"], decay, None, empty)[0]
    output = form.run(inputs["query_features"], inputs["key_features"], value, decay, None, empty)[0]
    return normalise(output) if with_mass else output


def run_by_hand(name: str, inputs: Inputs) -> torch.Tensor:
    """Return the output of fla's function on the same tensors."""
    chunk_gated_delta_rule, chunk_gla, chunk_simple_gla = (
        getattr(importlib.import_module(f"fla.ops.{name}"), f"chunk_{name}") for name in ("gated_delta_rule", "gla", "simple_gla")
    )
    features, value = (inputs["query_features"], inputs["key_features"]), inputs["value"]
    options = {"scale": 1.0, "output_final_state": True}
    filled = torch.nn.functional.pad(torch.nn.functional.pad(value, (0, 1), value=1.0), (0, 7))
    match name:
        case "linear":
            return chunk_simple_gla(*features, value, **options)[0]
        case "linear, normalised":
            return normalise(chunk_simple_gla(*features, filled, **options)[0][..., :-7])
        case "decay by head":
            return chunk_simple_gla(*features, value, inputs["head"], **options)[0]
        case "decay by channel, normalised":
            return normalise(chunk_gla(*features, filled, inputs["channel"], **options)[0][..., :-7])
        case _:
            return chunk_gated_delta_rule(
                inputs["unit_query"], inputs["unit_key"], value, inputs["head"], inputs["rate"], **options
            )[0]


def build_attention(inputs: Inputs) -> Run:
    """Return a run of PyTorch's causal attention on the same queries, keys and values."""
    states = [inputs[name].transpose(1, 2) for name in ("query", "key", "value")]
    return lambda: torch.nn.functional.scaled_dot_product_attention(states[0], states[1], states[2], is_causal=True)


def add_backward(run: Run, leaves: Sequence[torch.Tensor]) -> Callable[[], object]:
    """Return a function that runs forward, and backward if there are leaves."""
    if not leaves:
        return run
    return lambda: torch.autograd.grad(run().float().sum(), leaves, allow_unused=True)


def measure(size: Size, length: int, seconds: float) -> list[Row]:
    """Return a row for each form, forward and with backward. seconds: for all of them together."""
    rows, budget, waiting = [], Budget(seconds), 2 * len(HEADS)
    for backward in (False, True):
        inputs = {name: tensor.requires_grad_(backward) for name, tensor in draw_inputs(size, length).items()}
        leaves = list(inputs.values()) if backward else []
        for name in HEADS:
            row: Row = {"form": name, "tokens": length, "backward": backward, "failure": None}
            rows.append(row)
            waiting -= 1
            if budget.seconds_left < 0:
                row["failure"] = NO_TIME
                continue
            row["difference"] = compute_difference(run_form(name, inputs).detach(), run_by_hand(name, inputs).detach())
            if not row["difference"] <= CLOSE:
                sys.exit(f"{name} at {length} tokens is {row['difference']:.1e} away from fla's own function: nothing is timed")
            runs = {
                "form": add_backward(partial(run_form, name, inputs), leaves),
                "by hand": add_backward(partial(run_by_hand, name, inputs), leaves),
                "attention": add_backward(build_attention(inputs), leaves),
            }
            for run in runs.values():
                run()
            row["seconds"] = time_rounds(runs, budget.seconds_left / (waiting + 1), size.device, max_rounds=size.max_rounds)
    return rows


@torch.no_grad()
def measure_errors(size: Size) -> list[Row]:
    """Return each form's error against the definition in float64, on equal numbers, and whether late outputs are finite."""
    near, rows = draw_inputs(size, size.exact), {}
    exact = {name: tensor.double() for name, tensor in near.items()}
    for name in HEADS:
        rows[name] = {"form": name, "error": compute_difference(run_form(name, near), run_form(name, exact, "reference"))}
    del near, exact
    far = draw_inputs(size, size.long)
    for name in HEADS:
        rows[name] |= {"long": size.long, "finite": bool(torch.isfinite(run_form(name, far)).all())}
    return list(rows.values())


def check_goals(rows: Sequence[Row], exact: Sequence[Row]) -> list[Goal]:
    """Return the goals of the forms."""
    goal_list = []
    for name in ("linear", "linear, normalised", "decay by channel, normalised"):
        long = [row for row in rows if row["form"] == name and row["tokens"] >= PASSED[0]]
        ratios = [None if row["failure"] else compute_ratio(row, "by hand") for row in long]
        goal_list.append(
            Goal(
                f"{name}: time over fla's by hand, from {PASSED[0]:,} tokens on",
                find_worst(ratios, "at most"),
                "at most",
                PASSED[1],
            )
        )
    goal_list.append(
        Goal("largest error of any form against float64", find_worst((row["error"] for row in exact), "at most"), "at most", CLOSE)
    )
    finite = find_worst((float(row["finite"]) if row["long"] == LONG else None for row in exact), "at least")
    goal_list.append(Goal(f"all outputs at {LONG:,} tokens are finite", finite, "at least", 1))
    return goal_list


def compute_ratio(row: Row, contestant: str) -> float:
    """Return a form's least seconds over another contestant's."""
    return row["seconds"]["form"]["least"] / row["seconds"][contestant]["least"]


def show(rows: Sequence[Row], exact: Sequence[Row], console: Console) -> None:
    table = Table("form", "tokens", "with backward", "ms", "over fla by hand", "attention over it")
    for row in rows:
        way = "yes" if row["backward"] else ""
        if row["failure"] is not None:
            table.add_row(row["form"], str(row["tokens"]), way, row["failure"])
            continue
        ms = row["seconds"]["form"]["least"] * 1e3
        ratios = f"{compute_ratio(row, 'by hand'):.2f}", f"{1 / compute_ratio(row, 'attention'):.2f}"
        table.add_row(row["form"], str(row["tokens"]), way, f"{ms:.3f}", *ratios)
    console.print(table)
    table = Table("form", "error against float64", "finite far out")
    for row in exact:
        table.add_row(row["form"], f"{row['error']:.1e}", "yes" if row["finite"] else "no")
    console.print(table)


def main(arguments: Sequence[str] | None = None, folder: Path = RESULTS) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="2048,4096,8192,16384")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all times together")
    parser.add_argument("--device", default="cuda", help="cuda; cpu in Triton's interpreter")
    parser.add_argument("--quick", action="store_true", help="small sizes, once, and nothing is written")
    options = parser.parse_args(arguments)
    size, lengths = Size(options.device, 32, 128, torch.bfloat16), [int(length) for length in options.lengths.split(",")]
    if options.device == "cpu":
        importlib.import_module("tests.interpreter")
    elif not torch.cuda.is_available():
        sys.exit("no CUDA device here: nothing was run")
    if options.quick:
        size, lengths = Size(options.device, 1, 16, torch.float32, 40, 70, 1), [64]
    torch.manual_seed(0)
    exact = measure_errors(size)
    rows = [row for length in lengths for row in measure(size, length, options.seconds / len(lengths))]
    measured_goals = check_goals(rows, exact)
    show(rows, exact, Console())
    show_goals(measured_goals, Console())
    if not options.quick:
        facts = describe_machine(
            options.device, heads=size.heads, head_dim=size.width, dtype=str(size.dtype).removeprefix("torch.")
        )
        result = {"about": facts, "rows": rows, "errors": exact, "goals": [goal.to_json() for goal in measured_goals]}
        write(f"forms_{options.device}", result, folder)


if __name__ == "__main__":
    main()
