"""LoLA in chunks as one step: a terraced window, the sparse cache that it feeds, the state below, and their read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from blocks.feature_maps.base import FeatureMap
from blocks.flow import Pairs, Tokens
from blocks.fused.arguments import Cache, Chunks, Scores
from blocks.kernels import TRITON_PACKAGE, Kernel, gpu_obstacle
from blocks.legend import Bool, Int, Tensor, torch
from blocks.memories.sparse import Sparse
from blocks.memories.state import StateMemory, scale_to_one
from blocks.memories.stored_pairs import pairs_of
from blocks.memories.window import Window, entries, keep_last
from blocks.memories.window_above_state import document_starts, to_write_over, weight_over
from blocks.operation import TRITON, Form, Kind, Setting, State, size_obstacle
from blocks.part import Part
from blocks.pattern import Pattern, RunningPart
from blocks.reads import Shared
from blocks.scores.absolute_error import AbsoluteError
from blocks.scores.base import Contenders, Score, places
from blocks.scores.overestimate import Overestimate
from blocks.scores.relative_recall import RelativeRecall
from blocks.scores.self_recall import SelfRecall
from blocks.scores.squared_error import SquaredError
from blocks.tensors import accumulating, repeat_heads

WALK = Kernel("blocks.fused.lola", "walk_pairs", TRITON_PACKAGE)
MOST = 256
"""The largest number of candidates for the cache at once: the pairs of the cache and of a chunk."""
WIDEST = 128
"""The largest number of coordinates per head. For more, the sums do not fit in the registers."""
KNOWN = (SelfRecall, RelativeRecall, SquaredError, AbsoluteError, Overestimate)
"""The scores that the kernel computes because they depend on the state or the window. All other scores are computed before the
launch."""


def _run(parts: Mapping[str, RunningPart], inputs: Mapping[str, Mapping[str, Any]]) -> list[tuple[Any, State]]:
    window, sparse, state, read = (parts[name] for name in ("window", "sparse", "state", "read"))
    terraced, cache, shared = window.part, sparse.part, read.part
    assert isinstance(terraced, Window)
    assert isinstance(cache, Sparse)
    assert isinstance(shared, Shared)
    tokens, size, keep = window.call.tokens, terraced.size, cache.keep
    extended: Pairs = window.compute(lambda _: entries(window.call.state, inputs["window"]["pairs"], tokens, terraced.rotation))
    query = inputs["window"]["query"]
    mapped, keys = inputs["state"]["features"], parts["keys"]
    # Features of all entries are needed only for scores that depend on the window.
    entry_count = extended.position.shape[1] if keep.reads == "window" else tokens.position.shape[1] + size - 1
    evicted = keys.map(extended.map_tensors(lambda entries: entries[:, :entry_count]))
    of_cache = keys.map(pairs_of(sparse.call.state, cache.rotation))
    as_they_are = state.call.shape.even or state.call.shape.exponential
    features, log_scale = state.compute(lambda _: (mapped, None) if as_they_are else scale_to_one(mapped))
    logits = inputs["read"]["weight"]
    weights = tuple(weight_over(memory, state, logits, log_scale, features) for memory in (window, sparse))
    summed, numbers = to_write_over(state.call), _sum_of(window)
    chunk_starts, rows, start, ends = tokens.once(("chunk starts", size), lambda: _chunk_starts(tokens, size))

    def run(_: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        before, worth, resolution, length = sparse.call.state, None, None, None
        if numbers is not None:
            worth = torch.cat((before[numbers], extended.numbers[numbers]), dim=1).transpose(1, 2).float().contiguous()
            length = None if log_scale is None else log_scale.exp()
        elif keep.reads == "pair":
            worth, resolution = _worth(keep, before, extended, sparse.call.place)
        cache = Cache(before["key"], before["value"], of_cache, before["position"])
        call_inputs = query, extended.key, extended.value, extended.position, features, evicted
        passing = inputs["state"].get("decay"), summed["state"], summed.get("maximum")
        chunks, scores = Chunks(size, chunk_starts, rows, start), Scores(_score_kind(keep), worth, resolution, length)
        return (*WALK(*call_inputs, cache, weights, *passing, chunks, scores, row_max=shared.asks_maximum), worth)

    output, members, worth = read.compute(run)
    if numbers is not None:
        assert worth is not None
        extended = replace(extended, numbers={**extended.numbers, numbers: worth[:, :, cache.size :].transpose(1, 2)})
    cache_state = sparse.compute(lambda _: _keep(members.long().transpose(1, 2), sparse.call.state, extended, ends))
    carried = window.compute(lambda _: keep_last(window.call.state, extended, tokens, terraced.capacity))
    return [((None, None), carried), ((None, None), cache_state), ((None,), {}), ((None,), summed), ((output,), {})]


def _chunk_starts(tokens: Tokens, size: int) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return the first token of each chunk of the call, as in ``blocks.fused.lola``, the number of chunks and of real
    tokens, the first entry of each entry's document, and that of the last token's document."""
    position, valid = tokens.position, tokens.valid
    start, ends, count = document_starts(tokens, 2 * size)
    token = torch.arange(position.shape[1], device=position.device)
    begins = (position % size == 0) | (token == 0)
    if valid is not None:
        begins = begins & valid
    chunk_starts = torch.where(begins, token, position.shape[1]).sort(dim=1).values
    rows = torch.stack((begins.sum(1), count), dim=1)
    return chunk_starts.to(torch.int32), rows.to(torch.int32), None if start is None else start.to(torch.int32), ends


