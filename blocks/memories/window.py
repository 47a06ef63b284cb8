"""The last tokens, exactly: a window that slides, or one that moves on by whole chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from blocks.flow import Pairs, Partial, Tokens
from blocks.legend import Bool, Float, Int, Shape, Tensor, torch
from blocks.memories.base import Memory, Misplaced
from blocks.memories.candidates import Error, error_sums
from blocks.memories.stored_pairs import (
    Holding,
    RingSlot,
    by_age,
    by_place,
    entry_at,
    keep_present,
    pairs_of,
    place_of,
    state_of,
    write_at,
)
from blocks.operation import FLA, REFERENCE, TORCH, TRITON, Form, Kind, Port, Slot, State, row_obstacle
from blocks.pattern import RunningPart
from blocks.positions import Position
from blocks.softmax import dense, fla_forms, native_obstacle, native_step, native_step_obstacle, single, triton_forms, windowed
from blocks.softmax.dense import mask_bias
from blocks.tensors import accumulating, all_present, is_nowhere, take


@dataclass(frozen=True)
class Visible:
    """Which of the state's and the call's entries each token of the call sees, a rectangle of it at a time."""

    position: Int[Tensor, "B E"]
    segment: Int[Tensor, "B E"] | None
    past_length: int
    reach: Int[Tensor, "B T"] | None

    def __call__(self, tokens: slice, entries: slice) -> Bool[Tensor, "B t e"]:
        """Return the mask in which token t, at entry past_length + t, sees ``past_length`` entries, itself included, or itself and
        the ``reach`` entries before it."""
        entry = torch.arange(self.position.shape[1], device=self.position.device)
        back = entry[self.past_length :][tokens, None] - entry[entries]
        farthest = self.past_length - 1 if self.reach is None else self.reach[:, tokens, None]
        visible = (self.position[:, entries] >= 0)[:, None] & (back >= 0) & (back <= farthest)
        if self.segment is not None:
            visible = visible & (self.segment[:, self.past_length :][:, tokens, None] == self.segment[:, None, entries])
        return visible


Seen = Callable[[slice, slice], Tensor]
WindowAttention = Callable[[Tensor, Tensor, Pairs, Visible, float | None], Partial]
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Window(Holding):
    """Softmax over the last pairs, the current one included.

    sliding: exactly ``size`` pairs; one is evicted at each token, at t the pair of t - size. terraced: the token's own chunk of
    ``size`` tokens and the chunk before it; at the start of a chunk, all pairs of the chunk before the previous one are evicted at
    once. Chunks are counted from the first token of a document, by positions. If positions do not increase by one, the visible
    pairs of a token depend on where calls begin.
    """

    equation: ClassVar[str] = "o_t = Σ_s softmax_s(q_t·k_s / √D) v_s, t - size < s ≤ t; lse_t = log Σ_s exp(q_t·k_s / √D)"
    source: ClassVar[str] = "LoLCATs, arXiv:2410.10254; workshop paper, eq. 8; terraced: LoLA, eq. 14 (chunk-wise inference)"
    incidental: ClassVar[frozenset[str]] = Holding.incidental | {"shape"}
    kind: Literal["window"] = "window"
    size: PositiveInt = 64
    """Pairs that it holds, the current token's included; of a terraced window, the tokens of a chunk."""
    shape: Literal["sliding", "terraced"] = "sliding"
    """sliding: the last `size` pairs. terraced: the own chunk of `size` tokens, up to the current one, and the one before."""

    @property
    def is_sliding(self) -> bool:
        return self.shape == "sliding"

    @property
    def declared_size(self) -> int:
        return self.size

    @property
    def capacity(self) -> int:
        """The size, or two chunks."""
        return self.size if self.is_sliding else 2 * self.size

    def state(self, shape: Shape) -> dict[str, Slot]:
        return self.slots(shape, self.capacity, "ring")

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        return self.capacity

    @property
    def evicts_together(self) -> bool:
        return not self.is_sliding

    @property
    def evicted_at_once(self) -> int:
        return self.size if self.evicts_together else 1

    def problem_between(self, above: Sequence[Memory], below: Mapping[str, Memory], *, edges: bool) -> Iterator[Misplaced]:
        for name, memory in below.items() if self.evicts_together else ():
            if not memory.takes_several:
                remedy = f"`pairs -> {name}`" if edges else "put one of those below it"
                yield (
                    "a terraced window evicts many pairs at a token, which only a sparse cache or a state can receive; "
                    f"set `shape: sliding`, or {remedy}",
                    name if edges else ("shape",),
                )

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        """features: of the states below that sparse caches compare with the exact weights, by the number that this window sums."""
        return (*super().inputs(shape), Port("features", Kind.FEATURES, many=True, needed=False))

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        step, blocks = "one query against the ring of pairs", "blocks of queries against their own and the previous window"
        native, natively = ", by PyTorch's kernel", partial(_blocks, by_kernel=True)
        constants = self._constants(shape) | {"is_sliding": self.is_sliding}
        errors = {number.name: number.error for number in shape.numbers if number.error is not None}
        constants |= {"errors": errors, "logarithm": shape.exponential} if errors else {}
        output, one_token = partial(compute_window, **constants), partial(step_window, **constants, drops=self.drops)
        kernel = Form(FLA, "parallel_attn", partial(output, attention=_by_kernel), fla_forms.obstacle,
                      missing=fla_forms.ATTENTION.missing, refuses=True)  # fmt: skip
        kernels = (kernel,) if self.is_sliding else ()
        with_mass = Form(
            TRITON,
            "blocks of queries against their window, with its mass, in one pass",
            partial(output, attention=_with_mass),
            partial(triton_forms.obstacle, beside=next(iter(kernels), None)),
            missing=triton_forms.WITH_MASS.missing,
            refuses=True,
        )
        return (
            with_mass,
            *kernels,
            Form(REFERENCE, "all pairs of a call, masked", partial(output, attention=_attend)),
            Form(TORCH, step + native, partial(one_token, attention=native_step), native_step_obstacle, decode=True),
            Form(TORCH, step, partial(one_token, attention=single), row_obstacle, decode=True),
            Form(
                TORCH,
                "blocks of queries against their window" + native,
                partial(output, attention=natively),
                native_obstacle,
            ),
            Form(TORCH, blocks, partial(output, attention=_blocks)),
        )

    def forms_both_ways(self, shape: Shape) -> tuple[Form, ...]:
        output = partial(attend_around, **self._constants(shape))
        return (
            Form(REFERENCE, "all pairs of a call, masked", output),
            Form(TORCH, "blocks of queries against their own window", partial(output, blocks=True)),
        )

    def _constants(self, shape: Shape) -> dict[str, Any]:
        capped = {} if shape.softcap is None else {"softcap": shape.softcap}
        return {"size": self.size, "rotation": self.rotation} | capped

    def flops(self, shape: Shape, tokens: int) -> int:
        seen = self.size if self.is_sliding else 3 * self.size // 2
        seen = min(tokens, 2 * self.size - 1) if shape.both_ways else seen
        return 2 * seen * shape.heads * (shape.head_dim + shape.value_dim)

    def problem_both_ways(self) -> str | None:
        return None if self.is_sliding else "a terraced window evicts by chunks, so it is causal"


