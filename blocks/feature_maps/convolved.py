"""A convolution, the pairs of the call and the Hedgehog map of queries and keys as one step, for a state that receives every pair:
one launch for queries, and one for keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from blocks.convolution import Convolution
from blocks.entry import Entry, join_pairs
from blocks.feature_maps.hedgehog import WIDEST, Hedgehog
from blocks.flow import Tokens
from blocks.kernels import TRITON_PACKAGE, Kernel, gpu_obstacle
from blocks.legend import Tensor, torch
from blocks.operation import TRITON, Form, Kind, Setting, State
from blocks.part import Parameters, Part
from blocks.pattern import Pattern, RunningPart
from blocks.taps import MOST_TAPS

CONVOLVED_SHARES = Kernel("blocks.fused.convolved_hedgehog", "convolved_shares", TRITON_PACKAGE)


def _run(parts: Mapping[str, RunningPart], inputs: Mapping[str, Mapping[str, Any]]) -> list[tuple[Any, State]]:
    conv, entry, features = parts["conv"], parts["pairs"], parts["features"]
    convolved, mapped, carried = conv.compute(lambda filters: features.compute(_compute_both, features, filters, conv, inputs))
    pairs = join_pairs(entry.call.tokens, **inputs["pairs"], convolved=convolved["key"])
    return [((convolved["query"], convolved["key"]), carried), ((pairs,), {}), ((mapped["query"],), {}), ((mapped["key"],), {})]


def _compute_both(
    parameters: Parameters, features: RunningPart, filters: Parameters, conv: RunningPart, inputs: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, Tensor], dict[str, Tensor], State]:
    """Return the convolved queries and keys, their features, and the new state of the convolution."""
    part, tokens = features.part, conv.call.tokens
    assert isinstance(part, Hedgehog)
    sides = {"skip": part.skip, "sides": 2 if part.two_sided else 1, "floor": part.floor}
    scale, start = inputs["features"]["scale"], _start(tokens, conv.call.state["query"].shape[1])
    filtered: dict[str, Tensor] = {}
    mapped_tensors: dict[str, Tensor] = {}
    for name in ("query", "key"):
        taps, earlier = filters[name if name in filters else "weight"], conv.call.state[name]

        def at_once(
            x: Tensor, matrix: Tensor, bias: Tensor | None, name: str = name, taps: Tensor = taps, earlier: Tensor = earlier
        ) -> Tensor:
            filtered[name], shares = CONVOLVED_SHARES(x, earlier, taps, start, matrix, bias, **sides)
            return shares

        mapped_tensors[name] = part.map_side(parameters, f"{name}_", inputs["conv"][name], scale, at_once)
    carried = {name: _last(conv.call.state[name], inputs["conv"][name], tokens) for name in ("query", "key")}
    return filtered, mapped_tensors, carried


def _start(tokens: Tokens, past: int) -> Tensor | None:
    """Return the first entry of each token's document, among ``past`` earlier entries and those of the call; None if all belong
    to one document."""
    segment = tokens.extend_segment(past)
    if segment is None:
        return None
    return tokens.once(
        ("first entry", past),
        lambda: torch.searchsorted(segment.contiguous(), segment.contiguous())[:, past:].to(torch.int32).contiguous(),
    )


def _last(earlier: Tensor, inputs: Tensor, tokens: Tokens) -> Tensor:
    """Return the last inputs, which the first tokens of the next call need."""
    past, length = earlier.shape[1], inputs.shape[1]
    if tokens.valid is None and length >= past:
        carried = inputs[:, length - past :].clone()
    else:
        carried = tokens.tail(torch.cat((earlier, inputs), dim=1), past)
    current = tokens.tail_is_current(past)
    return carried if current is None else carried * current[..., None, None]


def _forms(parts: Mapping[str, Part]) -> tuple[Form, ...]:
    conv, features = parts["conv"], parts["features"]
    assert isinstance(conv, Convolution)
    assert isinstance(features, Hedgehog)
    description = "taps, a product and its softmaxes, in one pass"
    missing = CONVOLVED_SHARES.missing
    return (Form(TRITON, description, _run, partial(_obstacle, conv=conv, features=features), missing=missing, refuses=True),)


def _obstacle(setting: Setting, conv: Convolution, features: Hedgehog) -> str | None:
    if conv.inputs != ("q", "k"):
        return "it filters queries and keys, and nothing else"
    if conv.activation != "none":
        return "it needs the filtered inputs unchanged"
    if conv.kernel > MOST_TAPS:
        return f"it unrolls its taps, of which there are {conv.kernel}"
    if not features.linear:
        return "there is no product to fuse"
    largest = 0 if setting.shape is None else max(setting.shape.head_dim, features.dim or 0)
    return f"it supports at most {WIDEST} columns, not {largest}" if largest > WIDEST else gpu_obstacle(setting)


def _does_not_rotate(options: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if nothing rotates queries and keys between the convolution and the map, which is one for both."""
    keys = options["keys"]
    return keys["position"].base == () and options["features"]["scale"] == keys["scale"]


CONVOLVED_MAP = Pattern(
    nodes={
        "conv": lambda part: isinstance(part, Convolution),
        "pairs": lambda part: isinstance(part, Entry),
        "features": lambda part: isinstance(part, Hedgehog),
        "keys": lambda part: isinstance(part, Hedgehog),
    },
    edges=(("conv", "features", Kind.QUERY), ("conv", "pairs", Kind.KEY), ("pairs", "keys", Kind.PAIRS)),
    forms=_forms,
    where=_does_not_rotate,
)
