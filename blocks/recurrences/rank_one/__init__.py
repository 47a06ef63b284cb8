"""The generalised delta rule: S_t = (D_t - w_tᵀ r_t) S_{t-1} + k_tᵀ v_t, o_t = q_t S_t, D a decay of rank none, head or channel.

The transition of the state is a diagonal matrix minus a matrix of rank one. The row r_t reads the state before the token, and the
column w_t removes that value from it. Peng et al. 2025, arXiv:2503.14456, eq. 14 to 18, where S is the transpose.

All forms have the same arguments:

    query      B T H F     head h reads state head h // (H // N)
    key        B T N F
    value      B T K V     state head n reads the value of head n // (N // K)
    read       B T N F     r
    removed    B T N F     w; None: the key
    log_decay  None (no decay), B T N (one a head) or B T N F (one a feature), at most 0
    segment    B T, not decreasing: the document of each token; 0 continues ``state``. None: all do
    state      B N F V
    returns    output B T H V, and the state after the last token

A token whose key and w are 0 writes nothing, and decay still runs. The form of decode may overwrite ``state`` if ``in_place``.
"""

from __future__ import annotations

from blocks.fla_kernels import step_obstacle
from blocks.operation import FLA, REFERENCE, TORCH, Form
from blocks.recurrences.rank_one import fla_forms
from blocks.recurrences.rank_one.chunked import chunked
from blocks.recurrences.rank_one.recurrent import naive, step

DECAY_RANKS = frozenset({"none", "head", "channel"})

FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other", naive),
    Form(
        FLA, "fused_recurrent_dplr_delta_rule", fla_forms.step, step_obstacle, decode=True, missing=fla_forms.missing, refuses=True
    ),
    Form(FLA, "chunk_dplr_delta_rule", fla_forms.chunked, fla_forms.obstacle, missing=fla_forms.missing, refuses=True),
    Form(TORCH, "one step of the recurrence", step, decode=True),
    Form(TORCH, "chunks of 64 through a triangular system", chunked),
)  # fmt: skip
