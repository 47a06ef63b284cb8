"""A window, the state that it feeds and the read of the two, as one step: one softmax over near pairs and features of far pairs,
with one denominator. The step returns the head's output, and no separate outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from blocks.feature_maps.base import FeatureMap
from blocks.flow import Pairs, Tokens
from blocks.fused.arguments import Evictions
from blocks.kernels import TRITON_PACKAGE, Kernel, gpu_obstacle
from blocks.legend import Float, Int, Tensor, torch
from blocks.memories.base import Memory
from blocks.memories.state import StateMemory, scale_to_one
from blocks.memories.stored_pairs import place_of, state_of, write_at
from blocks.memories.window import Window, entries, find_evicted_pairs, keep_last
from blocks.operation import TRITON, Call, Form, Kind, Setting, State, row_obstacle, size_obstacle
from blocks.part import Part
from blocks.pattern import Pattern, RunningPart
from blocks.reads import Shared
from blocks.recurrences.stabilised import stabilise_step
from blocks.tensors import repeat_heads

JOINT = Kernel("blocks.fused.joint", "attend_jointly", TRITON_PACKAGE)
STEP = Kernel("blocks.fused.window_and_state_step", "step_once", TRITON_PACKAGE)
RING = ("key", "value", "position")
WIDEST = 256
"""The largest size of a head, and the largest number of features. Larger blocks do not fit into the memory of a processor of the
GPU."""


def _run(parts: Mapping[str, RunningPart], inputs: Mapping[str, Mapping[str, Any]]) -> list[tuple[Any, State]]:
    window, state, read = parts["window"], parts["state"], parts["read"]
    rotation, capacity = _window(window).rotation, _window(window).capacity
    tokens, before = window.call.tokens, window.call.state
    extended: Pairs = window.compute(lambda _: entries(before, inputs["window"]["pairs"], tokens, rotation))
    query = inputs["window"]["query"]
    arguments = extended, parts["keys"], inputs["state"]["features"], inputs["state"].get("decay"), inputs["read"]["weight"]
    state_features, state_arguments = state.compute(_features, state, window, *arguments)
    output, summed = read.compute(
        _attend_jointly, query, extended, state_features, state_arguments, _shared_arguments(read).asks_maximum
    )
    carried = window.compute(lambda _: keep_last(before, extended, tokens, capacity))
    return [((None, None), carried), ((None,), {}), ((None,), {"state": summed}), ((output,), {})]


def _features(
    parameters: Any,
    state: RunningPart,
    window: RunningPart,
    extended: Pairs,
    keys: RunningPart,
    query: Float[Tensor, "B T H F"],
    decay: Tensor | None,
    logits: Mapping[str, Tensor],
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor | None, Tensor | None, Tensor, Any]]:
    """Return the state's queries and keys, its decay, the weight of the window over it, the state itself, and the evicted
    entries."""
    tokens, shape, memory = state.call.tokens, state.call.shape, _window(window)
    entry_count = tokens.position.shape[1] + (0 if memory.is_sliding else memory.size - 1)
    key, log_scale = keys.map(extended.map_tensors(lambda entries: entries[:, :entry_count])), None
    if not shape.even:
        query, log_scale = scale_to_one(query)
    if decay is not None and tokens.valid is not None:
        decay = decay.masked_fill(~tokens.valid.view(*tokens.valid.shape, *[1] * (decay.dim() - 2)), 0.0)
    weight = weight_over(window, state, logits, log_scale, query)
    state_features = query, repeat_heads(key, shape.state_heads)
    return state_features, (decay, weight, state.call.state["state"], evictions_of(memory, extended, tokens))


def _attend_jointly(
    parameters: Any,
    query: Float[Tensor, "B T H D"],
    extended: Pairs,
    state_features: tuple[Tensor, Tensor],
    state_arguments: tuple[Any, ...],
    row_max: bool,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B N F V"]]:
    return JOINT(query, extended.key, extended.value, *state_features, *state_arguments, row_max=row_max)


def evictions_of(window: Window, extended: Pairs, tokens: Tokens) -> Evictions:
    """Return which entries have been evicted into the state at each token."""
    capacity, size = window.capacity, window.size
    evicted, start, ends, count = tokens.once(("evictions", window.is_sliding, size), lambda: _tables(window, tokens))
    absent = (extended.position[:, :capacity] < 0).sum(1)
    # A terraced window has room for pairs that are in the state by now.
    first = absent if window.is_sliding else absent.maximum(size - 1 - (tokens.position[:, 0] - 1) % size)
    reach, length = (1 if window.is_sliding else size), tokens.position.shape[1]
    end = torch.full_like(first, length) if evicted is None else evicted[:, -1]
    rows = torch.stack((first, end, ends, count), dim=1).to(torch.int32)
    return Evictions(capacity, reach, length + reach - 1, rows, evicted, start)


def _tables(window: Window, tokens: Tokens) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """Return what depends on the tokens alone: the number of entries evicted up to each token, the first entry of each entry's
    document, that of the last token's document, and the number of real tokens."""
    position, valid = tokens.position, tokens.valid
    length, size = position.shape[1], window.size
    token = torch.arange(length, device=position.device)
    start, ends, count = document_starts(tokens, window.capacity)
    evicted = None
    if not window.is_sliding:
        evicted = size + token - position % size
    elif valid is not None:
        evicted = (token + 1).expand_as(position)
    if evicted is not None and valid is not None:
        last = (count - 1).clamp(min=0)[:, None]
        # Nothing is evicted at padding; a row of padding alone has the entries evicted before.
        before = 0 if window.is_sliding else size - 1 - (position[:, :1] - 1) % size
        evicted = torch.where(valid, evicted, torch.where(valid.any(1, keepdim=True), evicted.gather(1, last), before))
    evicted, start = (None if table is None else table.to(torch.int32).contiguous() for table in (evicted, start))
    return evicted, start, ends, count


