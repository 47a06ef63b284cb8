"""Pairs in blocks of a fixed number: where each block is, the mean of each whole block, and the blocks that a query chooses.

Blocks count the pairs of a document from its first one. A row has S columns, for pairs of the state and then of the call; some are
empty. It has at most M = S // size whole blocks, numbered over all its documents.

    ends    B M   the column of the last pair of each whole block; S if there is no such block
    block   B S   the number of the whole block that a pair is in; M if there is none
    start   B S   the column at which the newest block of the document begins; before its first pair, the column after the query
    first   B S   the column at which the document begins
    place   B S   the number of earlier pairs of the document; -1 before its first pair
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from pydantic import Field

from blocks.flow import Pairs
from blocks.legend import Bool, Float, Int, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.memories.full import forget_ended_documents
from blocks.operation import Call, Slot
from blocks.softmax.dense import cap
from blocks.tensors import accumulating


class Blocks(Memory):
    """The base of memories that see pairs in blocks. Blocks begin at the first pair of a document."""

    incidental: ClassVar[frozenset[str]] = Memory.incidental | {"size"}
    grows: ClassVar[bool] = True
    size: Annotated[int, Field(ge=2)] = 64
    """Pairs of a block."""

    @property
    def declared_size(self) -> int:
        return self.size

    def state(self, shape: Shape) -> dict[str, Slot]:
        """Return the state before the first token."""
        return self.state_after(shape, 0)

    def enter(self, call: Call, pairs: Pairs) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Return the positions of the columns with the pairs of the call, their documents, the column at which the last document
        begins, and the positions of the new state."""
        tokens, past_position = call.tokens, call.state["position"]
        position, segment = torch.cat((past_position, pairs.position), dim=1), tokens.extend_segment(past_position.shape[1])
        last = (
            torch.zeros_like(position[:, :1])
            if segment is None
            else (segment == tokens.last_segment()).long().argmax(1, keepdim=True)
        )
        return position, segment, last, forget_ended_documents(position, tokens, past_position.shape[1])


def find_blocks_in_window(
    ends: Int[Tensor, "B M"], window_place: Int[Tensor, "B S"], window_limit: Int[Tensor, "B T"]
) -> Bool[Tensor, "B T M"]:
    """Return the blocks whose last pair each query sees."""
    place = window_place.gather(1, ends.clamp(max=window_place.shape[1] - 1))
    return place[:, None] > window_limit[..., None]


def locate_blocks(
    position: Int[Tensor, "B S"], segment: Int[Tensor, "B S"] | None, size: int
) -> tuple[Int[Tensor, "B M"], Int[Tensor, "B S"], Int[Tensor, "B S"], Int[Tensor, "B S"], Int[Tensor, "B S"]]:
    """Return the tensors of the table above. position: -1 in empty columns. segment: the document of each column; None for one."""
    present, columns = position >= 0, position.shape[1]
    blocks, column = columns // size, torch.arange(columns, device=position.device).expand_as(position)
    count, first = present.cumsum(1), torch.zeros_like(position)
    place = count - 1
    if segment is not None:
        same = torch.nn.functional.pad(segment[:, 1:] == segment[:, :-1], (1, 0), value=True)
        first = column.masked_fill(same, 0).cummax(1).values
        place = place - (count - present.long()).gather(1, first)
    is_end = present & (place % size == size - 1)
    number = is_end.cumsum(1)
    ends = position.new_full((position.shape[0], blocks + 1), columns)
    ends = ends.scatter(1, torch.where(is_end, number - 1, blocks), torch.where(is_end, column, columns))
    block = number - is_end.long()
    end = ends.gather(1, block)
    is_whole = (end < columns) & (first.gather(1, end.clamp(max=columns - 1)) == first)
    start = column.masked_fill(~present | (place % size != 0), -1).cummax(1).values
    return ends[:, :blocks], block.masked_fill(~is_whole, blocks), torch.where(place < 0, column + 1, start), first, place