def compute_window(
    query: Float[Tensor, "B T H D"],
    pairs: Pairs,
    tokens: Tokens,
    state: State,
    features: Mapping[str, Tensor] = NOTHING,
    maps: Mapping[str, RunningPart] = NOTHING,
    *,
    attention: WindowAttention,
    size: int,
    is_sliding: bool,
    rotation: Position,
    softcap: float | None = None,
    errors: Mapping[str, Error] = NOTHING,
    logarithm: bool = False,
) -> tuple[Partial, Pairs, State]:
    """Return the outputs, the evicted pairs with their arrival (position -1: none), and the new state.

    query: rotated. pairs: one per token. errors: by the names of numbers of pairs, the errors that memories below score pairs by,
    summed while the window holds a pair. features, maps: by these names, features of queries, and the maps of keys, whose products
    are compared with exact weights. logarithm: features are logarithms.
    """
    capacity = size if is_sliding else 2 * size
    extended, segment = entries(state, pairs, tokens, rotation), tokens.extend_segment(capacity)
    visible = Visible(extended.position, segment, capacity, None if is_sliding else tokens.position % size + size)
    result = attention(query, extended.key, extended, visible, softcap)
    if errors:
        sums = sum_errors(errors, tokens, features, maps, query, extended, visible, logarithm)
        extended = replace(extended, numbers={**extended.numbers, **sums})
    evict = _evict_one_per_token if is_sliding else _evict_chunks
    return result, evict(extended, segment, tokens, size), keep_last(state, extended, tokens, capacity)


def entries(state: State, pairs: Pairs, tokens: Tokens, rotation: Position) -> Pairs:
    """Return the pairs of the state, the oldest first, followed by those of the call."""
    before = pairs_of(state, rotation).map_tensors(lambda ring: by_age(ring, tokens))
    return before.append(pairs.to_storage(rotation))


