"""Padding and packed documents in one layout: real tokens first, padding behind them, and documents numbered."""

from __future__ import annotations

import torch
from torch import Tensor

from blocks.flow import Tokens
from blocks.tensors import has_numbers


class Rows:
    """The order of a call's columns inside the model: each row's real tokens first, its padding behind them."""

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
        cu_seqlens: Tensor | None,
    ) -> None:
        """seen: ``B``, real tokens in the state so far; None: there is no state. columns: how many made it, padding included.
        mask: ``B S``, 1 is real; its last T columns are this call's. positions: ``B T``; a real token's 0 starts a document.
        cu_seqlens: ``N + 1`` bounds of documents in one packed row."""
        _check(batch, length, seen, positions)
        self.below = columns + length if positions is None else None
        """No real token's position is as large as this. None: only a look at them would show what they are."""
        self._order = self._inverse = None
        valid = given = _valid(mask, batch, length)
        if given is not None and length > 1:
            self._order = (~given).to(torch.uint8).argsort(dim=1, stable=True)
            self._inverse = self._order.argsort(dim=1)
            valid = given.gather(1, self._order)
        if length == 1 and seen is not None and valid is None and positions is None and cu_seqlens is None:
            self.tokens, self.seen = Tokens(seen[:, None]), seen + 1
            return
        count = torch.arange(length, device=device).expand(batch, length)
        if cu_seqlens is not None and positions is not None:
            raise ValueError("cu_seqlens and position_ids both say where documents start: pass one of them")
        index, segment = count if seen is None else count + seen[:, None], None
        position = index
        if cu_seqlens is not None:
            position = _packed_positions(cu_seqlens, given, count)
        elif positions is not None:
            position = self.inward(positions.to(device).expand(batch, length))
        if cu_seqlens is not None or positions is not None:
            segment = _segments(position, valid, started=seen is not None)
        self.tokens = Tokens(position, segment, valid, None if position is index else index)
        real = valid.sum(1) if valid is not None else torch.full((batch,), length, device=device)
        self.seen = real if seen is None else seen + real
        """``B``, real tokens in the state after this call."""

    @property
    def reordered(self) -> bool:
        """Whether the order inside differs from the user's."""
        return self._order is not None

    def inward(self, states: Tensor) -> Tensor:
        """``B T …`` as handed in to ``B T …`` with the padding behind."""
        return states if self._order is None else _take(states, self._order)

    def outward(self, states: Tensor) -> Tensor:
        """``B T …`` with the padding behind, back to the order of the call."""
        return states if self._inverse is None else _take(states, self._inverse.to(states.device))


def _check(batch: int, length: int, seen: Tensor | None, positions: Tensor | None) -> None:
    """Raises ValueError for a cache of other rows, and for positions of another shape."""
    if seen is not None and seen.shape[0] != batch:
        raise ValueError(f"past_key_values holds {seen.shape[0]} rows, and this call has {batch}")
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
    return None if _known(valid) else valid


def _known(said: Tensor) -> bool:
    """Whether all is known to be true. Of a compiler's graph and of fake tensors nothing is: Python cannot look there."""
    return has_numbers(said) and bool(said.all())


def _packed_positions(cu_seqlens: Tensor, valid: Tensor | None, count: Tensor) -> Tensor:
    """The place of each token in its document, the padding behind. valid: which columns are real, in the order of the call."""
    bounds, (batch, length) = cu_seqlens.to(count.device, torch.int64), count.shape
    if batch != 1 or int(bounds[0]) != 0 or int(bounds[-1]) != length or bool((bounds.diff() <= 0).any()):
        raise ValueError(
            f"cu_seqlens must rise from 0 to the length of one packed row; got {bounds.tolist()} for a batch of {batch} × {length}"
        )
    if valid is not None:
        # Of the real tokens alone: a document may begin, or be, padding.
        bounds = torch.nn.functional.pad(valid[0].cumsum(0), (1, 0))[bounds]
    return count - bounds[torch.searchsorted(bounds, count.contiguous(), right=True) - 1]


def _segments(position: Tensor, valid: Tensor | None, *, started: bool) -> Tensor | None:
    starts = position == 0
    if valid is not None:
        starts = starts & valid
    if not started:
        # An empty state continues as well as it starts, and without segments the kernels have less to do.
        starts = torch.cat((torch.zeros_like(starts[:, :1]), starts[:, 1:]), dim=1)
    return None if _known(~starts) else starts.cumsum(1)
