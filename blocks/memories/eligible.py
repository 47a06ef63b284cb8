"""The pairs that compete for a place in a cache whose pairs are each query head's own, over a block of tokens.

They are B E H … as everywhere; in memory those of a head stand together, as attention and the looks at a state go through them.
"""

from __future__ import annotations

from blocks.flow import Tokens
from blocks.legend import Float, Int, Shaped, Tensor, torch
from blocks.memories.below import Held
from blocks.softmax import hidden
from blocks.tensors import accumulating, in_all_rows, take


def by_heads(entries: Shaped[Tensor, "B E H ..."]) -> Shaped[Tensor, "B E H ..."]:
    """The entries, laid out head by head."""
    return entries.transpose(1, 2).contiguous().transpose(1, 2)


def joined_by_heads(entries: Shaped[Tensor, "B E H ..."], later: Shaped[Tensor, "B M H ..."]) -> Shaped[Tensor, "B S H ..."]:
    """Entries, and others behind them, laid out head by head."""
    return torch.cat((entries.transpose(1, 2), later.transpose(1, 2)), dim=2).transpose(1, 2)


def selected_by_heads(held: Held, index: Int[Tensor, "B M H"]) -> Held:
    """``selected`` of entries that are laid out head by head, and are so again."""
    index = index.transpose(1, 2)
    place = in_all_rows(index.flatten(0, 1), held["key"].shape[1]).flatten()
    every = {name: entries.transpose(1, 2).flatten(0, 2).index_select(0, place) for name, entries in held.items()}
    return {name: entries.unflatten(0, index.shape).transpose(1, 2) for name, entries in every.items()}


def hidden_by_falls(
    eligible: Held, at: Int[Tensor, "B t"], falls: Int[Tensor, "B e"], together: int, left: Int[Tensor, "B E H"], tokens: Tokens
) -> Float[Tensor, "B H t E"]:
    """What is added to the logits of a block's tokens, 0 or -inf: a pair is seen from the fall that brings it in to the one that
    puts it out.

    at: the tokens' columns; falls: those at which the last entries fall in, ``together`` of them at each; left: the number of the
    fall, from 1, at which each entry falls on, or more than there are.
    """
    falls = falls[:, ::together]
    passed = torch.arange(falls.shape[1] + 1, device=at.device)
    entered = passed[1:].repeat_interleave(together)
    entered = torch.nn.functional.pad(entered, (left.shape[1] - entered.shape[0], 0))
    left = left.masked_fill(eligible["position"] < 0, 0).transpose(1, 2)
    # The same for all tokens between two falls.
    between = hidden((entered <= passed[:, None]) & (passed[:, None] < left[:, :, None]), accumulating(eligible["value"].dtype))
    hiding = take(between.transpose(1, 2), (falls[:, None] <= at[..., None]).sum(-1)).transpose(1, 2)
    if tokens.segment is None:
        return hiding
    own = eligible["segment"].transpose(1, 2)[:, :, None] == take(tokens.segment, at)[:, None, :, None]
    return hiding + hidden(own, hiding.dtype)
