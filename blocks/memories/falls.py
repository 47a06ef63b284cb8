"""The moments at which pairs fall, and a number for each pair that depends on nothing but where it stood."""

from __future__ import annotations

from collections.abc import Iterator

from blocks.flow import Pairs, Tokens, repeat_heads, take
from blocks.legend import Bool, Float, Int, Tensor, torch

Span = tuple[slice, "Bool[Tensor, ' B'] | None", Pairs | None]


def spans(pairs: Pairs, tokens: Tokens, heads: int) -> Iterator[Span]:
    """Cut a call where pairs fall or a document starts in any row: the columns between, the rows in which one starts, if any,
    and the pairs that fall at the first column, one copy a query head, if any."""
    length = tokens.position.shape[1]
    there = pairs.present if pairs.position.dim() == 2 else pairs.present.any(2)
    arrival = pairs.arrival
    if arrival is None:
        moments = there.any(0)
    else:
        moments = torch.zeros(length, dtype=torch.bool, device=arrival.device)
        moments[arrival[there]] = True
    begins = _begins(tokens)
    cuts = moments if begins is None else moments | begins.any(0)
    starts = sorted({0, *cuts.nonzero()[:, 0].tolist()})
    falling, beginning = moments.tolist(), [False] * length if begins is None else begins.any(0).tolist()
    for start, end in zip(starts, [*starts[1:], length], strict=True):
        falls = _at(pairs, arrival, start, heads) if falling[start] else None
        yield slice(start, end), begins[:, start] if begins is not None and beginning[start] else None, falls


def _begins(tokens: Tokens) -> Bool[Tensor, "B T"] | None:
    """Where a document starts that is not the one of the state."""
    if tokens.segment is None:
        return None
    return tokens.segment.diff(dim=1, prepend=torch.zeros_like(tokens.segment[:, :1])) != 0


def _at(pairs: Pairs, arrival: Int[Tensor, "B E"] | None, column: int, heads: int) -> Pairs:
    """The pairs that fall at one column, a copy for each query head; -1 where a row has fewer of them."""
    if arrival is None:
        falls = pairs.each(lambda entries: entries[:, column : column + 1])
        position = falls.position
    else:
        bounds = arrival.new_full((arrival.shape[0], 1), column)
        first, end = (torch.searchsorted(arrival.contiguous(), bounds, right=right) for right in (False, True))
        index = first + torch.arange(int((end - first).max()), device=arrival.device)
        within = index.clamp(max=arrival.shape[1] - 1)
        falls = pairs.each(lambda entries: take(entries, within))
        outside = index >= end
        position = falls.position.masked_fill(outside if falls.position.dim() == 2 else outside[..., None], -1)
    position = position if position.dim() == 3 else position[..., None].expand(-1, -1, heads)
    key = repeat_heads(falls.key, heads)
    convolved = key if falls.convolved is falls.key else repeat_heads(falls.convolved, heads)
    numbers = {name: repeat_heads(entries, heads) for name, entries in falls.numbers.items()}
    return Pairs(key, convolved, repeat_heads(falls.value, heads), position, numbers=numbers)


def counter_uniform(seed: int, layer: int, first_head: int, position: Int[Tensor, "B E H"]) -> Float[Tensor, "B E H"]:
    """A number in [0, 1) for each (seed, layer, head, position), the same whenever it is asked for: splitmix64 of the counter.

    first_head: the place of the first of these heads in its layer.
    """
    head = torch.arange(first_head, first_head + position.shape[2], device=position.device)
    bits = _mixed(torch.full_like(position, seed))
    for count in (layer, head, position):
        bits = _mixed(bits + count)
    return (bits >> 11 & (1 << 53) - 1).double() * 2.0**-53


def _mixed(bits: Int[Tensor, "B E H"]) -> Int[Tensor, "B E H"]:
    """Splitmix64's step (Steele et al. 2014); int64 wraps as its uint64 does."""
    bits = bits + _signed(0x9E3779B97F4A7C15)
    bits = (bits ^ _shifted(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, count: int) -> Tensor:
    """A shift to the right that brings zeros in, where int64's own brings the sign."""
    return bits >> count & (1 << 64 - count) - 1


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
