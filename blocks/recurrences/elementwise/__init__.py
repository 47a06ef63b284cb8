"""The elementwise recurrence: h_t = a_t ⊙ h_{t-1} + b_t, one number per channel, each with its own decay a.

All forms have the same arguments and results:

    inputs     B T C     b
    log_decay  B T C     log a, at most 0; -inf forgets all
    segment    B T, not decreasing: the document of each token; 0 continues ``state``. None: all do
    state      B C
    returns    outputs B T C, each token's h, and the state after the last token
"""

from __future__ import annotations

from blocks.operation import FLA, REFERENCE, TORCH, Form
from blocks.recurrences.elementwise import fla_forms
from blocks.recurrences.elementwise.torch_forms import naive, scan, step

FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other", naive),
    Form(FLA, "chunk_hgrn", fla_forms.chunked, fla_forms.obstacle, missing=fla_forms.missing, refuses=True),
    Form(TORCH, "one step of the recurrence", step, decode=True),
    Form(TORCH, "a scan over chunks of about √T tokens", scan),
)
