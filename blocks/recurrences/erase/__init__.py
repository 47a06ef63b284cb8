"""The gated delta rule 2: S_t = (I - k_tᵀ (b_t ∘ k_t)) D_t S_{t-1} + k_tᵀ v_t, o_t = q_t S_t, with a decay D of rank none, head or
channel.

b_t is the share of the state's value for k_t that is removed, feature by feature. The share of a value that is written is part of
v_t. Hatamizadeh et al. 2026, arXiv:2605.22791 (Gated DeltaNet-2).

The arguments are those of ``delta``, but for

    key        B T N F     of length 1
    value      B T K V     times its write gate
    erase      B T N F     b, in place of the rate: from 0 to below 2

A token whose key is 0 writes nothing, and decay still runs.
"""

from __future__ import annotations

from blocks.fla_kernels import step_obstacle
from blocks.operation import FLA, REFERENCE, TORCH, Form
from blocks.recurrences.erase import fla_forms
from blocks.recurrences.erase.torch_forms import chunked, naive, step

DECAY_RANKS = frozenset({"none", "head", "channel"})

FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other", naive),
    Form(FLA, "fused_recurrent_gdn2", fla_forms.step, step_obstacle, decode=True, missing=fla_forms.missing, refuses=True),
    Form(FLA, "chunk_gdn2", fla_forms.chunked, fla_forms.obstacle, missing=fla_forms.missing, refuses=True),
    Form(TORCH, "one step of the recurrence", step, decode=True),
    Form(TORCH, "chunks of 64 through a triangular system", chunked),
)
