"""The log-linear recurrence: the past in a number of states that grows with the logarithm of its length, after Fenwick's tree
(Guo et al. 2025, arXiv:2506.04761).

A pair at position s is in level ℓ of a query at position t: level 0 for s = t, else the number of binary digits of t xor s. Levels
so cover 1, 1, 2, 4, 8, … positions, the nearest first. The last level has all older pairs, too. Each query has its own factor λ of
a level:

    o_t = q_t Σ_ℓ λ_t^ℓ S_t^ℓ,  S_t^ℓ = Σ_{s in level ℓ of t} (α_{s+1} … α_t) k_sᵀ v_s

With λ = 1 this is the additive recurrence. All forms have the same arguments and results:

    query      B T H F     head h reads state head h // (H // N)
    key        B T N F     0 where a token has no pair
    value      B T K V     state head n reads the value of key head n // (N // K)
    scale      B T H L     λ
    log_decay  None (no decay) or B T N, at most 0
    position   B T         of each token in its document; of a token of padding, that of the token before
    segment    B T, not decreasing: the document of each token; 0 continues ``state``. None: all do
    state      B N L F V
    newest     B           the position of the newest token in ``state``, -1 for none
    returns    output B T H V, and the state after the last token
"""

from __future__ import annotations

from blocks.operation import REFERENCE, TORCH, Form
from blocks.recurrences.fenwick.chunked import chunked
from blocks.recurrences.fenwick.naive import naive

DECAY_RANKS = frozenset({"none", "head"})
FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other", naive),
    Form(TORCH, "one step of the recurrence", naive, decode=True),
    Form(TORCH, "chunks of 64, each with the states of all levels", chunked),
)
