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

from blocks.legend import Float, Int, Tensor, torch
from blocks.operation import REFERENCE, Form
from blocks.recurrences import additive
from blocks.tensors import as_dtype, repeat_heads


def naive(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    own_weight: Float[Tensor, "B T N"],
    previous_weight: Float[Tensor, "B T N"],
    log_decay: Float[Tensor, "B T N"] | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
    last_key: Float[Tensor, "B N F"],
    last_value: Float[Tensor, "B K V"],
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """S_t = α_t (S_{t-1} + b_t k_{t-1}ᵀ v_{t-1}) + a_t k_tᵀ v_t, o_t = q_t S_t; a new document starts from S = 0 without a pair."""
    heads, state_heads = query.shape[2], key.shape[2]
    value, last_value = repeat_heads(value, state_heads), repeat_heads(last_value, state_heads, dim=1)
    outputs = []
    for t in range(query.shape[1]):
        state = state + previous_weight[:, t, :, None, None] * last_key[..., None] * last_value[:, :, None]
        if log_decay is not None:
            state = state * log_decay[:, t].exp()[..., None, None]
        if segment is not None:
            earlier = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
            state = state * (segment[:, t] == earlier)[:, None, None, None]
        last_key, last_value = key[:, t], value[:, t]
        state = state + own_weight[:, t, :, None, None] * last_key[..., None] * last_value[:, :, None]
        outputs.append(torch.einsum("bhf,bhfv->bhv", query[:, t], state.repeat_interleave(heads // state_heads, dim=1)))
    return torch.stack(outputs, dim=1), state


# Pairs that enter an additive recurrence one token late: every form of that recurrence, kernels too, is then a form of this one.
#
# Both weights of the pair of t - 1 are known at t. So R_t = α_t (S_{t-1} + b_t k_{t-1}ᵀ v_{t-1}), what token t reads of earlier
# pairs, is an additive recurrence in which this pair enters at t:
#
#     R_t = α_t R_{t-1} + α_t (a_{t-1} + b_t) k_{t-1}ᵀ v_{t-1},  o_t = q_t R_t + a_t (q_t·k_t) v_t,  S_t = R_t + a_t k_tᵀ v_t
#
# At the first token of a call, S_{t-1} already has a_{t-1}, so b_t alone enters. No output depends on a later token.


def delayed(
    query: Float[Tensor, "B T H F"],
    key: Float[Tensor, "B T N F"],
    value: Float[Tensor, "B T K V"],
    own_weight: Float[Tensor, "B T N"],
    previous_weight: Float[Tensor, "B T N"],
    log_decay: Float[Tensor, "B T N"] | None,
    segment: Int[Tensor, "B T"] | None,
    state: Float[Tensor, "B N F V"],
    last_key: Float[Tensor, "B N F"],
    last_value: Float[Tensor, "B K V"],
    *,
    recurrence: Form,
    in_place: bool = False,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B N F V"]]:
    """Compute the recurrence by a form of the additive one."""
    entering = torch.cat((previous_weight[:, :1], own_weight[:, :-1] + previous_weight[:, 1:]), dim=1)
    if log_decay is not None:
        entering = entering * log_decay.exp()
    if segment is not None:
        # A document's last pair has no token after it.
        entering = entering * (segment.diff(dim=1, prepend=torch.zeros_like(segment[:, :1])) == 0)[..., None]
    keys = torch.cat((last_key[:, None], key[:, :-1]), dim=1) * entering[..., None]
    values = torch.cat((as_dtype(last_value, value.dtype)[:, None], value[:, :-1]), dim=1)
    inputs = query, keys, values, log_decay, segment, state
    output, earlier = recurrence.run(*inputs, in_place=in_place) if recurrence.decode else recurrence.run(*inputs)

    heads, state_heads = query.shape[2], key.shape[2]
    written = key * own_weight[..., None]
    weight = (query * repeat_heads(written, heads)).sum(-1, keepdim=True)
    last = written[:, -1, :, :, None], repeat_heads(value[:, -1], state_heads, dim=1)[:, :, None].to(earlier.dtype)
    return output + weight * repeat_heads(value, heads), earlier.addcmul_(*last) if in_place else earlier.addcmul(*last)


DECAY_RANKS = frozenset({"none", "head"})
FORMS: tuple[Form, ...] = (
    Form(REFERENCE, "one token after the other", naive),
    *(replace(form, run=partial(delayed, recurrence=form)) for form in additive.FORMS if form.backend != REFERENCE),
)
