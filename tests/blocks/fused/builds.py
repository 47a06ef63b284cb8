"""What the kernels are built for where no GPU is: the types of their arguments, and the constants of a launch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from blocks.fused import (
    cascade,
    convolved_shares,
    joint,
    shares,
    window_and_state,
    window_and_state_backward,
    window_and_state_step,
)
from tests.compiling import Build

COUNTS = {"T", "E", "e", "count", "steps", "held", "reach", "size"}
TABLES = {"fallen", "start", "rows", "place_of_largest", "members", "fell"}
POSITIONS = {"position", "held_position", "ring_position"}
OF_THE_MODEL = {"query", "key", "value", "upstream", "output", "query_gradient", "key_gradient", "value_gradient", "laid"}
OF_THE_MODEL |= {"held_key", "held_value", "ring_key", "ring_value", "fallen_value"}


def build(module: str, name: str, kernel: Any, dtype: torch.dtype, constants: dict[str, Any], warps: int) -> Build:
    """constants: those that the kernel does not know are left out."""
    said = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}[dtype]

    def kind(argument: str) -> str:
        if argument in COUNTS or argument.removesuffix(argument[-2:]).endswith("weight"):
            return "i32"
        if argument in TABLES | POSITIONS | {"fallen_there"}:
            return "*i32" if argument in TABLES else "*i64" if argument in POSITIONS else "*i1"
        return "fp32" if argument == "scale" else said if argument in OF_THE_MODEL else "*fp32"

    known = {argument: value for argument, value in constants.items() if argument in kernel.arg_names}
    signature = {argument: kind(argument) for argument in kernel.arg_names if argument not in known}
    return Build(f"{module}:{name}", signature, known, {"num_warps": warps, "num_stages": 2})


HEADS = {"H": 32, "K": 8, "N": 32, "D": 64, "F": 128, "ROW_MAX": False, "RELATIVE": False, "PRECISION": "tf32", "EXACT": "tf32x3"}


def of_heads() -> list[Build]:
    """LoLCATs and LoLA on a Llama 3.2 1B: heads of 64, 128 features."""
    sizes = joint._Sizes(1, (32, 8, 32), (64, 128), (64,) * 5, 1, 64, False, torch.bfloat16)
    optional = dict.fromkeys(("decay", "fallen", "start"))
    kernels = {
        "sum_up": (window_and_state, sizes.tiles(of_keys=True)),
        "answer": (window_and_state, sizes.blocks()),
        "of_states": (window_and_state_backward, sizes.tiles(of_keys=False)),
        "of_queries": (window_and_state_backward, sizes.blocks()),
        "of_pairs": (window_and_state_backward, sizes.blocks() | {"ROWS": joint.ROWS}),
        "step": (window_and_state_step, HEADS | {"G": 1, "E": 1, "BLOCK": 32, "EB": 1, "DB": 64, "FB": 64}),
        "walk": (cascade, HEADS | {"M": 32, "S": 64, "BLOCK": 64, "SOME": cascade.SOME, "EB": 128, "DB": 64, "FB": 32}),
    }
    return [
        build(module.__name__, name, getattr(module, name), torch.bfloat16, constants | optional, 8)
        for name, (module, constants) in kernels.items()
    ]


def of_shares() -> list[Build]:
    """A map of heads of 64."""
    constants = {"H": 32, "N": 8, "OWN": 32, "D": 64, "C": 64, "BLOCK": 64, "DB": 64, "CB": 64, "SKIP": False, "SIDES": 2}
    constants |= {"PRECISION": "tf32", "bias": None}
    of_model = {"x": "*bf16", "weight": "*bf16", "rows": "i32", "floor": "fp32"}
    return [_as(shares, name, constants, of_model, 4) for name in ("forth", "back")]


def of_convolved_shares() -> list[Build]:
    """At the sizes of Llama 3.2 1B and 3.1 8B."""
    of_model = dict.fromkeys(("x", "earlier", "filters", "weight", "filtered"), "*bf16")
    of_model |= {"T": "i32", "E": "i32", "blocks": "i32", "floor": "fp32"}
    builds = []
    for dim in (64, 128):
        constants = {"H": 32, "M": 32, "N": 8, "OWN": 32, "FILTERS": 32, "D": dim, "C": dim, "R": 4, "DB": dim, "CB": dim}
        constants |= {"BLOCK": convolved_shares.BLOCKS[dim > 64], "SKIP": False, "SIDES": 2, "PRECISION": "tf32"}
        constants |= {"bias": None, "start": None}
        builds += [_as(convolved_shares, name, constants, of_model, 8) for name in ("forth", "back_through_taps")]
    return builds


def _as(module: Any, name: str, constants: dict[str, Any], kinds: dict[str, str], warps: int) -> Build:
    """kinds: of arguments that have another type here."""
    one = build(module.__name__, name, getattr(module, name), torch.bfloat16, constants, warps)
    return replace(one, signature={argument: kinds.get(argument, kind) for argument, kind in one.signature.items()})
