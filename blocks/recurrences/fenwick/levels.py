"""The levels of pairs in Fenwick's tree."""

from __future__ import annotations

from blocks.legend import Bool, Int, Tensor, torch


def is_level(level: Int[Tensor, "*rest"], levels: int) -> Bool[Tensor, "*rest L"]:
    """Return a mask of each level. ``torch.nn.functional.one_hot`` reads numbers on the host."""
    return level[..., None] == torch.arange(levels, device=level.device)


def level_of(later: Tensor, earlier: Tensor, levels: int) -> Tensor:
    """Return the level, seen from one position, of a pair at an earlier or equal position. Both are int64, and are broadcast."""
    # frexp is exact for integers below 2**53, and its exponent is the number of binary digits.
    return torch.frexp((later ^ earlier).double()).exponent.clamp(max=levels - 1).long()


def level_after(newest: Int[Tensor, " B"], later: Int[Tensor, "B T"], levels: int) -> Int[Tensor, "B T L"]:
    """Return the level, seen from later positions, of each level of a state. newest: the newest position of the state, -1 for none,
    whose levels are empty."""
    level = torch.arange(levels, device=newest.device)
    # The positions of a level share all binary digits from ``level - 1`` on, and that digit is not the newest position's.
    digit = (level - 1).clamp(min=0)
    member = ((newest.clamp(min=0)[:, None] >> digit) ^ (level > 0).long()) << digit  # B L
    # A later position is never in a lower level, and the last level has no single digit that its positions share.
    return torch.maximum(level_of(later[..., None], member[:, None], levels), level).masked_fill(level == levels - 1, levels - 1)
