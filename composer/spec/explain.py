"""The cost of a spec on a source, before anything is built: parts, forms, parameters, state bytes, operations, compression."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from blocks.legend import Shape
from blocks.memories.base import Memory
from blocks.operation import Kind, Setting, Slot
from composer.graph.composition import HeadSpec
from composer.graph.graph import HeadGraph
from composer.graph.lowering import ANYWHERE, AUTO, Lowered, check_backend, list_forms
from composer.graph.wiring import build_graph
from composer.reporting.words import size
from composer.spec.explained import Explanation, GroupCost, NumberedHeads
from composer.spec.layer_rules import Group
from composer.spec.notes import notes_on_source
from composer.spec.resolve import Resolved, graphs_of, head_parameters
from converters.rotary import LengthRotation
from converters.shard import BYTES

LARGER = 1.2
"""The size of a state, relative to the source's cache, from which a note says that it is larger."""
COUNTER = 8
"""The model counts each row's tokens once, in an int64."""


def explain_resolved(
    resolved: Resolved,
    *,
    on: str | None = None,
    sequence: int = 4096,
    backend: str = AUTO,
    device: str = "cpu",
    dtype: str = "float32",
    windows: Sequence[int | None] | None = None,
    rotations: Mapping[int, LengthRotation] = MappingProxyType({}),
) -> Explanation:
    """Costs at ``sequence`` tokens. Operations are those between the projections, which are the source's. on: the model that it is
    resolved on, in words. windows: for each layer, the number of tokens that a query of the source sees, if the source has layers
    with a window. rotations: the source's layers whose rotary frequencies depend on the length of the text so far.
    """
    check_backend(backend, graphs_of(resolved))
    kinds = list(_kinds(resolved, windows))
    groups = [_cost(resolved, head, name, shape, layers, sequence, backend, device, dtype) for name, head, shape, layers in kinds]
    graphs = (build_graph(head, shape) for _, head, shape, _ in kinds)

    def total(figures: Iterable[float | None]) -> float:
        return sum((figure or 0) * len(group.layers) for figure, group in zip(figures, groups, strict=True))

    causal = resolved.direction == "causal"
    cache = int(total(group.kv_cache_bytes for group in groups)) if causal else None
    state = int(total(group.state_bytes for group in groups)) + (COUNTER if causal else 0)
    return Explanation(
        name=resolved.name,
        on=on,
        hash=resolved.hash,
        direction=resolved.direction,
        backend=backend,
        device=device,
        dtype=dtype,
        sequence=sequence,
        groups=tuple(groups),
        key_heads=tuple(_numbered(resolved)),
        fresh_parameters=int(total(group.fresh_parameters for group in groups)),
        state_bytes=state,
        kv_cache_bytes=cache,
        compression=_ratio(cache, state),
        compression_lola=_ratio(
            total(group.key_heads * min(sequence, group.source_window or sequence) for group in groups),
            total(group.key_heads * group.pairs for group in groups),
        ),
        prefill_flops_per_token=int(total(group.prefill_flops_per_token for group in groups)),
        decode_flops_per_token=int(total(group.decode_flops_per_token for group in groups)) if causal else None,
        notes=(
            *notes_on_source(resolved, rotations),
            *(note for graph, group in zip(graphs, groups, strict=True) for note in notes_on_speed(graph, group.parts)),
            *_notes_on_size(groups, state, cache, sequence),
        ),
    )


def notes_on_speed(graph: HeadGraph, parts: Iterable[Lowered] = ()) -> Iterator[str]:
    """Yield a note on each memory that reads a text token by token, except where ``parts`` has a form of other kernels."""
    kernels = {part.part for part in parts if part.backend not in ANYWHERE}
    for node, memory in graph.memories:
        if node.name not in kernels and (why := memory.why_slow(node.shape)) is not None:
            yield f"`{node.name}` is slow with PyTorch's kernels: {why}."


def _notes_on_size(groups: Sequence[GroupCost], state: int, cache: int | None, sequence: int) -> tuple[str, ...]:
    """Return a warning if the state is larger than the source's cache."""
    if not cache or state < LARGER * cache:
        return ()
    note = f"At {sequence:,} tokens the state has {size(state)}, more than the source's cache with {size(cache)}."
    if any(group.state_grows or group.source_window for group in groups):
        return (note,)
    return (f"{note} It is smaller than the cache only above {math.ceil(state * sequence / cache):,} tokens: set smaller sizes.",)


def _numbered(resolved: Resolved) -> Iterator[NumberedHeads]:
    layers: dict[tuple[Group, ...], list[int]] = {}
    for index, layer in enumerate(resolved.layers):
        if any(group.numbers is not None for group in layer):
            layers.setdefault(layer, []).append(index)
    for layer, indices in layers.items():
        yield NumberedHeads(layers=tuple(indices), numbers={group.head: group.numbers or () for group in layer})


