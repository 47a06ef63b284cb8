"""A window and the state below it as one differentiable function of tensors. It launches ``blocks.fused.window_and_state``.

No tensor grows with the square of the length, and no intermediate state is kept: the backward computes the states again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from blocks.fused import window_and_state as forward
from blocks.fused import window_and_state_backward as backward
from blocks.fused.arguments import Evictions
from blocks.fused.tiles import parts, products_of, width
from blocks.kernels import clamp_log_decay
from blocks.legend import Float, Int
from blocks.tensors import in_all_rows, take

ROWS = 32
"""Entries whose gradient is computed at once. For more of them, the sums do not fit in the registers."""
BY_FEATURE = 32
"""Tokens of a block with a decay per feature: pairs within a block are then multiplied one by one."""


Decays = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
"""``decay``, ``clocks``, ``decay_now`` and ``clocks_now`` of the kernel: decays of the entries, per head or per feature, then
those of the tokens."""


def attend_jointly(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B E K D"],
    value: Float[Tensor, "B E K D"],
    query_features: Float[Tensor, "B T H F"],
    key_features: Float[Tensor, "B e N F"],
    log_decay: Float[Tensor, "B T N"] | Float[Tensor, "B T N F"] | None,
    weight: Float[Tensor, "B T H"] | None,
    state: Float[Tensor, "B N F V"],
    evictions: Evictions,
    *,
    row_max: bool = False,
    block: int | None = None,
) -> tuple[Float[Tensor, "B T H D"], Float[Tensor, "B N F V"]]:
    """Return the head's output, and the state after the last token.

    weight: the logarithm of the factor of the window's mass. block: tokens that one program computes; None: as many as fit.
    """
    inputs = (states.contiguous() for states in (query, key, value, query_features, key_features))
    block = block or _block(query, query_features)
    if log_decay is not None:
        log_decay = clamp_log_decay(log_decay)
        block = min(block, BY_FEATURE) if log_decay.dim() == 4 else block
    wide = weight is not None and weight.requires_grad and torch.is_grad_enabled()
    return _AttendJointly.apply(*inputs, log_decay, weight, state.contiguous(), evictions, row_max, block, wide)  # pyright: ignore[reportReturnType]


def _block(query: Tensor, features: Tensor) -> int:
    largest = max(width(query.shape[-1]), width(features.shape[-1]))
    block = 64 if largest <= 64 or (largest <= 128 and query.element_size() == 2) else 32
    return min(block, width(query.shape[1]))


class _AttendJointly(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, query_features: Tensor, key_features: Tensor,
        log_decay: Tensor | None, weight: Tensor | None, state: Tensor, evictions: Evictions, row_max: bool, block: int, wide: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """wide: keep the output in float32. Rounding it to bfloat16 would add an error to the weight's gradient at every token,
        up to half of a gradient whose terms nearly cancel."""
        sizes = _Sizes.from_tensors(query, key, query_features, key_features, evictions, row_max, block)
        decay = _decays(log_decay, sizes.count, block, evictions)
        laid, last = _sum_up(sizes, key_features, value, decay, evictions, state)
        output = torch.empty_like(query, dtype=torch.float32 if wide else query.dtype)
        statistics = [_rows(query) for _ in range(3)]
        place = torch.empty(query.shape[:3], dtype=torch.int32, device=query.device)
        forward.compute_output[sizes.of_queries](
            query, key, value, query_features, key_features, *decay, weight, evictions.evicted, evictions.start, evictions.rows,
            *laid, output, *statistics, place, *sizes.lengths, evictions.past_length, sizes.scale, *_strides(weight),
            **sizes.blocks(),
        )  # fmt: skip
        saved = (query, key, value, query_features, key_features, *decay, weight, state, last, output, *statistics, place)
        ctx.save_for_backward(*saved)
        ctx.evictions, ctx.sizes = evictions, sizes
        return output.to(query.dtype), last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, of_last: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore
        query, key, value, query_features, key_features, *others = ctx.saved_tensors
        decay, (weight, state, last, output, *statistics, place) = tuple(others[:4]), others[4:]
        evictions, sizes = ctx.evictions, ctx.sizes
        mass_of_all, share, largest = statistics
        upstream = upstream.contiguous()
        even = (upstream.float() * output.float()).sum(-1)
        of_last = torch.zeros_like(last) if of_last is None else of_last.contiguous()
        laid, _ = _sum_up(sizes, key_features, value, decay, evictions, state)
        tables = *decay, weight, evictions.evicted, evictions.start, evictions.rows
        arrived = upstream, mass_of_all, share, even, largest, place
        of_query, of_query_features, of_weight = torch.empty_like(query), torch.empty_like(query_features), _rows(query)
        backward.of_queries[sizes.of_queries](
            query, key, value, key_features, *tables, *laid, *arrived, of_query, of_query_features, of_weight,
            *sizes.lengths, evictions.past_length, sizes.scale, *_strides(weight), **sizes.blocks(),
        )  # fmt: skip
        of_state = torch.empty_like(state)
        backward.of_states[sizes.of_tiles](
            query_features, upstream, share, even, *decay, evictions.evicted, evictions.start, evictions.rows, of_last, *laid,
            of_state,
            query.shape[1], key.shape[1], sizes.count, sizes.count * sizes.block, evictions.reach, **sizes.tiles(of_keys=False),
        )  # fmt: skip
        of_key, of_value, of_key_features = (torch.empty_like(tensor) for tensor in (key, value, key_features))
        backward.of_pairs[sizes.of_pairs](
            query, key, value, query_features, key_features, *tables, *laid, *arrived, of_weight, of_key, of_value,
            of_key_features, *sizes.lengths, evictions.past_length, evictions.reach, sizes.scale, *_strides(weight),
            ROWS=min(sizes.block, ROWS), **sizes.blocks(),
        )  # fmt: skip
        of_decay = None
        if any(tensor is not None for tensor in decay):
            query_terms = (query_features * of_query_features).unflatten(2, (state.shape[1], -1)).sum(3)
            evicted_terms, last_terms = key_features * of_key_features, (of_last * last).sum(3)
            if decay[1] is None:
                query_terms, evicted_terms, last_terms = (terms.sum(-1) for terms in (query_terms, evicted_terms, last_terms))
            passed = _without_evicted(query_terms, evicted_terms, evictions)
            of_decay = passed.flip(1).cumsum(1).flip(1) + last_terms[:, None]
        of_weight = None if weight is None else of_weight
        return of_query, of_key, of_value, of_query_features, of_key_features, of_decay, of_weight, of_state, None, None, None, None


@dataclass(frozen=True)
class _Sizes:
    """The sizes that all launches share. count: number of blocks before which the state is stored."""

    batch: int
    heads: tuple[int, int, int]
    dims: tuple[int, int]
    lengths: tuple[int, ...]
    count: int
    block: int
    row_max: bool
    dtype: torch.dtype

    @staticmethod
    def from_tensors(
        query: Tensor, key: Tensor, query_features: Tensor, key_features: Tensor, evictions: Evictions, row_max: bool, block: int
    ) -> _Sizes:
        batch, tokens, heads, dim = query.shape
        # If several entries are evicted at a token, all of them may be evicted before the first token of a block.
        count = parts(evictions.entries, block) if evictions.reach == 1 else evictions.entries // block + 1
        lengths = tokens, key.shape[1], key_features.shape[1], count, count * block
        heads_of = heads, key.shape[2], key_features.shape[2]
        return _Sizes(batch, heads_of, (dim, query_features.shape[-1]), lengths, count, block, row_max, query.dtype)

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.dims[0])

    @property
    def of_queries(self) -> tuple[int, int]:
        return parts(self.lengths[0], self.block), self.batch * self.heads[0]

    @property
    def of_pairs(self) -> tuple[int, int]:
        return parts(self.lengths[1], min(self.block, ROWS)), self.batch * self.heads[1]

    @property
    def of_tiles(self) -> tuple[int, int]:
        tiles = [parts(size, width(size, 64)) for size in self.dims]
        return tiles[0] * tiles[1], self.batch * self.heads[2]

    def blocks(self) -> dict[str, Any]:
        """Return the constants of kernels that process a block of queries or pairs. A matrix of a block has at most 2 ** 13
        numbers."""
        columns = width(self.dims[0])
        features = width(self.dims[1], min(64, 2**13 // columns))
        return self._constants(self.heads) | {"DB": columns, "FB": features, "ROW_MAX": self.row_max}

    def tiles(self, *, of_keys: bool) -> dict[str, Any]:
        """Return the constants of kernels that process a tile of a state."""
        constants = self._constants(self.heads) | {"FB": width(self.dims[1], 64), "VB": width(self.dims[0], 64)}
        del constants["H" if of_keys else "K"]
        return constants

    def _constants(self, heads: tuple[int, int, int]) -> dict[str, Any]:
        names = {"H": heads[0], "K": heads[1], "N": heads[2], "D": self.dims[0], "F": self.dims[1], "BLOCK": self.block}
        return names | {"PRECISION": products_of(self.dtype)[1]}


def _sum_up(
    sizes: _Sizes, key_features: Tensor, value: Tensor, decay: Decays, evictions: Evictions, state: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return the state before each block, its mass, and the state after the last token."""
    batch, heads, features, columns = state.shape
    laid = state.new_empty(batch, heads, sizes.count, features, columns - 1, dtype=products_of(sizes.dtype)[0])
    mass, last = state.new_empty(laid.shape[:-1]), torch.empty_like(state)
    _, entries, mapped, count, steps = sizes.lengths
    forward.sum_up[sizes.of_tiles](
        key_features, value, *decay[:2], evictions.start, evictions.rows, state, laid, mass, last, mapped, entries, count, steps,
        **sizes.tiles(of_keys=True),
    )  # fmt: skip
    return (laid, mass), last