def _sum_of(window: RunningPart) -> str | None:
    """Return the name of the errors that belong to each pair, or None if the cache does not use them."""
    return next((number.name for number in window.call.shape.numbers if number.error is not None), None)


def _score_kind(keep: Score) -> str:
    """Return the kind of the score for ``blocks.fused.arguments.Scores``."""
    if keep.reads == "pair":
        return "place" if keep.by_position else "pair"
    return next(score.model_fields["kind"].default for score in KNOWN if type(keep) is score)


def _worth(keep: Score, cache: State, entries: Pairs, place: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
    """Return the scores of the pairs in the cache and of the entries, B H S+E, if they depend on neither state nor window, and
    their rounding errors. A score that depends only on positions is replaced by its rank, which is exact in float32."""
    heads = cache["position"].shape[2]
    position = torch.cat((cache["position"], entries.position[..., None].expand(-1, -1, heads)), dim=1)
    value = cache["value"].new_empty(*position.shape, 0)
    if not keep.by_position:
        value = torch.cat((cache["value"], repeat_heads(entries.value, heads)), dim=1)
        value = value.to(accumulating(value.dtype))
    contenders = Contenders(position, value, distance=None, norm=None, errors=None, place=place)
    score = keep.score(contenders)
    if keep.by_position:
        return places(score).transpose(1, 2).float().contiguous(), None
    resolution = keep.resolution(contenders, score)
    return score.transpose(1, 2).float().contiguous(), resolution.transpose(1, 2).float().contiguous()


def _keep(members: Int[Tensor, "B S H"], cache: State, entries: Pairs, ends: Int[Tensor, " B"]) -> State:
    """Return the pairs at these places, as the new contents of the cache. Places count the old contents of the cache first,
    then the entries. ends: the first entry of the document at the end of each row; 0 if that document continues from an earlier
    call."""
    batch, size, heads = members.shape
    row, head = (torch.arange(count, device=members.device) for count in (batch, heads))
    row, old = row[:, None, None], members < size
    cache_index, entry_index = members.clamp(max=size - 1), (members - size).clamp(min=0)
    every = {"key": entries.key, "value": entries.value, "position": entries.position[..., None], **entries.numbers}
    if entries.convolved is not None:
        every["convolved"] = entries.convolved
    first = ends[:, None, None]
    present: Bool[Tensor, "B S H"] = torch.where(old, first == 0, entry_index >= first)

    def choose(name: str, before: Tensor) -> Tensor:
        after = every[name]
        new = after[row, entry_index, head // (heads // after.shape[2])]
        was_cached = old.view(*old.shape, *[1] * (before.dim() - 3))
        return torch.where(was_cached, before[row, cache_index, head], new.to(before.dtype))

    cache_state = {name: choose(name, before) for name, before in cache.items()}
    return cache_state | {"position": cache_state["position"].masked_fill(~present, -1)}


def _obstacle(window: Window, sparse: Sparse, setting: Setting) -> str | None:
    sizes = setting.shape
    assert sizes is not None, "lowering has set the features of the state"
    keep = sparse.keep
    unknown = None if type(keep) in KNOWN else keep.reads
    reasons = {
        "it has no gradient": setting.gradients,
        "it supports only a window that moves by chunks": window.is_sliding,
        "of scores that read the state it supports `self_recall` and `relative_recall`": unknown == "state",
        "of scores that read the window it supports `squared_error`, `absolute_error` and `overestimate`": unknown == "window",
        "window and cache must rotate their keys alike": window.rotation.base != sparse.rotation.base,
        "it needs a cache with a size above 0": sparse.size == 0,
        f"at most {MOST} pairs compete in it": window.size + sparse.size > MOST,
        f"it supports at most {WIDEST} numbers a head": sizes.head_dim > WIDEST,
        "it caps no logits": setting.capped,
        "a memory above keeps some pairs for good, and its window has no gaps": setting.sifted,
    }
    return next((reason for reason, holds in reasons.items() if holds), None) or size_obstacle(setting) or gpu_obstacle(setting)


def _forms(parts: Mapping[str, Part]) -> tuple[Form, ...]:
    window, sparse = parts["window"], parts["sparse"]
    assert isinstance(window, Window)
    assert isinstance(sparse, Sparse)
    description = "from chunk to chunk: evicted pairs, kept pairs and outputs, in one pass"
    return (Form(TRITON, description, _run, partial(_obstacle, window, sparse), missing=WALK.missing, refuses=True),)


LOLA = Pattern(
    nodes={
        "window": lambda part: isinstance(part, Window),
        "sparse": lambda part: isinstance(part, Sparse),
        "keys": lambda part: isinstance(part, FeatureMap),
        "state": lambda part: isinstance(part, StateMemory) and part.normalise,
        "read": lambda part: isinstance(part, Shared),
    },
    edges=(
        ("window", "sparse", Kind.PAIRS),
        ("sparse", "keys", Kind.PAIRS),
        ("keys", "state", Kind.KEYS),
        ("sparse", "state", Kind.PAIRS),
        ("window", "read", Kind.PARTIAL),
        ("sparse", "read", Kind.PARTIAL),
        ("state", "read", Kind.PARTIAL),
    ),
    forms=_forms,
    leader="state",
    is_closed=True,
)
