"""What a spec costs on a source, before anything is built: parts, forms, parameters, state bytes, operations, compression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blocks.legend import Shape
from blocks.memories.full import Full
from blocks.memories.state import StateMemory
from blocks.part import Closed, Slot
from composer.graph.graph import HeadGraph, build_graph, memories, parts
from composer.graph.lowering import Backend, Lowered, lower
from composer.model.naming import head_parameters
from composer.spec.document import HeadSpec
from composer.spec.resolve import Resolved

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
COUNTER = 8
"""The model counts each row's tokens once, in an int64."""


class GroupCost(Closed):
    """One group of heads as it stands in one or more layers. Bytes are for one row of a batch, figures for one layer."""

    head: str
    layers: tuple[int, ...]
    heads: int
    key_heads: int
    parts: tuple[Lowered, ...]
    fresh_parameters: int
    state_bytes: int
    state_grows: bool
    prefill_flops_per_token: int
    decode_flops_per_token: int
    kv_cache_bytes: int
    """What the source's cache of keys and values takes for these heads."""
    compression: float
    """Source's cache over this state, both in bytes as they are."""
    compression_lola: float
    """The same as LoLA's table 1 counts it: pairs, one state of 2D features a key head, no normaliser, one
    width for all numbers."""


class Explanation(Closed):
    """The whole model at one sequence length."""

    name: str
    hash: str
    backend: Backend
    device: str
    dtype: str
    sequence: int
    groups: tuple[GroupCost, ...]
    fresh_parameters: int
    state_bytes: int
    kv_cache_bytes: int
    compression: float
    compression_lola: float
    prefill_flops_per_token: int
    decode_flops_per_token: int


def explain_resolved(
    resolved: Resolved, *, sequence: int = 4096, backend: Backend = "torch", device: str = "cpu", dtype: str = "float32"
) -> Explanation:
    """Costs at ``sequence`` tokens. Operations are those between the projections, which stay as the source has them."""
    alike: dict[tuple[str, int], list[int]] = {}
    for layer, group, _, _ in resolved.groups():
        alike.setdefault((group.head, group.heads), []).append(layer)
    groups = [
        _cost(resolved.heads[name], name, resolved.dimensions.shape(heads), layers, sequence, backend, device, dtype)
        for (name, heads), layers in alike.items()
    ]

    def total(figures: Iterable[float]) -> float:
        return sum(figure * len(group.layers) for figure, group in zip(figures, groups, strict=True))

    cache = int(total(group.kv_cache_bytes for group in groups))
    state = int(total(group.state_bytes for group in groups)) + COUNTER
    return Explanation(
        name=resolved.name,
        hash=resolved.hash,
        backend=backend,
        device=device,
        dtype=dtype,
        sequence=sequence,
        groups=tuple(groups),
        fresh_parameters=int(total(group.fresh_parameters for group in groups)),
        state_bytes=state,
        kv_cache_bytes=cache,
        compression=cache / state,
        compression_lola=cache / total(group.kv_cache_bytes / group.compression_lola for group in groups),
        prefill_flops_per_token=int(total(group.prefill_flops_per_token for group in groups)),
        decode_flops_per_token=int(total(group.decode_flops_per_token for group in groups)),
    )


def state_size(graph: HeadGraph, tokens: int) -> dict[str, Slot]:
    """Every tensor that a head hands from call to call after ``tokens`` tokens, for one row: ``<part>.<tensor>``."""
    slots: dict[str, Slot] = {}
    for node, part, shape in parts(graph):
        held = part.grown(shape, tokens) if isinstance(part, Full) else part.state(shape)
        slots |= {f"{node}.{name}": slot for name, slot in held.items()}
    return slots


def state_bytes(slots: Mapping[str, Slot], dtype: str) -> int:
    """Bytes of those tensors where the model computes in ``dtype``."""
    width = BYTES[dtype]
    return sum(slot.bytes(width, max(4, width)) for slot in slots.values())


def _cost(
    head: HeadSpec, name: str, shape: Shape, layers: list[int], sequence: int, backend: Backend, device: str, dtype: str
) -> GroupCost:
    graph = build_graph(head, shape)
    cache = 2 * sequence * shape.key_heads * shape.head_dim * BYTES[dtype]
    state = state_bytes(state_size(graph, sequence), dtype)
    turning = sum(memory.position.flops(own, sequence) for _, memory, own in memories(graph) if memory.position)
    return GroupCost(
        head=name,
        layers=tuple(layers),
        heads=shape.heads,
        key_heads=shape.key_heads,
        parts=lower(graph, backend, device),
        fresh_parameters=sum(fresh.size for fresh in head_parameters(head, shape).values()),
        state_bytes=state,
        state_grows=any(isinstance(memory, Full) for memory in head.memory),
        prefill_flops_per_token=turning + sum(part.prefill_flops(own, sequence) for _, part, own in parts(graph)),
        decode_flops_per_token=turning + sum(part.flops(own, sequence) for _, part, own in parts(graph)),
        kv_cache_bytes=cache,
        compression=cache / state,
        compression_lola=sequence / sum(_pairs(graph, sequence)),
    )


def _pairs(graph: HeadGraph, sequence: int) -> Iterable[float]:
    """Each memory's size in pairs of a key and a value, as LoLA counts it: a state has 2D features, so it is D pairs."""
    for _, memory, shape in memories(graph):
        if isinstance(memory, StateMemory):
            yield shape.head_dim
        else:
            yield memory.state(shape)["key"].shape[0] or sequence