def document_starts(tokens: Tokens, past_length: int) -> tuple[Int[Tensor, "B E"] | None, Int[Tensor, " B"], Int[Tensor, " B"]]:
    """Return the first entry of each entry's document (None: a row is one document), the first entry of the last token's document,
    and the number of real tokens."""
    position, valid, segment = tokens.position, tokens.valid, tokens.extend_segment(past_length)
    count = torch.full_like(position[:, 0], position.shape[1]) if valid is None else valid.sum(1)
    if segment is None:
        return None, torch.zeros_like(count), count
    start = torch.searchsorted(segment.contiguous(), segment.contiguous())
    last = (count - 1).clamp(min=0)[:, None]
    return start, torch.where(count > 0, start.gather(1, past_length + last)[:, 0], 0), count


def _run_step(parts: Mapping[str, RunningPart], inputs: Mapping[str, Mapping[str, Any]]) -> list[tuple[Any, State]]:
    """Return the head's output for one token. Tensors of pairs that no kernel needs, such as a key before its convolution, are
    written into the state separately."""
    window, state, read = parts["window"], parts["state"], parts["read"]
    memory, call = _window(window), window.call
    pairs: Pairs = inputs["window"]["pairs"].to_storage(memory.rotation)
    place = place_of(call.tokens, memory.capacity)
    constants = {"size": memory.size, "is_sliding": memory.is_sliding, "rotation": memory.rotation}
    evicted = window.compute(lambda _: find_evicted_pairs(call.state, call.tokens, pairs, place, **constants))
    arguments = evicted, parts["keys"], inputs["state"]["features"], inputs["state"].get("decay"), inputs["read"]["weight"]
    query_features, arriving, decay, weight, summed = state.compute(_step_features, state, window, *arguments)
    window_state = to_write_over(call)
    query, ring = inputs["window"]["query"], tuple(window_state[name] for name in RING)
    further = {"size": 0 if memory.is_sliding else memory.size, "row_max": _shared_arguments(read).asks_maximum}

    def run(_: Any) -> Tensor:
        further_inputs = arriving, decay, weight, ring, summed["state"]
        return STEP(
            query, pairs.key, pairs.value, call.tokens.position, call.tokens.in_row(), query_features, *further_inputs, **further
        )

    output = read.compute(run)
    others = {name: entries for name, entries in window_state.items() if name not in RING}
    if others:
        window_state |= write_at(others, place, state_of(pairs, others), in_place=True)
    return [((None, None), window_state), ((None,), {}), ((None,), summed), ((output,), {})]


