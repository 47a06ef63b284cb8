"""The trapezoidal recurrence: each token adds its own pair and, once more, the one before it (Lahoti et al. 2026,
arXiv:2603.15569).

    S_t = α_t (S_{t-1} + b_t k_{t-1}ᵀ v_{t-1}) + a_t k_tᵀ v_t,  o_t = q_t S_t

With b = 0 this is the additive recurrence of the keys a k. All forms have the same arguments and results:

    query       B T H F     head h reads state head h // (H // N)
    key         B T N F
    value       B T K V     state head n reads the value of key head n // (N // K)
    own         B T N       a, 0 where a token has no pair
    before      B T N       b, 0 where a token has no pair
    log_decay   None (no decay) or B T N, at most 0
    segment     B T, not decreasing: the document of each token; 0 continues ``state``. None: all do
    state       B N F V
    last_key    B N F       of the pair before the first token; 0 for none
    last_value  B K V
    returns     output B T H V, and the state after the last token

A form of decode may overwrite ``state`` if ``in_place``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from blocks.operation import REFERENCE, Form
from blocks.recurrences import additive
from blocks.recurrences.trapezoid.delayed import delayed
from blocks.recurrences.trapezoid.naive import naive

DECAY_RANKS = frozenset({"none", "head"})
FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other", naive),
    *(replace(form, run=partial(delayed, recurrence=form)) for form in additive.FORMS if form.backend != REFERENCE),
)
