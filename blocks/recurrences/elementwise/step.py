"""One token: the form of decode."""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor, torch


def step(
    inputs: Float[Tensor, "B 1 C"],
    log_decay: Float[Tensor, "B 1 C"],
    segment: Int[Tensor, "B 1"] | None,
    state: Float[Tensor, "B C"],
) -> tuple[Float[Tensor, "B 1 C"], Float[Tensor, "B C"]]:
    """Return the recurrence once."""
    if segment is not None:
        state = state * (segment == 0)
    outputs = torch.addcmul(inputs, log_decay.exp(), state[:, None])
    return outputs, outputs.squeeze(1)
