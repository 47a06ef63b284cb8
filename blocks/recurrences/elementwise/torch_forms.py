"""The definition, one step, and a scan over chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


# A scan in three passes of about √T steps each: the form of training and prefill on any device.
#
# The tokens are cut into about √T chunks. All chunks run in parallel, one token of each at a time, from a state of 0. Their last
# states carry the state from chunk to chunk. Then all chunks run in parallel again, each from the state that enters it. Only decays
# are exponentiated, so nothing overflows and nothing small is lost. At the start of a document the decay is -inf.


def scan(
    inputs: Float[Tensor, "B T C"],
    log_decay: Float[Tensor, "B T C"],
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B C"],
) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "B C"]]:
    """h_t = exp(decay_t) h_{t-1} + input_t of any number of tokens. Memory is a fixed multiple of the inputs'."""
    length = inputs.shape[1]
    if segment is not None:
        before = torch.cat((torch.zeros_like(segment[:, :1]), segment[:, :-1]), dim=1)
        log_decay = log_decay.masked_fill((segment != before)[..., None], -math.inf)
    chunk = 1 << ((length - 1).bit_length() // 2)  # which a compiler computes of a symbol, where it has no root
    # After the last token the state neither decays nor changes.
    filled = (0, 0, 0, -length % chunk)
    inputs, log_decay = (torch.nn.functional.pad(tensor, filled).unflatten(1, (-1, chunk)) for tensor in (inputs, log_decay))

    decays, entering = log_decay.exp().unbind(2), inputs.unbind(2)
    chunk_states = _run(decays, entering, torch.zeros_like(entering[0]))[-1]
    between = _run(log_decay.sum(2).exp().unbind(1)[:-1], chunk_states.unbind(1)[:-1], state)
    outputs = _run(decays, entering, torch.stack((state, *between), dim=1))
    return torch.stack(outputs, dim=2).flatten(1, 2)[:, :length], outputs[-1][:, -1]


def _run(decays: Sequence[Tensor], entering: Sequence[Tensor], state: Tensor) -> list[Tensor]:
    """Run the recurrence step by step. Each step updates all states in parallel."""
    states = []
    for decay, new in zip(decays, entering, strict=True):
        state = torch.addcmul(new, decay, state)
        states.append(state)
    return states


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