def average_blocks(
    past_means: Float[Tensor, "B m K x"], total: Float[Tensor, "B K x"], new: Float[Tensor, "B T K x"],
    position: Int[Tensor, "B S"], ends: Int[Tensor, "B M"], block: Int[Tensor, "B S"], first: Int[Tensor, "B S"],
    last: Int[Tensor, "B 1"], size: int,
) -> tuple[Float[Tensor, "B M K x"], Float[Tensor, "B M K x"], Float[Tensor, "B K x"]]:  # fmt: skip
    """Return the mean of each whole block, and the new state: the means of the last document, and the sum of its pairs after the
    last whole block.

    past_means, total: the state. new: entries of the call. last: the column at which the last document of each row begins.
    """
    (batch, length), (columns, blocks) = new.shape[:2], (position.shape[1], ends.shape[1])
    # The sum of the state is an entry of the state's document, before the first column. Entries that are in no whole block enter
    # the new sum, number M, or, if their document has ended, nothing: number M + 1.
    document = torch.nn.functional.pad(first[:, -length:], (1, 0))
    number = block[:, -length:]
    number = torch.cat((number[:, :1].masked_fill(document[:, 1:2] != 0, blocks), number), dim=1)
    counts = torch.nn.functional.pad(position[:, -length:] >= 0, (1, 0), value=True) & ((number < blocks) | (document == last))
    number = torch.where(counts, number, blocks + 1) + torch.arange(batch, device=new.device)[:, None] * (blocks + 2)
    dtype = accumulating(new.dtype)
    entries = torch.cat((total[:, None].to(dtype), new.to(dtype)), dim=1)
    sums = entries.new_zeros(batch * (blocks + 2), *new.shape[2:]).index_add(0, number.flatten(), entries.flatten(0, 1))
    sums = sums.unflatten(0, (batch, blocks + 2))
    filled = torch.cat((past_means, past_means.new_zeros(batch, blocks - past_means.shape[1], *past_means.shape[2:])), dim=1)
    means = torch.where((ends < columns - length)[..., None, None], filled, (sums[:, :blocks] / size).to(past_means.dtype))
    index = torch.arange(blocks, device=new.device) + (ends < last).sum(1, keepdim=True)
    is_kept = (index < (ends < columns).sum(1, keepdim=True))[..., None, None]
    last_means = means.gather(1, (index[..., None, None] * is_kept).expand_as(means)).masked_fill(~is_kept, 0.0)
    return means, last_means, sums[:, blocks].clone()


def choose_blocks(
    query: Float[Tensor, "B T H D"], means: Float[Tensor, "B M K D"], ends: Int[Tensor, "B M"], start: Int[Tensor, "B T"],
    first: Int[Tensor, "B T"], columns: int, count: int, softcap: float | None,
    window_place: Int[Tensor, "B S"] | None, window_limit: Int[Tensor, "B T"] | None, *, by_share: bool,
) -> tuple[Int[Tensor, "B h T n"], Bool[Tensor, "B h T n"]]:  # fmt: skip
    """Return the numbers of the blocks that the last T columns of S choose among earlier ones, and which of these are blocks.

    h: query heads, each of which chooses by its products with the means; or, ``by_share``, key heads, for which the shares of a
    softmax are summed over query heads. Of equal blocks the newer ones are chosen. A choice has no gradient.
    """
    length, dtype = query.shape[1], accumulating(query.dtype)
    grouped = query.detach().to(dtype).unflatten(2, (means.shape[2], -1))
    logits = cap(torch.einsum("btkgd,bmkd->bkgtm", grouped, means.to(dtype)) / math.sqrt(query.shape[-1]), softcap)
    of_document = ends[:, None] >= first[..., None]
    earlier = of_document & (ends[:, None] < start[..., None])
    if window_place is not None and window_limit is not None:
        earlier = earlier & find_blocks_in_window(ends, window_place, window_limit)
    if by_share:
        column = torch.arange(columns - length, columns, device=query.device)
        is_complete = of_document & (ends[:, None] <= column[:, None])
        score = logits.masked_fill(~is_complete[:, None, None], -math.inf).softmax(-1).sum(2)
        # The blocks before a query follow each other in a row: the first and the newest one always have a place.
        nothing = torch.zeros_like(earlier[..., :1])
        before, after = torch.cat((nothing, earlier[..., :-1]), -1), torch.cat((earlier[..., 1:], nothing), -1)
        score = score.masked_fill(~(before & after)[:, None], math.inf)
    else:
        score = logits.flatten(1, 2)
    score = score.masked_fill(~earlier[:, None], -math.inf)
    order = score.flip(-1).argsort(dim=-1, descending=True, stable=True)[..., :count]
    chosen = ends.shape[1] - 1 - order
    return chosen, earlier[:, None].expand_as(score).gather(-1, chosen)


def sum_earlier_blocks(tokens: int, size: int, limit: int | None = None) -> int:
    """Return the sum over this many tokens of the number of blocks before that of the token, each at most ``limit``."""
    blocks, behind = divmod(tokens, size)
    limit = blocks if limit is None else min(blocks, limit)
    return size * (limit * (limit - 1) // 2 + (blocks - limit) * limit) + behind * limit
