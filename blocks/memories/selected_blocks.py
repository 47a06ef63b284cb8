"""Softmax attention over the own block of each query and the earlier blocks that it chooses: block attention with a selection."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from blocks.flow import Pairs, Partial
from blocks.legend import Float, Int, Shape, Tensor, torch
from blocks.memories.blocks import Blocks, average_blocks, choose_blocks, locate_blocks, sum_earlier_blocks
from blocks.memories.full import append, find_window
from blocks.operation import REFERENCE, TORCH, Call, Form, Slot, State
from blocks.part import Parameters
from blocks.softmax import dense
from blocks.softmax.dense import ROWS, cap, masked_softmax
from blocks.tensors import accumulating


class SelectedBlocks(Blocks):
    """Softmax over the pairs of a query's own block and of the ``count`` earlier blocks with the highest scores.

    All pairs are stored, and the state grows by one pair per token and one mean per block. Where a query has at most ``count``
    earlier blocks, this is ``full``. The choice has no gradient.
    """

    equation: ClassVar[str] = (
        "o_t = Σ_s softmax_s(q_t·k_s / √D) v_s, s ≤ t in the block of t or in a chosen one: the earlier blocks b with the `count` "
        "largest scores q_t·k′_b, k′_b the mean of the block's rotated keys; or, over the query heads h of a key head, "
        "Σ_h softmax_b(q_th·k′_b / √D), with the softmax over all blocks that end at t or before"
    )
    source: ClassVar[str] = (
        "Lu et al. 2025, arXiv:2502.13189 (MoBA), eq. 2 to 6; scores `share`: Yuan et al. 2025, arXiv:2502.11089 (NSA), section "
        "3.3.2, with means for the learned compression"
    )
    incidental: ClassVar[frozenset[str]] = Blocks.incidental | {"count", "scores"}
    exact: ClassVar[bool] = True
    kind: Literal["selected_blocks"] = "selected_blocks"
    count: PositiveInt = 3
    """Earlier blocks that a query sees beside its own block."""
    scores: Literal["product", "share"] = "product"
    """product: of the query and the mean of a block's keys; each query head chooses for itself, as in MoBA. share: softmax over
    these products, summed over the query heads of a key head, which choose together. The softmax is over all blocks that are
    complete: at the last token of a block, its own block is among them. With a ``count`` of 2 or more they always choose the first
    block that they see and the newest earlier one, as in NSA."""

    def state_after(self, shape: Shape, tokens: int) -> dict[str, Slot]:
        """Return the state after this many tokens. Keys are stored rotated."""
        mean, pair = (shape.key_heads, shape.head_dim), (tokens, shape.key_heads)
        slots = {"key": Slot((*pair, shape.head_dim), "pairs"), "value": Slot((*pair, shape.value_dim), "pairs")}
        slots["position"] = Slot((tokens,), "int64", -1, order="first")
        return slots | {"mean": Slot((tokens // self.size, *mean), "state", every=self.size), "sum": Slot(mean, "state")}

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        return tokens

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        one_query = "one query against the pairs of its blocks"
        return (
            Form(REFERENCE, f"{one_query}, token by token", partial(self.compute_output, attend=attend_by_query)),
            Form(TORCH, one_query, partial(self.compute_output, attend=attend_by_query), decode=True),
            Form(TORCH, "blocks of 512 queries, masked", partial(self.compute_output, attend=attend_masked)),
        )

    def flops(self, shape: Shape, tokens: int) -> int:
        blocks = tokens // self.size
        pairs = min(blocks, self.count) * self.size + tokens % self.size + 1
        return 2 * shape.heads * (pairs * (shape.head_dim + shape.value_dim) + blocks * shape.head_dim)

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """Return the mean over the tokens. Masked pairs are not counted."""
        (blocks, behind), size = divmod(tokens, self.size), self.size
        own_pairs = (blocks * size * (size + 1) + behind * (behind + 1)) // 2
        pairs = own_pairs + size * sum_earlier_blocks(tokens, size, self.count)
        products = pairs * (shape.head_dim + shape.value_dim) + sum_earlier_blocks(tokens, size) * shape.head_dim
        return 2 * shape.heads * products // max(1, tokens)

    def compute_output(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs, attend: Any
    ) -> tuple[tuple[Partial], State]:
        """Compute the partial attention. attend: the form."""
        state, shape = call.state, call.shape
        new = pairs.rotate(self.rotation)
        key, value = append(state["key"], new), append(state["value"], pairs.value)
        position, segment, last, new_position = self.enter(call, pairs)
        ends, block, start, first, place = locate_blocks(position, segment, self.size)
        means, last_means, total = average_blocks(
            state["mean"], state["sum"], new.detach(), position, ends, block, first, last, self.size
        )
        columns, window = (position, ends, block, start, first, place), find_window(position, pairs, call)
        options = {"softcap": shape.softcap, "by_share": self.scores == "share"}
        result = attend(query, key, value, means, *columns, self.size, self.count, *window, **options)
        return (result,), {"key": key, "value": value, "position": new_position, "mean": last_means, "sum": total}


def attend_by_query(
    query: Float[Tensor, "B T H D"], key: Float[Tensor, "B S K D"], value: Float[Tensor, "B S K V"],
    means: Float[Tensor, "B M K D"], position: Int[Tensor, "B S"], ends: Int[Tensor, "B M"], block: Int[Tensor, "B S"],
    start: Int[Tensor, "B S"], first: Int[Tensor, "B S"], place: Int[Tensor, "B S"], size: int, count: int,
    window_place: Int[Tensor, "B S"] | None, window_limit: Int[Tensor, "B T"] | None, *, softcap: float | None, by_share: bool,
) -> Partial:  # fmt: skip
    """Attend query by query, each to the pairs of the blocks that it has chosen among the columns up to its own. The arguments
    from ``ends`` to ``place`` are those of ``locate_blocks``, for both forms."""
    (batch, length, heads), key_heads = query.shape[:3], key.shape[2]
    partials, dtype, device = [], accumulating(query.dtype), query.device
    row, inside = torch.arange(batch, device=device), torch.arange(size, device=device)
    blocks = ends.shape[1]
    for token in range(length):
        end = key.shape[1] - length + token + 1
        at, column = slice(end - 1, end), torch.arange(end, device=device).expand(batch, -1)
        places = None if window_place is None else window_place[:, :end]
        limit = None if window_limit is None else window_limit[:, token, None]
        token_query = query[:, token, None]
        chosen, is_chosen = choose_blocks(
            token_query, means, ends, start[:, at], first[:, at], end, count, softcap, places, limit, by_share=by_share
        )
        # The pairs of the own block are as those of a block behind all whole ones.
        number = block[:, :end].masked_fill(block[:, :end] == blocks, blocks + 1).masked_fill(column >= start[:, at], blocks)
        number = torch.where(position[:, :end] >= 0, number, blocks + 1)
        table = position.new_zeros(batch, (blocks + 2) * size).scatter(1, number * size + place[:, :end] % size, column)
        chosen = torch.nn.functional.pad(chosen, (0, 1), value=blocks)
        entries = table.gather(1, (chosen[..., None] * size + inside).flatten(1)).unflatten(1, (chosen.shape[1], -1))
        seen = torch.nn.functional.pad(is_chosen, (0, 1), value=True).repeat_interleave(size, -1)[:, :, 0]
        own_seen = (inside <= place[:, at] % size) & (place[:, at] >= 0)
        seen = seen & torch.nn.functional.pad(own_seen, (seen.shape[-1] - size, 0), value=True)[:, None]
        if places is not None and limit is not None:
            seen = seen & (places.gather(1, entries.flatten(1)).view_as(entries) > limit[..., None])
        head = torch.arange(chosen.shape[1], device=device) // (chosen.shape[1] // key_heads)
        of_query = row[:, None, None], entries, head[:, None]
        logits = token_query.to(dtype).view(batch, chosen.shape[1], -1, token_query.shape[-1]) @ key[of_query].to(dtype).mT
        weights, lse, largest = masked_softmax(cap(logits / math.sqrt(token_query.shape[-1]), softcap), seen[:, :, None])
        output = (weights @ value[of_query].to(dtype)).to(query.dtype)
        partials.append(Partial(output.view(batch, 1, heads, -1), lse.view(batch, 1, heads), maximum=largest.view(batch, 1, heads)))
    return join_tokens(partials)


def attend_masked(
    query: Float[Tensor, "B T H D"], key: Float[Tensor, "B S K D"], value: Float[Tensor, "B S K V"],
    means: Float[Tensor, "B M K D"], position: Int[Tensor, "B S"], ends: Int[Tensor, "B M"], block: Int[Tensor, "B S"],
    start: Int[Tensor, "B S"], first: Int[Tensor, "B S"], place: Int[Tensor, "B S"], size: int, count: int,
    window_place: Int[Tensor, "B S"] | None, window_limit: Int[Tensor, "B T"] | None, *, softcap: float | None, by_share: bool,
) -> Partial:  # fmt: skip
    """Attend to all pairs, masked, with some queries at a time: no tensor has T · S numbers."""
    (length, earlier), key_heads = (query.shape[1], key.shape[1] - query.shape[1]), key.shape[2]
    partials, column = [], torch.arange(key.shape[1], device=query.device)
    for token in range(0, length, ROWS):
        rows = query[:, token : token + ROWS]
        last = earlier + token + rows.shape[1]
        at = slice(earlier + token, last)
        places = None if window_place is None else window_place[:, :last]
        limit = None if window_limit is None else window_limit[:, token : token + ROWS]
        chosen, is_chosen = choose_blocks(
            rows, means, ends, start[:, at], first[:, at], last, count, softcap, places, limit, by_share=by_share
        )
        # The last number is of pairs in no whole block.
        of_blocks = is_chosen.new_zeros(*chosen.shape[:3], ends.shape[1] + 1).scatter(3, chosen, is_chosen)
        chosen_pairs = of_blocks.gather(3, block[:, None, None, :last].expand(-1, *chosen.shape[1:3], -1))
        own_block = (column[:last] >= start[:, at, None]) & (column[:last] <= column[at, None])
        visible = (chosen_pairs | own_block[:, None]) & (position[:, None, None, :last] >= 0)
        if places is not None and limit is not None:
            visible = visible & (places[:, None, None] > limit[:, None, :, None])
        visible = visible.unflatten(1, (key_heads, -1)).transpose(2, 3)
        partials.append(dense(rows, key[:, :last], value[:, :last], visible, softcap))
    return join_tokens(partials)


def join_tokens(partials: list[Partial]) -> Partial:
    """Return the partial of consecutive tokens."""
    parts = zip(*((partial.output, partial.lse, partial.maximum) for partial in partials), strict=True)
    output, lse, maximum = (torch.cat(states, dim=1) for states in parts)
    return Partial(output, lse, maximum=maximum)
