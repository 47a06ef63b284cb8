"""LoLA in chunks as one step: a terraced window, the sparse cache that it feeds, the state below, and their read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from blocks.flow import Mapped, Pairs
from blocks.fused.given import Cache
from blocks.kernels import TRITON_PACKAGE, Kernel, needs_gpu
from blocks.legend import Int, Tensor, torch
from blocks.memories.sparse import Sparse
from blocks.memories.state import StateMemory, scaled
from blocks.memories.window import Window
from blocks.memories.window_above_state import to_write_over, weight_over
from blocks.operation import TRITON, Bound, Form, Kind, Pattern, Setting
from blocks.part import Part, State
from blocks.reads import Shared
from blocks.scores.relative_recall import RelativeRecall
from blocks.scores.self_recall import SelfRecall

WALKED = Kernel("blocks.fused.cascade", "walked", TRITON_PACKAGE)
MOST = 256
"""Pairs that compete for a place at once, of the cache and of a chunk."""
WIDEST = 128
"""Numbers a head: of wider ones the sums leave the registers."""


def _run(bound: Mapping[str, Bound], inputs: Mapping[str, Mapping[str, Any]]) -> list[tuple[Any, State]]:
    window, sparse, state, read = (bound[name] for name in ("window", "sparse", "state", "read"))
    terraced, cache, shared = window.part, sparse.part, read.part
    assert isinstance(terraced, Window)
    assert isinstance(cache, Sparse)
    assert isinstance(shared, Shared)
    tokens = window.call.tokens
    extended: Pairs = window.compute(lambda _: terraced.entries(window.call, inputs["window"]["pairs"]))
    query = window.call.turn(inputs["window"]["query"], terraced.turn)
    mapped: Mapped = inputs["state"]["features"]
    most = tokens.position.shape[1] + terraced.size - 1

    def asked(_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Features of the queries, of the keys that may fall and of those that are held, and a scale that has been taken out."""
        fallen = mapped.key(extended.each(lambda entries: entries[:, :most]))
        held = mapped.key(cache.pairs_of(sparse.call.state))
        return (*(scaled(mapped.query) if not state.call.shape.even else (mapped.query, None)), fallen, held)  # pyright: ignore

    features, log_scale, fallen, held = state.compute(asked)
    logits = inputs["read"]["weight"]
    weights = tuple(weight_over(one, state, logits, log_scale, features) for one in (window, sparse))
    summed = to_write_over(state.call)["state"]

    def answer(_: Any) -> tuple[Tensor, Tensor]:
        before = sparse.call.state
        given = Cache(before["key"], before["value"], held, before["position"])
        count = torch.full_like(tokens.position[:, 0], tokens.position.shape[1]) if tokens.valid is None else tokens.valid.sum(1)
        rows = torch.stack((tokens.position[:, 0], count), dim=1).to(torch.int32)
        entries = query, extended.key, extended.value, extended.position, features, fallen
        further = {"row_max": shared.asks_maximum, "relative": isinstance(cache.keep, RelativeRecall)}
        return WALKED(*entries, given, weights, summed, rows, terraced.size, **further)

    output, members = read.compute(answer)
    kept = sparse.compute(lambda _: _kept(members.long().transpose(1, 2), sparse.call.state, extended))
    carried = window.compute(lambda _: terraced.carried(window.call, extended))
    return [((None, None), carried), ((None, None), kept), ((None,), {"state": summed}), ((output,), {})]


def _kept(members: Int[Tensor, "B S H"], held: State, entries: Pairs) -> State:
    """What is held of the pairs at these places: first those that were held, then the entries."""
    batch, size, heads = members.shape
    row, head = (torch.arange(count, device=members.device) for count in (batch, heads))
    row, old = row[:, None, None], members < size
    among_held, among_entries = members.clamp(max=size - 1), (members - size).clamp(min=0)
    every = {"key": entries.key, "value": entries.value, "convolved": entries.convolved, "position": entries.position[..., None]}

    def chosen(name: str, before: Tensor) -> Tensor:
        after = every[name]
        new = after[row, among_entries, head // (heads // after.shape[2])]
        there = old.view(*old.shape, *[1] * (before.dim() - 3))
        return torch.where(there, before[row, among_held, head], new)

    return {name: chosen(name, before) for name, before in held.items()}


def _fits(window: Window, sparse: Sparse, state: StateMemory, setting: Setting) -> str | None:
    sizes = setting.shape
    assert sizes is not None, "lowering says what the state works on"
    reasons = {
        "it has no gradient": setting.gradients,
        "it walks one document a row": setting.documents,
        "it takes a window that moves on by chunks": window.shape != "terraced",
        "it keeps no running maximum for exponential features": sizes.exponential,
        "its state does not decay": state.gate.rank_of_decay != "none",
        "it scores by `self_recall` or `relative_recall`": type(sparse.keep) not in (SelfRecall, RelativeRecall),
        "window and cache turn their keys alike in it": window.turn.base != sparse.turn.base,
        "its cache has room": sparse.size == 0,
        f"at most {MOST} pairs compete in it": window.size + sparse.size > MOST,
        f"it has room for {WIDEST} numbers a head": sizes.head_dim > WIDEST,
        "it caps no logits": setting.capped,
        "a memory above keeps some pairs for good, and its window has no gaps": setting.sifted,
    }
    return next((reason for reason, holds in reasons.items() if holds), None) or needs_gpu(setting)


def _forms(parts: Mapping[str, Part]) -> tuple[Form, ...]:
    window, sparse, state = parts["window"], parts["sparse"], parts["state"]
    assert isinstance(window, Window)
    assert isinstance(sparse, Sparse)
    assert isinstance(state, StateMemory)
    says = "from chunk to chunk: what falls, which stay, and the answers, in one pass"
    return (Form(TRITON, says, _run, partial(_fits, window, sparse, state), missing=WALKED.missing, refuses=True),)


LOLA = Pattern(
    nodes={
        "window": lambda part: isinstance(part, Window),
        "sparse": lambda part: isinstance(part, Sparse),
        "state": lambda part: isinstance(part, StateMemory) and part.normalise,
        "read": lambda part: isinstance(part, Shared),
    },
    edges=(
        ("window", "sparse", Kind.PAIRS),
        ("sparse", "state", Kind.PAIRS),
        ("window", "read", Kind.PARTIAL),
        ("sparse", "read", Kind.PARTIAL),
        ("state", "read", Kind.PARTIAL),
    ),
    forms=_forms,
    asked="state",
    whole=True,
)
