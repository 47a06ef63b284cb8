"""The moments at which pairs fall, and a number for each pair that depends on nothing but where it stood."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blocks.flow import Pairs, Tokens, take
from blocks.legend import Bool, Tensor, torch


@dataclass(frozen=True)
class Span:
    """Tokens between falls: their columns, the rows in which a document starts at the first of them (None: none does), and how
    many pairs fall there, in the row with the most."""

    columns: slice
    begins: Bool[Tensor, " B"] | None
    falls: int


def spans(pairs: Pairs, tokens: Tokens) -> tuple[list[Span], Pairs]:
    """Cut a call where pairs fall or a document starts in any row; and the pairs in the order in which the spans take them, -1
    where a row has fewer of them."""
    length, device = tokens.position.shape[1], tokens.position.device
    arrival = pairs.arrival
    if arrival is None:
        arrival = torch.arange(length, device=device).expand(pairs.position.shape[0], -1)
    there = pairs.present if pairs.position.dim() == 2 else pairs.present.any(2)
    falling = torch.zeros(length, dtype=torch.bool, device=device)
    falling[arrival[there]] = True
    begins = _begins(tokens)
    cuts = falling if begins is None else falling | begins.any(0)
    starts = sorted({0, *cuts.nonzero()[:, 0].tolist()})

    bounds = torch.tensor(starts, device=device).expand(arrival.shape[0], -1).contiguous()
    first, end = (torch.searchsorted(arrival.contiguous(), bounds, right=right) for right in (False, True))
    counts = ((end - first) * falling[bounds]).amax(0).tolist()
    beginning = [False] * length if begins is None else begins.any(0).tolist()
    cut = [
        Span(slice(start, stop), begins[:, start] if begins is not None and beginning[start] else None, count)
        for start, stop, count in zip(starts, [*starts[1:], length], counts, strict=True)
    ]
    index = torch.cat([first[:, place, None] + torch.arange(count, device=device) for place, count in enumerate(counts)], dim=1)
    outside = index >= end.repeat_interleave(torch.tensor(counts, device=device), dim=1)
    within = index.clamp(max=arrival.shape[1] - 1)
    falls = pairs.each(lambda entries: take(entries, within))
    position = falls.position.masked_fill(outside if falls.position.dim() == 2 else outside[..., None], -1)
    return cut, replace(falls, position=position)


def _begins(tokens: Tokens) -> Bool[Tensor, "B T"] | None:
    """Where a document starts that is not the one of the state."""
    if tokens.segment is None:
        return None
    return tokens.segment.diff(dim=1, prepend=torch.zeros_like(tokens.segment[:, :1])) != 0
