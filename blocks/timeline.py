"""Several pairs per token as a sequence with one pair at a time, so that every recurrence can process them.

A row's tokens and pairs become columns of one line: the pairs that are evicted at a token are before it, in their order. Decay and
new documents apply at the first column of each such group; a pair's column has no query, and a token's column no pair.
"""

from __future__ import annotations

from dataclasses import dataclass

from blocks.flow import Features, Tokens
from blocks.legend import Bool, Int, Shaped, Tensor, torch
from blocks.tensors import in_all_rows, take


@dataclass(frozen=True)
class Timeline:
    """The line of M = T + E columns: the column of each token and of each pair, and the line's own ``Tokens``."""

    tokens: Tokens
    token_column: Int[Tensor, "B T"]
    pair_column: Int[Tensor, "B E"]
    pairs_first: Bool[Tensor, "B T"]
    """Whether pairs precede a token: the first of them then has the token's decay."""
    starts: Bool[Tensor, "B E"]
    """Whether a pair is the first one evicted at its token."""
    arrival: Int[Tensor, "B E"]

    def of_tokens(self, states: Shaped[Tensor, "B T ..."]) -> Shaped[Tensor, "B M ..."]:
        """Return the states in the columns of the tokens, and 0 in those of pairs."""
        return _spread(states, self.token_column, self._columns)

    def of_pairs(self, states: Shaped[Tensor, "B E ..."]) -> Shaped[Tensor, "B M ..."]:
        """Return the states in the columns of the pairs, and 0 in those of tokens."""
        return _spread(states, self.pair_column, self._columns)

    def of_time(self, log_decay: Shaped[Tensor, "B T ..."]) -> Shaped[Tensor, "B M ..."]:
        """Return each token's decay once, at the first column of its group."""
        later = _like(self.pairs_first, log_decay)
        at_pairs = take(log_decay, self.arrival)
        at_pairs = at_pairs.masked_fill(~_like(self.starts, at_pairs), 0.0)
        return self.of_tokens(log_decay.masked_fill(later, 0.0)) + self.of_pairs(at_pairs)

    def at_tokens(self, states: Shaped[Tensor, "B M ..."]) -> Shaped[Tensor, "B T ..."]:
        """Return the columns of the tokens."""
        return take(states, self.token_column)

    @property
    def _columns(self) -> int:
        return self.token_column.shape[1] + self.pair_column.shape[1]


def timeline(tokens: Tokens, pairs: Features) -> Timeline:
    """Return the line of ``tokens`` and of the pairs that are evicted at them. Pairs that are absent in all heads have any
    column."""
    assert pairs.arrival is not None
    length, arrival = tokens.position.shape[1], pairs.arrival.clamp(0, tokens.position.shape[1] - 1)
    order = torch.arange(arrival.shape[1], device=arrival.device)
    count = torch.arange(length, device=arrival.device)
    before = torch.searchsorted(arrival.contiguous(), count.expand(arrival.shape[0], -1).contiguous(), right=True)
    earlier = torch.cat((torch.zeros_like(before[:, :1]), before[:, :-1]), dim=1)
    token_column, pair_column = count + before, order + arrival
    starts = torch.cat((torch.ones_like(arrival[:, :1], dtype=torch.bool), arrival[:, 1:] != arrival[:, :-1]), dim=1)
    columns = length + arrival.shape[1]

    def along(states: Tensor | None) -> Tensor | None:
        if states is None:
            return None
        line = _spread(states, token_column, columns)
        return line.scatter(1, pair_column, states.gather(1, arrival))

    line = Tokens(torch.zeros_like(arrival.new_empty(arrival.shape[0], columns)), along(tokens.segment), along(tokens.valid))
    return Timeline(line, token_column, pair_column, before > earlier, starts, arrival)


def _spread(states: Tensor, column: Tensor, columns: int) -> Tensor:
    line = states.new_zeros(states.shape[0] * columns, *states.shape[2:])
    line.index_copy_(0, in_all_rows(column, columns).flatten(), states.flatten(0, 1))
    return line.unflatten(0, (states.shape[0], columns))


def _like(index: Tensor, states: Tensor) -> Tensor:
    return index.view(*index.shape, *[1] * (states.dim() - 2))
