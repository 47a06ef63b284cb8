"""The bench of ``own_kernels.py``: heads of shipped specs, and feature maps before them, timed in turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Budget, Figures, choose_settle, compute_difference, time_rounds
from blocks.convolution import Convolution
from blocks.feature_maps.hedgehog import Hedgehog
from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.taps import filter_by_kernel, filter_inputs
from composer.model.head import Head
from composer.spec.loading import load_spec
from composer.spec.resolve import Dimensions, resolve

SIZE = Dimensions(hidden_size=4096, layers=1, heads=32, key_heads=8, head_dim=128, rope_theta=500_000.0)
SMALL = Dimensions(hidden_size=32, layers=1, heads=2, key_heads=1, head_dim=16, rope_theta=10_000.0)
WIDE, NARROW = "head.feature_map.dim=128", ("head.feature_map.dim=16", "head.memory.0.size=8")
HEADS = {
    "lolcats": ((WIDE,), NARROW),
    "lolcats-terraced": ((WIDE,), NARROW),
    "lola": ((WIDE, "head.memory.1.size=128"), (*NARROW, "head.memory.1.size=8")),
    "streaming": ((), ("head.memory.1.size=8",)),
}
"""Specs, with their overrides for full and for quick runs."""
Run = Callable[[], Any]


class Bench:
    """The device, the sizes and the time of the measurements. waiting: how many measurements share the time that is left."""

    def __init__(self, device: str, quick: bool, seconds: float = 100.0) -> None:
        self.device, self.quick = device, quick
        self.size = SMALL if quick else SIZE
        self.kind = torch.float32 if device == "cpu" else torch.bfloat16
        self.budget, self.waiting = Budget(seconds), 1

    def time_in_turn(self, runs: dict[str, Run]) -> dict[str, Figures | None]:
        """Return the seconds of each run, timed in turn after one warm-up, within this measurement's share of the time left."""
        for run in runs.values():
            run()
        choose_settle(self.device)()
        share = max(self.budget.seconds_left, 0.0) / self.waiting
        return time_rounds(runs, share, self.device, max_rounds=1 if self.quick else 100)

    def build_head(self, name: str) -> tuple[Head, Shape]:
        """Return a spec's head with random weights. Quick runs have small windows."""
        large, small = HEADS[name]
        resolved = resolve(load_spec(name, small if self.quick else large), self.size)
        (head,), shape = resolved.heads.values(), self.size.shape(self.size.heads)
        built, generator = Head(head, shape), torch.Generator().manual_seed(0)
        for module in built.modules():
            if hasattr(module, "fill"):
                module.fill(generator)  # pyright: ignore[reportCallIssue]
        return built.to(self.device, self.kind), shape

    def draw_inputs(self, shape: Shape, batch: int, length: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(1)
        sizes = ((shape.hidden_size,), (shape.heads, shape.head_dim), *[(shape.key_heads, shape.head_dim)] * 2)
        return [torch.randn(batch, length, *size, generator=generator).to(self.device, self.kind) for size in sizes]


def measure_map(bench: Bench, length: int) -> dict[str, Any]:
    """Time Hedgehog's features of queries, forward and backward."""
    _, shape = bench.build_head("lolcats")
    part = Hedgehog().with_dim(shape)
    weight = torch.randn(part.parameters(shape)["query_weight"].shape, generator=torch.Generator().manual_seed(2))
    weight = (weight / shape.head_dim**0.5).to(bench.device, bench.kind).requires_grad_()
    query = bench.draw_inputs(shape, 1, length)[1].requires_grad_()

    def run_fused() -> Tensor:
        from blocks.fused.hedgehog import shares

        features = shares(query, weight, None, skip=False, sides=2, floor=part.floor)
        features.square().sum().backward()
        return features.detach()

    def run_composed() -> Tensor:
        features = part.map_query({"query_weight": weight}, query)
        features.square().sum().backward()
        return features.detach()

    return {"apart": compute_difference(run_fused(), run_composed())} | bench.time_in_turn(
        {"triton": run_fused, "torch": run_composed}
    )


def measure_taps_and_map(bench: Bench, length: int) -> dict[str, Any]:
    """Time LAWCAT's convolution and features of queries, forward and backward: in one launch, in two, and in PyTorch."""
    _, shape = bench.build_head("lolcats")
    part, taps = Hedgehog().with_dim(shape), Convolution()
    generator = torch.Generator().manual_seed(2)
    sizes = (shape.heads, shape.head_dim, taps.kernel), (shape.heads, shape.head_dim, part.dim or shape.head_dim)
    filters, weight = (torch.randn(size, generator=generator) / shape.head_dim**0.5 for size in sizes)
    leaves = [
        tensor.to(bench.device, bench.kind).requires_grad_() for tensor in (bench.draw_inputs(shape, 1, length)[1], filters, weight)
    ]
    earlier = torch.zeros(1, taps.kernel - 1, shape.heads, shape.head_dim, device=bench.device, dtype=bench.kind)
    tokens = Tokens(torch.arange(length, device=bench.device)[None])

    def differentiate(features: Tensor) -> Tensor:
        torch.autograd.grad(features.square().sum(), leaves)
        return features.detach()

    def run_fused() -> Tensor:
        from blocks.fused.convolved_hedgehog import convolved_shares

        query, kernel, matrix = leaves
        return differentiate(convolved_shares(query, earlier, kernel, None, matrix, None, skip=False, sides=2, floor=part.floor)[1])

    def run_composed(filtering: Callable[..., Any], mapping: Callable[..., Tensor]) -> Tensor:
        return differentiate(mapping(filtering(leaves[0], leaves[1], tokens, earlier)[0], leaves[2]))

    def map_by_kernel(inputs: Tensor, matrix: Tensor) -> Tensor:
        from blocks.fused.hedgehog import shares

        return shares(inputs, matrix, None, skip=False, sides=2, floor=part.floor)

    def map_as_defined(inputs: Tensor, matrix: Tensor) -> Tensor:
        return part.map_query({"query_weight": matrix}, inputs)

    runs: dict[str, Run] = {
        "triton": run_fused,
        "torch": lambda: run_composed(filter_inputs, map_as_defined),
        "fla": lambda: run_composed(filter_by_kernel, map_by_kernel),
    }
    return {"apart": compute_difference(run_fused(), runs["torch"]())} | bench.time_in_turn(runs)
