"""A convolution followed by the Hedgehog map, computed as one step in one launch.

Keys of the call are mapped in the same launch. Other keys, such as those of evicted pairs, are mapped separately when a memory
needs their features.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from blocks.convolution import Convolution
from blocks.feature_maps.base import Plain
from blocks.feature_maps.hedgehog import SHARES, WIDEST, Hedgehog
from blocks.flow import Mapped, Pairs, Tokens
from blocks.kernels import TRITON_PACKAGE, Kernel, Refused, gpu_obstacle
from blocks.legend import Tensor, torch
from blocks.operation import TRITON, Form, Kind, Setting, State
from blocks.part import Parameters, Part
from blocks.pattern import Bound, Pattern
from blocks.taps import MOST_TAPS

CONVOLVED_SHARES = Kernel("blocks.fused.convolved_hedgehog", "convolved_shares", TRITON_PACKAGE)


def _run(bound: Mapping[str, Bound], inputs: Mapping[str, Mapping[str, Any]]) -> list[tuple[Any, State]]:
    return bound["conv"].compute(_with_filters, bound["conv"], bound["features"], inputs)


def _with_filters(
    filters: Parameters, conv: Bound, features: Bound, inputs: Mapping[str, Mapping[str, Any]]
) -> list[tuple[Any, State]]:
    return features.compute(_compute_both, features, filters, conv, inputs)


def _compute_both(
    parameters: Parameters, features: Bound, filters: Parameters, conv: Bound, inputs: Mapping[str, Mapping[str, Any]]
) -> list[tuple[Any, State]]:
    """Compute the outputs of both parts: the convolved queries and keys, and the mapped features."""
    part, options, tokens = _map(features), inputs["features"], conv.call.tokens
    sides = {"skip": part.skip, "sides": 2 if part.two_sided else 1, "floor": part.floor}
    scale, start = options["scale"], _start(tokens, conv.call.state["query"].shape[1])
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
    plain = partial(SHARES, **sides)

    def map_key(pairs: Pairs) -> Tensor:
        keys = pairs.mappable(options["position"])
        return mapped_tensors["key"] if keys is filtered["key"] else _others(part, parameters, keys, scale, plain)

    carried = {name: _last(conv.call.state[name], inputs["conv"][name], tokens) for name in ("query", "key")}
    mapped = Mapped(mapped_tensors["query"], map_key, scale == "logarithm")
    return [((filtered["query"], filtered["key"]), carried), ((mapped,), {})]


def _others(part: Hedgehog, parameters: Parameters, keys: Tensor, scale: Any, plain: Plain) -> Tensor:
    """Map keys that are not the call's own."""
    try:
        return part.map_side(parameters, "key_", keys, scale, plain)
    except Refused as refusal:  # this runs during another step
        warnings.warn(f"{refusal}. In its place: as defined", RuntimeWarning, stacklevel=2)
        return part.map_side(parameters, "key_", keys, scale)


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


def _map(bound: Bound) -> Hedgehog:
    assert isinstance(bound.part, Hedgehog)
    return bound.part


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
    """Return True if nothing rotates queries and keys between the convolution and the map."""
    return options["features"]["position"].base == ()


CONVOLVED_MAP = Pattern(
    nodes={"conv": lambda part: isinstance(part, Convolution), "features": lambda part: isinstance(part, Hedgehog)},
    edges=(("conv", "features", Kind.QUERY),),
    forms=_forms,
    where=_does_not_rotate,
)
