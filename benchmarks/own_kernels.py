"""This project's own kernels against PyTorch's forms of the same heads, and against softmax attention, on a GPU.

    python benchmarks/own_kernels.py [--quick] [--device cuda]

Heads of the shipped specs from queries, keys and values to their output, without projections: B 1, H 32, K 8, D 128, bfloat16,
states in float32. Contestants are measured in turn, one after the other in each round: minima and medians of many, in one run, so
read the ratios. Beside them stands how far the kernels' output lies from that of PyTorch's forms, as a share of its largest number.
Writes benchmarks/results/own_kernels.json. `TRITON_INTERPRET=1 python benchmarks/own_kernels.py --quick --device cpu` tries the
script where no GPU is: small sizes, once, and nothing is written.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from blocks.feature_maps.hedgehog import Hedgehog
from blocks.flow import Tokens
from blocks.legend import Shape
from composer.graph.program import FallsBack
from composer.model.head import Head
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, resolve

RESULTS = Path(__file__).parent / "results"
SIZE = Dimensions(hidden_size=4096, layers=1, heads=32, key_heads=8, head_dim=128, rope_theta=500_000.0)
SMALL = Dimensions(hidden_size=32, layers=1, heads=2, key_heads=1, head_dim=16, rope_theta=10_000.0)
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
HEADS = {
    "lolcats": ("lolcats", ("head.feature_map.dim=128",)),
    "lolcats-terraced": ("lolcats-terraced", ("head.feature_map.dim=128",)),
    "lola": ("lola", ("head.feature_map.dim=128", "head.memory.1.size=128")),
}
Run = Callable[[], Any]


class Bench:
    """Where it runs, and how often."""

    def __init__(self, device: str, quick: bool) -> None:
        self.device, self.quick = device, quick
        self.size = SMALL if quick else SIZE
        self.kind = torch.float32 if device == "cpu" else torch.bfloat16
        self.seconds = 0.0 if quick else 2.0

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def in_turn(self, runs: dict[str, Run]) -> dict[str, dict[str, float]]:
        """Seconds of each, taken in turn until each has had its time, three rounds at least; one warm-up."""
        taken: dict[str, list[float]] = {name: [] for name in runs}
        least, began = 1 if self.quick else 3, time.perf_counter()
        for run in runs.values():
            run()
        while len(next(iter(taken.values()))) < least or time.perf_counter() - began < self.seconds * len(runs):
            for name, run in runs.items():
                self.wait()
                start = time.perf_counter()
                run()
                self.wait()
                taken[name].append(time.perf_counter() - start)
        return {name: {"minimum": min(of), "median": statistics.median(of), "rounds": len(of)} for name, of in taken.items()}

    def head(self, name: str) -> tuple[Head, Shape]:
        """With small windows where all is small."""
        spec, overrides = HEADS[name]
        small = ["head.memory.0.size=8", *(["head.memory.1.size=8"] if name == "lola" else []), "head.feature_map.dim=16"]
        resolved = resolve(load_spec(spec, small if self.quick else list(overrides)), self.size)
        (head,), shape = resolved.heads.values(), self.size.shape(self.size.heads)
        made, generator = Head(head, shape), torch.Generator().manual_seed(0)
        for module in made.modules():
            if hasattr(module, "fill"):
                module.fill(generator)  # pyright: ignore[reportCallIssue]
        return made.to(self.device, self.kind), shape

    def inputs(self, shape: Shape, batch: int, length: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        sizes = ((shape.hidden_size,), (shape.heads, shape.head_dim), *[(shape.key_heads, shape.head_dim)] * 2)
        return [torch.randn(batch, length, *size, generator=generator).to(self.device, self.kind) for size in sizes]


def softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """B T H D."""
    rows = [states.transpose(1, 2) for states in (query, key, value)]
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(rows[0], rows[1], rows[2], is_causal=True, enable_gqa=True).transpose(1, 2)


def apart(found: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return ((found.float() - other.float()).abs().max() / other.float().abs().max()).item()


def prefill(bench: Bench, name: str, length: int, *, backward: bool) -> dict[str, Any]:
    """A whole text in one call."""
    head, shape = bench.head(name)
    given = [one.requires_grad_(backward) for one in bench.inputs(shape, 1, length)]
    tokens = Tokens(torch.arange(length, device=bench.device)[None])
    head.requires_grad_(backward)

    def differentiated(output: Tensor) -> Tensor:
        for one in (*given, *head.parameters()):
            one.grad = None
        if backward:
            output.sum().backward()
        return output.detach()

    def run(backend: str) -> Tensor:
        with torch.set_grad_enabled(backward):
            output, _ = head(*given, tokens, head.empty_state(1, bench.kind, given[0].device), backend)
            return differentiated(output)

    def attend() -> Tensor:
        with torch.set_grad_enabled(backward):
            return differentiated(softmax(*given[1:]))

    found = {"apart": apart(run("triton"), run("torch"))}
    return found | bench.in_turn({"triton": lambda: run("triton"), "torch": lambda: run("torch"), "softmax": attend})


def decode(bench: Bench, name: str, batch: int) -> dict[str, Any]:
    """One token, far into a text: the state is as large as it gets."""
    head, shape = bench.head(name)
    length = 30 if bench.quick else 1000
    before = bench.inputs(shape, batch, length)
    with torch.no_grad():
        start = torch.arange(length, device=bench.device).expand(batch, -1)
        _, state = head(*before, Tokens(start), head.empty_state(batch, bench.kind, before[0].device), "torch")
        given, states = bench.inputs(shape, batch, 1), {name: dict(state) for name in ("triton", "torch")}
        states["triton"] = {name: one.clone() for name, one in state.items()}
        tokens = Tokens(start[:, -1:] + 1)

        def run(backend: str) -> Tensor:
            output, states[backend] = head(*given, tokens, states[backend], backend, True)
            return output

        found = {"apart": apart(run("triton"), run("torch"))}
        return found | bench.in_turn({"triton": lambda: run("triton"), "torch": lambda: run("torch")})


def maps(bench: Bench, length: int) -> dict[str, Any]:
    """Hedgehog's features of queries, forward and backward."""
    _, shape = bench.head("lolcats")
    part = Hedgehog().resolved(shape)
    weight = torch.randn(part.parameters(shape)["query_weight"].shape, generator=torch.Generator().manual_seed(2))
    weight = (weight / shape.head_dim**0.5).to(bench.device, bench.kind).requires_grad_()
    query = bench.inputs(shape, 1, length)[1].requires_grad_()

    def fused() -> Tensor:
        from blocks.fused.shares import shares

        features = shares(query, weight, None, skip=False, sides=2, floor=part.floor)
        features.square().sum().backward()
        return features.detach()

    def composed() -> Tensor:
        features = part.map_query({"query_weight": weight}, query)
        features.square().sum().backward()
        return features.detach()

    return {"apart": apart(fused(), composed())} | bench.in_turn({"triton": fused, "torch": composed})


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda; cpu in Triton's interpreter")
    parser.add_argument("--quick", action="store_true", help="small sizes, once, and nothing is written")
    options = parser.parse_args()
    if options.device == "cpu":
        importlib.import_module("tests.interpreter")
    bench, rows = Bench(options.device, options.quick), {}
    warnings.simplefilter("error", FallsBack)
    lengths = (40,) if options.quick else LENGTHS
    for length in lengths:
        rows[f"lolcats forward {length}"] = prefill(bench, "lolcats", length, backward=False)
        rows[f"lolcats-terraced forward {length}"] = prefill(bench, "lolcats-terraced", length, backward=False)
        if length <= 8192:
            rows[f"lolcats with backward {length}"] = prefill(bench, "lolcats", length, backward=True)
            rows[f"lola forward {length}"] = prefill(bench, "lola", length, backward=False)
            rows[f"hedgehog with backward {length}"] = maps(bench, length)
    for batch in (1,) if options.quick else (1, 8, 64):
        for name in ("lolcats", "lola"):
            rows[f"{name} decode, batch {batch}"] = decode(bench, name, batch)
    table = Table("", "triton, ms", "torch / triton", "softmax / triton", "apart")
    for name, row in rows.items():
        own = row["triton"]["minimum"]
        ratios = [f"{row[other]['minimum'] / own:.2f}" if other in row else "" for other in ("torch", "softmax")]
        table.add_row(name, f"{own * 1e3:.3f}", *ratios, f"{row['apart']:.1e}")
    Console().print(table)
    if not options.quick:
        import triton

        machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
        versions = {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()}
        RESULTS.mkdir(exist_ok=True)
        result = {"machine": machine, **versions, "dtype": str(bench.kind), "rows": rows}
        (RESULTS / "own_kernels.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
