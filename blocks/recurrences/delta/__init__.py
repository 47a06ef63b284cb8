"""The delta rule: S_t = (I - β_t k_tᵀ k_t) D_t S_{t-1} + β_t k_tᵀ v_t, o_t = q_t S_t, with a decay D of rank none, head or channel.

The state's value for k_t is replaced by v_t, in the share β_t; the additive recurrence would add v_t to it. Yang et al. 2024,
arXiv:2406.06484 (D = 1), and arXiv:2412.06464, eq. 10 (one decay a head); Kimi team 2025, arXiv:2510.26692 (one a feature). In the
first two, S is the transpose.

All forms have the same arguments and results:

    query      B T H F     head h reads state head h // (H // N)
    key        B T N F     of length 1: a longer one would be subtracted more than once
    value      B T K V     state head n reads the value of key head n // (N // K)
    rate       B T N       β, from 0 (no pair enters, decay still runs) to below 2
    log_decay  None (no decay), B T N (one a head) or B T N F (one a feature), at most 0
    segment    B T, not decreasing: the document of each token; 0 continues ``state``. None: all do
    state      B N F V
    returns    output B T H V, and the state after the last token

A form of decode may overwrite ``state`` if ``in_place``; its key, value and rate are None if there is no pair.
"""

from __future__ import annotations

from blocks.fla_kernels import step_obstacle
from blocks.operation import FLA, REFERENCE, TORCH, Form, pair_obstacle
from blocks.recurrences.delta import fla_forms
from blocks.recurrences.delta.chunked import chunked
from blocks.recurrences.delta.recurrent import naive, step

DECAY_RANKS = frozenset({"none", "head", "channel"})

FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other", naive),
    Form(
        FLA, "fused_recurrent_gated_delta_rule or fused_recurrent_kda", fla_forms.step, step_obstacle,
        decode=True, missing=fla_forms.missing, refuses=True,
        by_rank=dict.fromkeys(("none", "head"), "fused_recurrent_gated_delta_rule") | {"channel": "fused_recurrent_kda"},
    ),
    Form(
        FLA, "chunk_gated_delta_rule or chunk_delta_rule or chunk_kda", fla_forms.chunked, fla_forms.obstacle,
        missing=fla_forms.missing, refuses=True,
        by_rank={
            "none": "chunk_gated_delta_rule or chunk_delta_rule", "head": "chunk_gated_delta_rule", "channel": "chunk_kda",
        },
    ),
    Form(TORCH, "one step of the recurrence", step, pair_obstacle, decode=True),
    Form(TORCH, "chunks of 64 through a triangular system", chunked),
)  # fmt: skip
