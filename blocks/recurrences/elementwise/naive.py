"""The definition: one token after the other."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch


def naive(
    inputs: Float[Tensor, "B T C"],
    log_decay: Float[Tensor, "B T C"],
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B C"],
) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "B C"]]:
    """h_t = a_t ⊙ h_{t-1} + b_t; a new document starts from h = 0."""
    outputs = []
    for t, (decay, entering) in enumerate(zip(log_decay.exp().unbind(1), inputs.unbind(1), strict=True)):
        state = decay * state
        if segment is not None:
            before = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            state = state * (segment[:, t] == before)[:, None]
        state = state + entering
        outputs.append(state)
    return torch.stack(outputs, dim=1), state