def keep_last(state: State, extended: Pairs, tokens: Tokens, capacity: int) -> State:
    """Return the new state: the last ``capacity`` pairs."""
    last_pairs, current = extended.map_tensors(lambda entries: tokens.tail(entries, capacity)), tokens.tail_is_current(capacity)
    if current is not None:
        last_pairs = replace(last_pairs, position=last_pairs.position.masked_fill(~current, -1))
    return state_of(last_pairs.map_tensors(lambda entries: by_place(entries, tokens)), state)


def step_window(
    query: Float[Tensor, "B 1 H D"],
    pairs: Pairs,
    tokens: Tokens,
    state: State,
    in_place: bool,
    features: Mapping[str, Tensor] = NOTHING,
    maps: Mapping[str, RunningPart] = NOTHING,
    *,
    attention: Callable[..., Partial],
    size: int,
    is_sliding: bool,
    rotation: Position,
    drops: bool,
    softcap: float | None = None,
    errors: Mapping[str, Error] = NOTHING,
    logarithm: bool = False,
) -> tuple[Partial, Pairs | None, State]:
    """``compute_window`` for one token, whose pair overwrites the oldest. The evicted pairs are None if none can be evicted."""
    capacity = size if is_sliding else 2 * size
    place, evicted, bias = place_of(tokens, capacity), None, None
    if not drops:
        evicted = find_evicted_pairs(state, tokens, pairs, place, size=size, is_sliding=is_sliding, rotation=rotation)
    carried = write_at(state, place, state_of(pairs.to_storage(rotation), state), in_place=in_place)
    if not is_sliding:
        bias = tokens.once(("two chunks", size, query.dtype), lambda: _two_chunks_bias(tokens, size, query.dtype))
    if errors:
        every = pairs_of(carried, rotation)
        seen = every.present if bias is None else every.present & ~bias[:, 0, 0].isneginf()
        carried |= sum_errors(errors, tokens, features, maps, query, every, lambda *_: seen[:, None], logarithm)
    position = carried["position"]
    # If each token adds its pair, windows of one size hold the same positions in all layers.
    full = pairs.tokens is tokens and tokens.once(("full", capacity), lambda: all_present(position))
    result = attention(query, carried["key"], carried["value"], None if full else position, bias, softcap)
    return result, evicted, carried


def find_evicted_pairs(
    state: State, tokens: Tokens, pairs: Pairs, place: RingSlot, *, size: int, is_sliding: bool, rotation: Position
) -> Pairs | None:
    """Return the pairs that are evicted at the only token of a call, if any can be. place: of this token."""
    if not is_sliding:
        return _find_evicted_chunk(state, tokens, size, rotation)
    evicted = {name: entry_at(ring, place) for name, ring in state.items()}
    known_present = pairs.tokens is not None and pairs.tokens.once(
        ("evicted present", size), lambda: all_present(evicted["position"])
    )
    return pairs_of(evicted, rotation, known_present=known_present)


def sum_errors(
    errors: Mapping[str, Error],
    tokens: Tokens,
    features: Mapping[str, Tensor],
    maps: Mapping[str, RunningPart],
    query: Tensor,
    every: Pairs,
    visible: Seen,
    logarithm: bool,
) -> dict[str, Tensor]:
    """Return the sums of errors, with those of the call's tokens."""
    sums = {}
    for name, error in errors.items():
        both = features[name], maps[name].map(every)
        new = error_sums(error, both, query, every.key, tokens, visible, logarithm=logarithm)
        sums[name] = every.numbers[name] + new
    return sums


def _find_evicted_chunk(state: State, tokens: Tokens, size: int, rotation: Position) -> Pairs | None:
    """Return the chunk before the last, where the only token of a call begins one: position -1 in the rows where it does
    not."""
    begins = tokens.once(("begins", size), lambda: tokens.position % size == 0)
    if is_nowhere(begins):
        return None
    index = (tokens.in_row() + torch.arange(size, device=begins.device)) % (2 * size)
    evicted = pairs_of({name: take(ring, index) for name, ring in state.items()}, rotation)
    return replace(keep_present(evicted, begins), arrival=torch.zeros_like(index), max_per_token=size)


def _two_chunks_bias(tokens: Tokens, size: int, dtype: torch.dtype) -> Float[Tensor, "B 1 1 W"]:
    """Return the bias that hides pairs of earlier chunks from the only token of a call. It sees its own chunk and the one
    before, in a ring of two chunks."""
    back = (tokens.in_row() - torch.arange(2 * size, device=tokens.position.device)) % (2 * size)
    return mask_bias(back <= tokens.position % size + size, accumulating(dtype))[:, None, None]


