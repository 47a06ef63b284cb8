"""Padding and packed documents in one layout: real tokens first, padding after them, and documents numbered."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.tensors import has_numbers
from composer.model.call_arguments import AGREE, Documents

UNSTATED = Documents()
"""No argument states documents."""


class Rows:
    """The order of a call's columns inside the model: each row's real tokens first, its padding after them."""

    def __init__(
        self,
        batch: int,
        length: int,
        device: torch.device,
        seen: Tensor | None,
        columns: int,
        *,
        mask: Tensor | None,
        positions: Tensor | None,
        documents: Documents = UNSTATED,
    ) -> None:
        """seen: ``B``, real tokens in the state so far; None: there is no state. columns: how many made it, padding included.
        mask: ``B S``, 1 is real; its last T columns are this call's. positions: ``B T``; a real token begins a document where its
        position is 0, or not larger than the one before it in this call. documents: further statements, which must agree."""
        _check(batch, length, seen, positions)
        self.below = columns + length if positions is None else None
        """No real token's position is as large as this. None: only a look at them would show what they are."""
        self._order = self._inverse = None
        valid = real_columns = _valid(mask, batch, length)
        if real_columns is not None and length > 1:
            self._order = (~real_columns).to(torch.uint8).argsort(dim=1, stable=True)
            self._inverse = self._order.argsort(dim=1)
            valid = real_columns.gather(1, self._order)
        if length == 1 and seen is not None and valid is None and positions is None and not documents.numbers:
            self.tokens, self.seen = Tokens(seen[:, None]), seen + 1
            return
        count = torch.arange(length, device=device).expand(batch, length)
        index, segment = count if seen is None else count + seen[:, None], None
        position = index
        starts = {name: _changes(self.inward(numbers)) for name, numbers in documents.numbers.items()}
        if starts:
            position = _since(next(iter(starts.values())), count)
            _check_longest(documents.longest, position, valid)
        if positions is not None:
            position = self.inward(positions.to(device).expand(batch, length))
            starts["position_ids"] = _restarts(position)
        if starts:
            self._check_agreement(starts, valid, started=seen is not None)
            segment = _segments(next(iter(starts.values())), valid, started=seen is not None)
        self.tokens = Tokens(position, segment, valid, None if position is index else index, columns=self._order)
        self.seen = self.tokens.count() if seen is None else seen + self.tokens.count()
        """``B``, real tokens in the state after this call."""

    def _check_agreement(self, starts: Mapping[str, Tensor], valid: Tensor | None, *, started: bool) -> None:
        """Raise ValueError if two arguments begin documents at different tokens. The first token of a first call begins one
        whatever they state."""
        (name, first), *others = starts.items()
        for other, begins in others:
            differs = first ^ begins
            if valid is not None:
                differs = differs & valid
            if not started:
                differs = differs[:, 1:]
            if _is_known(~differs) or not has_numbers(differs):
                continue
            row, place = (int(number) for number in differs.nonzero()[0])
            place += 0 if started else 1
            column = place if self._order is None else int(self._order[row, place])
            does, does_not = (name, other) if bool(first[row, place]) else (other, name)
            raise ValueError(
                f"{name} and {other} contradict each other: by {does}, token {column} of row {row} begins a document, and by "
                f"{does_not} it does not. {AGREE}"
            )

    @property
    def is_reordered(self) -> bool:
        """Whether the order inside differs from the user's."""
        return self._order is not None

    def inward(self, states: Tensor) -> Tensor:
        """Return ``B T …`` of the call with the padding at the end."""
        return states if self._order is None else _take(states, self._order)

    def outward(self, states: Tensor) -> Tensor:
        """Return ``B T …`` with the padding at the end in the order of the call."""
        return states if self._inverse is None else _take(states, self._inverse.to(states.device))


def _check(batch: int, length: int, seen: Tensor | None, positions: Tensor | None) -> None:
    """Raise ValueError for a cache of other rows, and for positions of another shape."""
    if seen is not None and seen.shape[0] != batch:
        raise ValueError(f"the cache holds {seen.shape[0]} rows, and this call has {batch}")
    if positions is None:
        return
    rows = 1 if positions.dim() == 1 else positions.shape[0]
    if positions.dim() not in (1, 2) or rows not in (1, batch) or positions.shape[-1] != length:
        raise ValueError(f"position_ids has shape {tuple(positions.shape)}; expected {(batch, length)}, or one row for all")


def _take(states: Tensor, order: Tensor) -> Tensor:
    index = order.view(*order.shape, *[1] * (states.dim() - 2)).expand_as(states)
    return states.gather(1, index)


def _valid(mask: Tensor | None, batch: int, length: int) -> Tensor | None:
    if mask is None:
        return None
    if mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] < length:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}; expected 2 dimensions, {batch} rows and at least {length} "
            "columns, 1 for a real token and 0 for padding"
        )
    valid = mask[:, -length:].bool()
    return None if _is_known(valid) else valid


def _is_known(flags: Tensor) -> bool:
    """Whether all entries are known to be True. In a compiler's graph and for fake tensors nothing is known, as Python cannot read
    the values."""
    return has_numbers(flags) and bool(flags.all())


def _changes(numbers: Tensor) -> Tensor:
    """Return the tokens that begin a document, ``B T`` bool, by the numbers of their documents."""
    return torch.cat((torch.ones_like(numbers[:, :1], dtype=torch.bool), numbers[:, 1:] != numbers[:, :-1]), dim=1)


def _restarts(position: Tensor) -> Tensor:
    """Return the tokens that begin a document, ``B T`` bool, by their positions. Some collators count from another number than
    0."""
    first = position == 0
    return torch.cat((first[:, :1], first[:, 1:] | (position[:, 1:] <= position[:, :-1])), dim=1)


def _since(starts: Tensor, count: Tensor) -> Tensor:
    """Return the place of each token in its document, ``B T``. count: its place in its row."""
    return count - torch.where(starts, count, 0).cummax(dim=1).values


def _check_longest(longest: Mapping[str, int], position: Tensor, valid: Tensor | None) -> None:
    """Raise ValueError if a document is longer than an argument allows. position: the place of each token in its document."""
    if not longest or not has_numbers(position):
        return
    real = position if valid is None else position.masked_fill(~valid, 0)
    actual = int(real.max()) + 1
    for name, stated_length in longest.items():
        if stated_length < actual:
            raise ValueError(
                f"{name} is {stated_length}, and the longest document has {actual} tokens. Pass {actual} or more, or leave it out."
            )


def _segments(starts: Tensor, valid: Tensor | None, *, started: bool) -> Tensor | None:
    if valid is not None:
        starts = starts & valid
    if not started:
        # An empty state continues as well as it starts, and without segments the kernels have less to do.
        starts = torch.cat((torch.zeros_like(starts[:, :1]), starts[:, 1:]), dim=1)
    return None if _is_known(~starts) else starts.cumsum(1)
