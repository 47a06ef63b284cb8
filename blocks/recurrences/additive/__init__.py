"""The additive recurrence: S_t = D_t S_{t-1} + k_tᵀ v_t, o_t = q_t S_t, with a decay D of rank none, head or channel.

All forms have the same arguments and results:

    query      B T H F     head h reads state head h // (H // N)
    key        B T N F
    value      B T K V     state head n reads the value of key head n // (N // K)
    log_decay  None (no decay), B T N (one a head) or B T N F (one a feature), at most 0
    segment    B T, not decreasing: the document of each token; 0 continues ``state``. None: all do
    state      B N F V
    returns    output B T H V, and the state after the last token

A form of decode may overwrite ``state`` if ``in_place``. It receives the pairs evicted at its only token: E pairs, as key B E n F
(n heads, N or K of them) and value B E K V, or None.
"""

from __future__ import annotations

from blocks.fla_kernels import obstacle, step_obstacle
from blocks.operation import FLA, REFERENCE, TORCH, Form
from blocks.recurrences.additive import fla_forms
from blocks.recurrences.additive.chunked import chunked
from blocks.recurrences.additive.recurrent import naive, step

DECAY_RANKS = frozenset({"none", "head", "channel"})
FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other", naive),
    Form(
        FLA, "fused_recurrent_simple_gla or fused_recurrent_gla", fla_forms.step, step_obstacle,
        decode=True, missing=fla_forms.missing, refuses=True,
        by_rank=dict.fromkeys(("none", "head"), "fused_recurrent_simple_gla") | {"channel": "fused_recurrent_gla"},
    ),
    Form(
        FLA, "chunk_simple_gla or chunk_gla", fla_forms.chunked, obstacle, missing=fla_forms.missing, refuses=True,
        by_rank=dict.fromkeys(("none", "head"), "chunk_simple_gla") | {"channel": "chunk_gla"},
    ),
    Form(TORCH, "one step of the recurrence", step, decode=True),
    Form(
        TORCH, "chunks of 64 (joined from shorter blocks where decay is steep)", chunked,
        by_rank=dict.fromkeys(("none", "head"), "chunks of 64"),
    ),
)  # fmt: skip
