"""Table 2: calls of fla's operations through this project's forms, and the same operations called by hand on the same tensors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from benchmarks.gpu_rows import Bench, Row, differentiate
from benchmarks.harness import compute_difference
from blocks.operation import FLA, Form
from blocks.recurrences import additive, delta, rank_one

HEADS = 32
WIDTHS = {"1b": 64, "8b": 128}
"""The size of a head of Llama-3.2-1B and of Llama-3.1-8B."""
LENGTHS, BATCHES = (8192, 2048, 32_768), (1, 16)
OPERATIONS = {"simple_gla": additive, "gla": additive, "gated_delta_rule": delta, "kda": delta, "rwkv7": rank_one}
"""fla's names of the operations, and the recurrences that call them."""


def list_rows(bench: Bench) -> dict[str, Callable[[], Row]]:
    """Return the measurements by the names of their rows, the most important first."""
    rows: dict[str, Callable[[], Row]] = {}

    def add(size: str, name: str, call: str, tokens: int, batch: int) -> None:
        rows[f"{name} {size} {call} {tokens if call != 'decode' else batch}"] = partial(
            measure, bench, name, size, call, tokens, batch
        )

    for size in ("1b",) if bench.tiny else tuple(WIDTHS):
        for tokens in (24,) if bench.tiny else LENGTHS:
            for call in ("forward", "with backward"):
                for name in OPERATIONS:
                    add(size, name, call, tokens, 1)
            if tokens == LENGTHS[0] or bench.tiny:
                for batch in BATCHES[: 1 if bench.tiny else None]:
                    for name in OPERATIONS:
                        add(size, name, "decode", 1, batch)
    return rows


def measure(bench: Bench, name: str, size: str, call: str, tokens: int, batch: int) -> Row:
    """Time a form and the call by hand in turn."""
    inputs = draw_inputs(bench, batch, tokens, WIDTHS[size])
    leaves = [tensor.requires_grad_() for tensor in inputs.values()] if call == "with backward" else []
    decode = call == "decode"
    with torch.set_grad_enabled(bool(leaves)):
        form, by_hand = build_form(name, inputs, decode=decode), build_call_by_hand(name, inputs, decode=decode)
        difference = compute_difference(form().detach(), by_hand().detach())
        runs = {"form": differentiate(form, leaves), "by hand": differentiate(by_hand, leaves)}
        return {"size": size, "call": call, "tokens": tokens, "batch": batch, "apart": difference} | bench.time_in_turn(runs)


def draw_inputs(bench: Bench, batch: int, tokens: int, width: int) -> dict[str, Tensor]:
    """Draw inputs of all operations, with decays and keys that cause no overflow."""
    heads, width = (1, 16) if bench.tiny else (HEADS, width)
    generator = torch.Generator(bench.device).manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(batch, tokens, heads, *sizes, generator=generator, device=bench.device)

    unit = {name: normalize(draw(width), dim=-1) for name in ("query", "key", "read")}
    rate = draw().sigmoid()
    narrow = {**unit, "value": draw(width), "removed": unit["read"] * draw(width).sigmoid(), "rate": rate}
    inputs = {name: tensor.to(bench.dtype) for name, tensor in narrow.items()}
    return inputs | {"by head": logsigmoid(draw() + 4), "by channel": logsigmoid(draw(width) + 4)}


def build_form(name: str, inputs: Mapping[str, Tensor], *, decode: bool) -> Callable[[], Tensor]:
    """Return a run of the form of fla for this operation."""
    forms: tuple[Form, ...] = OPERATIONS[name].FORMS
    (form,) = (form for form in forms if form.backend == FLA and form.decode is decode)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    decay = inputs["by head" if name in ("simple_gla", "gated_delta_rule") else "by channel"]
    state = torch.zeros(query.shape[0], query.shape[2], query.shape[3], value.shape[3], device=query.device)
    further = {additive: (), delta: (inputs["rate"],), rank_one: (inputs["read"], inputs["removed"])}[OPERATIONS[name]]
    return lambda: form.run(query, key, value, *further, decay, None, state)[0]


def build_call_by_hand(name: str, inputs: Mapping[str, Tensor], *, decode: bool) -> Callable[[], Tensor]:
    """Return a run of fla's own function."""
    function = getattr(importlib.import_module(f"fla.ops.{name}"), f"{'fused_recurrent' if decode else 'chunk'}_{name}")
    options: dict[str, Any] = {"scale": 1.0, "output_final_state": True}
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    if decode:
        shape = query.shape[0], query.shape[2], query.shape[3], value.shape[3]
        options["initial_state"] = torch.zeros(shape, device=query.device)
    match name:
        case "simple_gla":
            options["g"] = inputs["by head"]
        case "gla":
            options["gk" if decode else "g"] = inputs["by channel"]
        case "gated_delta_rule" | "kda":
            options |= {"g": inputs["by head" if name == "gated_delta_rule" else "by channel"], "beta": inputs["rate"]}
        case _:
            decay, read, removed = inputs["by channel"], inputs["read"], inputs["removed"]
            return lambda: function(query, decay, key, value, -read, removed, **options)[0]
    return lambda: function(query, key, value, **options)[0]
