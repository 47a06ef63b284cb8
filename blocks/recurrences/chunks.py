"""What chunked recurrences share: tokens cut into chunks, and the decay between the tokens of a chunk."""

from __future__ import annotations

from blocks.legend import Float, Tensor, torch


def into_chunks(states: Float[Tensor, "B T h ..."], count: int, chunk: int, groups: tuple[int, ...]) -> Tensor:
    """``B T h …`` to ``B n c groups… …``, the last chunk filled with zeros."""
    missing = count * chunk - states.shape[1]
    if missing:
        states = torch.cat((states, states.new_zeros(states.shape[0], missing, *states.shape[2:])), dim=1)
    return states.unflatten(2, groups).unflatten(1, (count, chunk))


def decay_between(decay: Float[Tensor, "B K n R c ..."]) -> Float[Tensor, "B K n R c c ..."]:
    """Decay after token j up to token i, at [i, j]: summed, since the difference of two long sums would lose what is small."""
    later = torch.ones(decay.shape[4], decay.shape[4], dtype=torch.bool, device=decay.device).tril(-1)
    later = later.view(*later.shape, *[1] * (decay.dim() - 5))
    return torch.where(later, decay.unsqueeze(5), 0.0).cumsum(4)