def _kinds(resolved: Resolved, windows: Sequence[int | None] | None) -> Iterator[tuple[str, HeadSpec, Shape, list[int]]]:
    """Groups of heads that are alike, those of local layers by themselves: name, head, shape, layers."""
    for (name, _), (head, shape, layers) in resolved.kinds().items():
        seen: dict[int | None, list[int]] = {}
        for layer in layers:
            seen.setdefault(windows[layer] if windows else None, []).append(layer)
        yield from ((name, head, replace(shape, window=window), some) for window, some in seen.items())


def state_size(graph: HeadGraph, tokens: int) -> dict[str, Slot]:
    """Return every tensor that a head hands from call to call after ``tokens`` tokens, for one row: ``<part>.<tensor>``."""
    slots = dict(graph.slots)
    for node, memory in graph.memories:
        if node.operation.slots:
            slots |= {f"{node.name}.{name}": slot for name, slot in memory.state_after(node.shape, tokens).items()}
    return slots


def state_bytes(slots: Mapping[str, Slot], dtype: str) -> int:
    """Bytes of those tensors where the model computes in ``dtype``."""
    width = BYTES[dtype]
    return sum(slot.bytes(width, max(4, width)) for slot in slots.values())


def pairs_held(graph: HeadGraph, tokens: int) -> float:
    """Pairs of a key and a value that a key head's memories hold after ``tokens`` tokens, as LoLA's table 1 counts them.

    A memory of pairs counts what it has room for: of a terraced window, two chunks. A state is D pairs: the 2D features of D
    values that LoLA's has, whatever the map. Latents are L of a head, of D values each: half a pair. One key head's worth is
    counted where each query head has its own. Normalisers, positions, scalars and what convolutions carry do not count.
    """
    return sum(memory.pairs_held(node.shape, tokens) for node, memory in graph.memories if node.operation.slots)


def _cost(
    resolved: Resolved,
    head: HeadSpec,
    name: str,
    shape: Shape,
    layers: list[int],
    sequence: int,
    backend: str,
    device: str,
    dtype: str,
) -> GroupCost:
    graph = build_graph(head, shape)
    cached_tokens, dimensions = min(sequence, shape.window or sequence), resolved.dimensions
    # Where all heads of a layer share what is cached, a group counts its share of it.
    cache = (
        None
        if shape.both_ways
        else cached_tokens * dimensions.cached_per_token * shape.key_heads * BYTES[dtype] // dimensions.key_heads
    )
    state = 0 if shape.both_ways else state_bytes(state_size(graph, sequence), dtype)
    pairs = pairs_held(graph, sequence)
    # A value position has two nodes; the first counts the operations of both.
    working = [(node.part, node.shape) for node in graph.parts if node.part and node.main]
    beside = sum(
        memory.flops_of_weight(node.shape) + _flops_of_rotation(memory, node.shape, sequence) for node, memory in graph.memories
    )
    return GroupCost(
        head=name,
        layers=tuple(layers),
        heads=shape.heads,
        key_heads=shape.key_heads,
        head_dim=shape.head_dim,
        value_dim=shape.value_dim,
        parts=list_forms(graph, backend, Setting(device=device, dtype=dtype)),
        fresh_parameters=sum(fresh.size for fresh in head_parameters(head, shape).values()),
        state_bytes=state,
        state_grows=any(memory.grows for memory in head.memory) and not shape.both_ways,
        prefill_flops_per_token=beside + sum(part.prefill_flops(part_shape, sequence) for part, part_shape in working),
        decode_flops_per_token=None
        if shape.both_ways
        else beside + sum(part.flops(part_shape, sequence) for part, part_shape in working),
        source_window=shape.window,
        bounded=next((same for memory in head.memory if (same := _bound_in_words(memory, shape))), None),
        kv_cache_bytes=cache,
        source_compresses=dimensions.cached is not None,
        unused_projections=not uses_projections(head),
        compression=_ratio(cache, state),
        pairs=pairs,
        compression_lola=_ratio(cached_tokens, pairs),
    )


def _flops_of_rotation(memory: Memory, shape: Shape, tokens: int) -> int:
    return memory.position.flops(shape, tokens) if memory.position and memory.reads is not Kind.HIDDEN else 0


def _bound_in_words(memory: Memory, shape: Shape) -> str | None:
    return None if shape.window is None or not memory.grows else memory.within(shape.window)


def uses_projections(head: HeadSpec) -> bool:
    """Whether any part reads the layer's queries and keys. Latents have their own logits, and read only the values."""
    return any(memory.reads is not Kind.HIDDEN for memory in head.memory)


def _ratio(source: float | None, state: float) -> float | None:
    return source / state if source and state else None
