"""Argument types and launch constants with which kernels are compiled for GPUs that this machine does not have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.compiling import CAPABILITIES, Build, built

COUNTS = {"T", "E", "e", "count", "steps", "past_length", "ring_size", "reach", "size"}
TABLES = {
    "begins",
    "ends",
    "document",
    "evicted",
    "first",
    "start",
    "rows",
    "place_of_largest",
    "members",
    "evicted_places",
    "chunk_starts",
}
POSITIONS = {"position", "held_position", "ring_position"}
OF_THE_MODEL = {"query", "key", "value", "upstream", "output", "query_gradient", "key_gradient", "value_gradient", "laid"}
OF_THE_MODEL |= {"held_key", "held_value", "ring_key", "ring_value", "evicted_value"}


def build(module: str, name: str, kernel: Any, dtype: torch.dtype, constants: dict[str, Any], warps: int) -> Build:
    """Describe one build of a kernel. Constants that the kernel does not have are ignored."""
    pointer_type = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}[dtype]

    def kind(argument: str) -> str:
        if argument in COUNTS or argument.removesuffix(argument[-2:]).endswith("weight"):
            return "i32"
        if argument in TABLES | POSITIONS | {"evicted_present"}:
            return "*i32" if argument in TABLES else "*i64" if argument in POSITIONS else "*i1"
        return "fp32" if argument == "scale" else pointer_type if argument in OF_THE_MODEL else "*fp32"

    known = {argument: value for argument, value in constants.items() if argument in kernel.arg_names}
    signature = {argument: kind(argument) for argument in kernel.arg_names if argument not in known}
    return Build(f"{module}:{name}", signature, known, {"num_warps": warps, "num_stages": 2})


def assert_they_are_built(
    module: Any, names: tuple[str, ...], constants: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Compile a module's kernels in bfloat16 for each GPU. Check that none spills registers and that each fits into shared
    memory.
    """
    builds = [build(module.__name__, name, getattr(module, name), torch.bfloat16, constants, 8) for name in names]
    kernels = built(builds)
    assert len(kernels) == len(CAPABILITIES) * len(builds)
    for kernel in kernels:
        assert kernel.stack == 0, kernel
        assert kernel.shared <= 99 * 1024, kernel
    assert capsys.readouterr().out.count("registers=") == len(kernels)