def _decays(log_decay: Tensor | None, count: int, block: int, evictions: Evictions) -> Decays:
    """Return the decays in the layout of ``blocks.fused.window_and_state``, padded to all entries of all blocks."""
    if log_decay is None:
        return None, None, None, None
    missing, axes = count * block - log_decay.shape[1], log_decay.dim() - 2
    filled = torch.nn.functional.pad(log_decay, (0, 0) * axes + (0, missing))
    if evictions.reach == 1:
        entries = tokens = filled.unflatten(1, (count, block)).cumsum(2).flatten(1, 2).contiguous()
    else:
        entries, tokens = _decays_of_groups(filled, log_decay.shape[1], count, block, evictions)
    return (entries, None, tokens, None) if axes == 1 else (None, entries, None, tokens)


def _decays_of_groups(
    log_decay: Float[Tensor, "B S *N"], length: int, count: int, block: int, evictions: Evictions
) -> tuple[Float[Tensor, "B S *N"], Float[Tensor, "B S *N"]]:
    """Return the decays of entries and tokens below a terraced window. The entries of a block may then be evicted at tokens
    that are a chunk apart.

    They are differences of sums over the whole text, which are computed in float64 for that reason.
    """
    assert evictions.evicted is not None
    clock = log_decay.cumsum(1, dtype=torch.float64)
    entries, tokens = take(clock, _evicting_tokens(evictions, count * block)), clock
    last = entries[:, block - 1 :: block][:, :-1]
    before = torch.nn.functional.pad(last, (0, 0) * (log_decay.dim() - 2) + (1, 0))
    first = torch.arange(0, count * block, block, device=clock.device).clamp(max=length - 1)
    base = take(before, evictions.evicted[:, first] // block)

    def since(start: Tensor, clock: Tensor) -> Tensor:
        return (clock.unflatten(1, (count, block)) - start[:, :, None]).flatten(1, 2).to(log_decay.dtype)

    return since(before, entries), since(base, tokens)


def _evicting_tokens(evictions: Evictions, count: int) -> Int[Tensor, "B e"]:
    """Return the token at which each of the first entries is evicted; the last token for entries that are not evicted."""
    assert evictions.evicted is not None
    entry = torch.arange(count, device=evictions.evicted.device, dtype=evictions.evicted.dtype).expand(
        evictions.evicted.shape[0], -1
    )
    return torch.searchsorted(evictions.evicted, entry.contiguous(), right=True).clamp(max=evictions.evicted.shape[1] - 1)


def _without_evicted(
    query_terms: Float[Tensor, "B T *N"], evicted_terms: Float[Tensor, "B e *N"], evictions: Evictions
) -> Float[Tensor, "B T *N"]:
    """Return the terms of each token's query, minus the terms of the entries that are evicted at that token."""
    if evictions.reach == 1:
        return query_terms - evicted_terms
    index = _evicting_tokens(evictions, evicted_terms.shape[1])
    rows = in_all_rows(index, query_terms.shape[1]).flatten()
    return query_terms.flatten(0, 1).index_add(0, rows, evicted_terms.flatten(0, 1), alpha=-1).view_as(query_terms)


def _rows(query: Tensor) -> Tensor:
    return torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)


def _strides(weight: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0) if weight is None else weight.stride()
