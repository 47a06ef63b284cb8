"""Regression on the past: G_t = α_t G_{t-1} + β_t k_tᵀ k_t, H_t = α_t H_{t-1} + β_t k_tᵀ v_t, o_t = q_t (G_t + Λ)⁻¹ H_t.

(G_t + Λ)⁻¹ H_t is the matrix that maps the keys so far to their values with the smallest weighted squared error, and a penalty Λ, a
diagonal, on its size. von Oswald et al. 2025, arXiv:2506.05233 (MesaNet), where G and H are these.

All forms have the same arguments:

    query      B T H F     head h reads state head h // (H // N)
    key        B T N F     of length 1, so that G has no large entries
    value      B T K V     state head n reads the value of key head n // (N // K)
    rate       B T N       β, at least 0 (0: no pair enters, decay still runs)
    log_decay  None (no decay) or B T N, at most 0
    segment    B T, not decreasing: the document of each token; 0 continues ``state``. None: all do
    state      B N F F+V   G with H beside it
    ridge      N F         the diagonal of Λ, above 0
    returns    output B T H V, and the state after the last token

There is no form on flash-linear-attention. Its ``mesa_net`` kernels add 1e-5 to the sizes that they divide by, and so stop short of
the solution: on random keys by 8e-5 of the largest output, where float32 rounds 5e-7 of it.

In the form of decode, key, value and rate are None if there is no pair, and ``state`` may be overwritten if ``in_place``.
"""

from __future__ import annotations

from blocks.operation import REFERENCE, TORCH, Form, pair_obstacle
from blocks.recurrences.ridge.chunked import chunked
from blocks.recurrences.ridge.naive import naive
from blocks.recurrences.ridge.step import step

DECAY_RANKS = frozenset({"none", "head"})

FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other, each system solved exactly", naive),
    Form(TORCH, "one step of the recurrence, its system solved exactly", step, pair_obstacle, decode=True),
    Form(TORCH, "chunks of 64, their systems solved by conjugate gradients", chunked),
)