def _step_features(
    parameters: Any,
    state: RunningPart,
    window: RunningPart,
    evicted: Pairs | None,
    mapping: RunningPart,
    query: Float[Tensor, "B T H F"],
    decay: Tensor | None,
    logits: Mapping[str, Tensor],
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor], Tensor | None, Tensor | None, State]:
    """Return the state's queries, the pairs evicted into it, its decay, the weight of the window over it, and the state itself,
    which is overwritten."""
    shape, summed = state.call.shape, to_write_over(state.call)
    batch = query.shape[0]
    if evicted is None:
        keys = query.new_zeros(batch, 1, shape.state_heads, shape.features)
        values = query.new_zeros(batch, 1, shape.key_heads, shape.value_dim)
        present = torch.zeros(batch, 1, dtype=torch.bool, device=query.device)
    else:
        keys, values, present = repeat_heads(mapping.map(evicted), shape.state_heads), evicted.value, evicted.present
    log_scale = None
    if shape.exponential:
        keys = keys.masked_fill(~present[..., None, None], -math.inf)
        stable = stabilise_step(query, keys, decay, None, summed["maximum"])
        query, decay, log_scale, summed["maximum"] = stable.query, stable.log_decay, stable.log_scale, stable.maximum
        assert stable.key is not None
        keys = stable.key
    elif not shape.even:
        query, log_scale = scale_to_one(query)
    return query, (keys, values, present), decay, weight_over(window, state, logits, log_scale, query), summed


def weight_over(
    exact: RunningPart, state: RunningPart, logits: Mapping[str, Tensor], log_scale: Tensor | None, query: Float[Tensor, "B T H F"]
) -> Float[Tensor, "B T H"] | None:
    """Return the logarithm of the ratio of two factors: that of an exact memory's mass and that of the state's mass. None: both are
    1.

    log_scale: the logarithm of a factor of the state's mass that is not yet applied. logits: the learned weights of memories, of
    which each mass is multiplied by the sigmoid.
    """
    weight = None if log_scale is None else -log_scale
    for running, sign in ((exact, 1), (state, -1)):
        assert isinstance(running.part, Memory)
        if running.part.called in logits:
            log_weight = sign * torch.nn.functional.logsigmoid(logits[running.part.called])
            weight = log_weight if weight is None else weight + log_weight
    return None if weight is None else weight.expand(query.shape[:3])


def to_write_over(call: Call) -> State:
    """Return the state if it may be overwritten; otherwise a copy."""
    return {name: entries.contiguous() if call.in_place else entries.clone() for name, entries in call.state.items()}


def _window(running: RunningPart) -> Window:
    assert isinstance(running.part, Window)
    return running.part


def _shared_arguments(running: RunningPart) -> Shared:
    assert isinstance(running.part, Shared)
    return running.part


def _obstacle(setting: Setting) -> str | None:
    sizes = setting.shape
    assert sizes is not None, "lowering has set the features of the state"
    reasons = {
        "it is causal, and this head is bidirectional": sizes.both_ways,
        "it processes tokens in blocks, and a step of decode has one token": setting.one_token,
        "it keeps no running maximum for exponential features": sizes.exponential,
        "it caps no logits": setting.capped,
        "a memory above keeps some pairs for good, and its window has no gaps": setting.sifted,
        f"it supports at most {WIDEST} features and {WIDEST} numbers a head": max(sizes.head_dim, sizes.features) > WIDEST,
    }
    return next((reason for reason, holds in reasons.items() if holds), None) or size_obstacle(setting) or gpu_obstacle(setting)


def _step_obstacle(setting: Setting) -> str | None:
    """Return why the kernel of a step of decode cannot run, or None."""
    sizes = setting.shape
    assert sizes is not None, "lowering has set the features of the state"
    reasons = {
        "it has no gradient": setting.gradients,
        "it caps no logits": setting.capped,
        "a memory above keeps some pairs for good, and its window has no gaps": setting.sifted,
        f"it supports at most {WIDEST} features and {WIDEST} numbers a head": max(sizes.head_dim, sizes.features) > WIDEST,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    return reason or size_obstacle(setting) or row_obstacle(setting) or gpu_obstacle(setting)


def _forms(parts: Mapping[str, Part]) -> tuple[Form, ...]:
    description = "one token against ring and state, which are written over, in one pass"
    step = Form(TRITON, description, _run_step, _step_obstacle, decode=True, missing=STEP.missing, refuses=True)
    description = "blocks of queries against the state before them, the pairs evicted since and the window, in one pass"
    return (step, Form(TRITON, description, _run, _obstacle, missing=JOINT.missing, refuses=True))


WINDOW_ABOVE_STATE = Pattern(
    nodes={
        "window": lambda part: isinstance(part, Window),
        "keys": lambda part: isinstance(part, FeatureMap),
        "state": lambda part: isinstance(part, StateMemory) and part.normalise,
        "read": lambda part: isinstance(part, Shared),
    },
    edges=(
        ("window", "keys", Kind.PAIRS),
        ("keys", "state", Kind.KEYS),
        ("window", "state", Kind.PAIRS),
        ("window", "read", Kind.PARTIAL),
        ("state", "read", Kind.PARTIAL),
    ),
    forms=_forms,
    leader="state",
    is_closed=True,
)
