"""A window, the state that it feeds and the read of the two, as one step: one softmax over pairs that are near and features of
those that are far, over one denominator. The head's output comes out at once, and no answer of either alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from blocks.flow import Mapped, Pairs, Tokens, repeat_heads
from blocks.kernels import TRITON_PACKAGE, Kernel, needs_gpu
from blocks.legend import Float, Tensor, torch
from blocks.memories.state import StateMemory, scaled
from blocks.memories.window import Window
from blocks.operation import TRITON, Bound, Form, Kind, Pattern, Setting
from blocks.part import Part, State
from blocks.reads import Shared

TOGETHER = Kernel("blocks.fused.joint", "together", TRITON_PACKAGE)
WIDEST = 256
"""Of heads and features: a block of wider ones does not fit a processor of the GPU."""


def _run(bound: Mapping[str, Bound], inputs: Mapping[str, Mapping[str, Any]]) -> list[tuple[Any, State]]:
    window, state, read = bound["window"], bound["state"], bound["read"]
    extended: Pairs = window.compute(_entries, window, inputs["window"]["pairs"])
    weights = {name: torch.nn.functional.logsigmoid(weight) for name, weight in inputs["read"]["weight"].items()}
    query = window.call.turn(inputs["window"]["query"], _window(window).turn)
    given = window, extended, inputs["state"]["features"], inputs["state"].get("decay"), weights
    asked, rest = state.compute(_features, state, *given)
    output, summed = read.compute(_together, query, extended, asked, rest, _shared(read).asks_maximum)
    carried = window.compute(lambda _: _window(window).carried(window.call, extended))
    return [((None, None), carried), ((None,), {"state": summed}), ((output,), {})]


def _entries(parameters: Any, window: Bound, pairs: Pairs) -> Pairs:
    return _window(window).entries(window.call, pairs)


def _features(
    parameters: Any,
    state: Bound,
    window: Bound,
    extended: Pairs,
    features: Mapped,
    decay: Tensor | None,
    weights: Mapping[str, Tensor],
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor | None, Tensor | None, Tensor, Any]]:
    """What the state asks and is asked with, its decay, the weight of the window over it, itself, and which entries have fallen."""
    tokens, shape, memory = state.call.tokens, state.call.shape, _window(window)
    most = tokens.position.shape[1] + (0 if memory.shape == "sliding" else memory.size - 1)
    key = features.key(extended.each(lambda entries: entries[:, :most]))
    query, none = features.query, features.query.new_zeros(())
    weight = weights.get(memory.called, none) - weights.get(_state(state).called, none)
    if not shape.even:
        query, log_scale = scaled(query)
        weight = weight - log_scale
    if decay is not None and tokens.valid is not None:
        decay = decay.masked_fill(~tokens.valid[..., None], 0.0)
    weight = weight.expand(query.shape[:3]) if weights or not shape.even else None
    asked = query, repeat_heads(key, shape.state_heads)
    return asked, (decay, weight, state.call.state["state"], fall_of(memory, extended, tokens))


def _together(
    parameters: Any,
    query: Float[Tensor, "B T H D"],
    extended: Pairs,
    asked: tuple[Tensor, Tensor],
    rest: tuple[Any, ...],
    row_max: bool,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B N F V"]]:
    return TOGETHER(query, extended.key, extended.value, *asked, *rest, row_max=row_max)


def fall_of(window: Window, extended: Pairs, tokens: Tokens) -> Any:
    """Which entries the state has at each token, as ``blocks.fused.joint.Fall`` says it."""
    from blocks.fused.joint import Fall

    held, size = window.held, window.size
    fallen, start, ends, count = tokens.once(("fall", window.shape, size), lambda: _tables(window, tokens))
    absent = (extended.position[:, :held] < 0).sum(1)
    # A terraced window has room for pairs that are in the state by now.
    first = absent if window.shape == "sliding" else absent.maximum(size - 1 - (tokens.position[:, 0] - 1) % size)
    reach, length = (1 if window.shape == "sliding" else size), tokens.position.shape[1]
    end = torch.full_like(first, length) if fallen is None else fallen[:, -1]
    rows = torch.stack((first, end, ends, count), dim=1).to(torch.int32)
    return Fall(held, reach, length + reach - 1, rows, fallen, start)


def _tables(window: Window, tokens: Tokens) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """What follows from the tokens: entries that have fallen with each, the first entry of each entry's document, that of the last
    token's, and how many tokens are real."""
    position, valid, segment = tokens.position, tokens.valid, tokens.extended_segment(window.held)
    length, size = position.shape[1], window.size
    token = torch.arange(length, device=position.device)
    count = torch.full_like(position[:, 0], length) if valid is None else valid.sum(1)
    fallen = None
    if window.shape == "terraced":
        fallen = size + token - position % size
    elif valid is not None:
        fallen = (token + 1).expand_as(position)
    last = (count - 1).clamp(min=0)[:, None]
    if fallen is not None and valid is not None:
        # Nothing falls at padding; a row of nothing else has what had fallen before.
        before = 0 if window.shape == "sliding" else size - 1 - (position[:, :1] - 1) % size
        fallen = torch.where(valid, fallen, torch.where(valid.any(1, keepdim=True), fallen.gather(1, last), before))
    start, ends = None, torch.zeros_like(count)
    if segment is not None:
        start = torch.searchsorted(segment.contiguous(), segment.contiguous())
        ends = torch.where(count > 0, start.gather(1, window.held + last)[:, 0], 0)
    fallen, start = (None if table is None else table.to(torch.int32).contiguous() for table in (fallen, start))
    return fallen, start, ends, count


def _window(bound: Bound) -> Window:
    assert isinstance(bound.part, Window)
    return bound.part


def _state(bound: Bound) -> StateMemory:
    assert isinstance(bound.part, StateMemory)
    return bound.part


def _shared(bound: Bound) -> Shared:
    assert isinstance(bound.part, Shared)
    return bound.part


def _fits(rank: str, shape: str, setting: Setting) -> str | None:
    """rank: of the state's decay; shape: of the window."""
    sizes = setting.shape
    if sizes is None or sizes.both_ways:
        return "it only looks back"
    reasons = {
        "it takes tokens by the block, and a step of decode has one": setting.one_token,
        "it keeps no running maximum for exponential features": sizes.exponential,
        "it has decay by the head below a sliding window, and no other": rank == "channel"
        or (rank != "none" and shape != "sliding"),
        "it caps no logits": setting.capped,
        f"it has room for {WIDEST} features and {WIDEST} numbers a head": max(sizes.head_dim, sizes.features) > WIDEST,
    }
    return next((reason for reason, holds in reasons.items() if holds), None) or needs_gpu(setting)


def _forms(parts: Mapping[str, Part]) -> tuple[Form, ...]:
    window, state = parts["window"], parts["state"]
    assert isinstance(window, Window)
    assert isinstance(state, StateMemory)
    fits = partial(_fits, state.gate.rank_of_decay, window.shape)
    says = "blocks of queries against the state before them, what has fallen since and the window, in one pass"
    return (Form(TRITON, says, _run, fits, missing=TOGETHER.missing, refuses=True),)


WINDOW_ABOVE_STATE = Pattern(
    nodes={
        "window": lambda part: isinstance(part, Window),
        "state": lambda part: isinstance(part, StateMemory) and part.normalise,
        "read": lambda part: isinstance(part, Shared),
    },
    edges=(
        ("window", "state", Kind.PAIRS),
        ("window", "read", Kind.PARTIAL),
        ("state", "read", Kind.PARTIAL),
    ),
    forms=_forms,
    asked="state",
    whole=True,
)