def attend_around(
    query: Float[Tensor, "B T H D"],
    pairs: Pairs,
    tokens: Tokens,
    *,
    size: int,
    rotation: Position,
    softcap: float | None = None,
    blocks: bool = False,
) -> tuple[Partial, None]:
    """Softmax over the pairs nearer than ``size``, before and after each token (Latte, section 4.4). Nothing is evicted."""
    key = pairs.rotate(rotation)
    if not blocks:
        entry = torch.arange(query.shape[1], device=query.device)
        visible = pairs.present[:, None] & ((entry[:, None] - entry).abs() < size)
        if tokens.segment is not None:
            visible = visible & (tokens.segment[:, :, None] == tokens.segment[:, None])
        return dense(query, key, pairs.value, visible, softcap), None

    # A window of 2·size - 1 entries that ends size - 1 entries ahead of its query.
    def around(entries: Tensor) -> Tensor:
        ends = entries[:, :0].new_zeros(entries.shape[0], 2 * size - 1, *entries.shape[2:])
        return torch.cat((ends[:, :size], entries, ends[:, size:]), dim=1)

    segment = None if tokens.segment is None else around(tokens.segment)
    arguments = around(key), around(pairs.value), around(pairs.present), segment, 2 * size - 1
    return windowed(query, *arguments, query_segment=tokens.segment, softcap=softcap), None


def _evict_one_per_token(extended: Pairs, segment: Tensor | None, tokens: Tokens, size: int) -> Pairs:
    length = tokens.position.shape[1]
    evicted = extended.map_tensors(lambda entries: entries[:, :length])
    position = evicted.position
    if segment is not None:
        position = position.masked_fill(segment[:, :length] != segment[:, size:], -1)
    if tokens.valid is not None:
        position = position.masked_fill(~tokens.valid, -1)
    return replace(evicted, position=position)


def _evict_chunks(extended: Pairs, segment: Tensor | None, tokens: Tokens, size: int) -> Pairs:
    """Return the evicted pairs of a terraced window: a chunk is evicted when the second chunk after it begins. Among as many
    columns as a chunk has tokens, at most one begins a chunk."""
    length = tokens.position.shape[1]
    begins = (tokens.position % size == 0) & (tokens.position >= 2 * size)
    if tokens.valid is not None:
        begins = begins & tokens.valid
    missing, token = -length % size, torch.arange(length, device=begins.device)
    column = torch.nn.functional.pad(torch.where(begins, token, length), (0, missing), value=length)
    column = column.unflatten(1, (-1, size)).amin(2)
    # Where no chunk begins, nothing is evicted, and the arrival is the last column.
    last = torch.arange(size, length + missing + 1, size, device=begins.device).clamp(max=length) - 1
    arrival = torch.minimum(column, last)
    entry = (arrival[..., None] + torch.arange(size, device=begins.device)).flatten(1)
    present, arrival = (tensor.repeat_interleave(size, dim=1) for tensor in (column < length, arrival))
    if segment is not None:
        present = present & (take(segment, entry) == take(segment, arrival + 2 * size))
    evicted = keep_present(extended.map_tensors(lambda entries: take(entries, entry)), present)
    return replace(evicted, arrival=arrival, max_per_token=size)


def _attend(query: Tensor, key: Tensor, pairs: Pairs, visible: Visible, softcap: float | None) -> Partial:
    return dense(query, key, pairs.value, visible(slice(0, query.shape[1]), slice(0, key.shape[1])), softcap)


def _by_kernel(query: Tensor, key: Tensor, pairs: Pairs, visible: Visible, softcap: float | None) -> Partial:
    return fla_forms.attend_in_window(query, key, pairs.value, visible.position >= 0, visible.segment, visible.past_length)


def _with_mass(query: Tensor, key: Tensor, pairs: Pairs, visible: Visible, softcap: float | None) -> Partial:
    return triton_forms.attend_in_window(
        query, key, pairs.value, visible.position, visible.segment, visible.past_length, visible.reach
    )


def _blocks(
    query: Tensor, key: Tensor, pairs: Pairs, visible: Visible, softcap: float | None, *, by_kernel: bool = False
) -> Partial:
    arguments = pairs.value, pairs.present, visible.segment, visible.past_length, visible.reach
    return windowed(query, key, *arguments, softcap=softcap, by_kernel=by_kernel)
