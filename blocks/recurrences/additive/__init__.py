"""The additive recurrence: S_t = D_t S_{t-1} + k_t v_tᵀ, o_t = q_t S_t, with a decay D of rank none, head or channel.

Every form takes and returns the same:

    query      B T H F     head h reads state head h // (H // N)
    key        B T N F
    value      B T K V     state head n takes the value of key head n // (N // K)
    log_decay  None (no decay), B T N (one a head) or B T N F (one a feature), at most 0
    segment    B T, not decreasing: the document of each token; 0 continues ``state``. None: all do
    state      B N F V
    returns    output B T H V, and the state after the last token
"""

from __future__ import annotations

from blocks.legend import Float, Int, Tensor
from blocks.operation import REFERENCE, TORCH, Form
from blocks.recurrences.additive.chunked import chunked
from blocks.recurrences.additive.naive import naive
from blocks.recurrences.additive.step import step

DECAY_RANKS = frozenset({"none", "head", "channel"})


def fast(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """One token: a step. More: chunks."""
    form = step if query.shape[1] == 1 else chunked
    return form(query, key, value, log_decay, segment, state)


FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other", naive),
    Form(TORCH, "chunks of 64 (joined from shorter blocks where decay is steep), one step in decode", fast),
)
