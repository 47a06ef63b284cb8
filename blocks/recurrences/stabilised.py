"""Exponential features without overflow: keys and queries as logarithms, on any recurrence with a decay per feature.

With M_t = max(M_{t-1} + g_t, ℓ_t) the running maximum of the decayed key logarithms ℓ, the state is kept as S_t · exp(-M_t):

    decay  g_t + M_{t-1} - M_t        key  exp(ℓ_t - M_t)        query  exp(ℓq_t + M_t - c_t), c_t its largest exponent

Every exponent is at most 0 and the result is exact; causal Latte's stable form (appendix B.3) is the same step. M only shifts
numbers that cancel, so it carries no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blocks.legend import Float, Int, Tensor, torch
from blocks.tensors import repeat_heads


@dataclass(frozen=True)
class Stabilised:
    """The inputs of the recurrence, the logarithm of the factor of its outputs (``log_scale``), and the last M (``maximum``)."""

    query: Float[Tensor, "B T H F"]
    key: Float[Tensor, "B E N F"] | None
    log_decay: Float[Tensor, "B T N F"]
    log_scale: Float[Tensor, "B T H"]
    maximum: Float[Tensor, "B N F"]


def stabilise(
    log_query: Float[Tensor, "B T H F"],
    log_key: Float[Tensor, "B T N F"],
    log_decay: Tensor | None,
    segment: Int[Tensor, "B T"] | None,
    maximum: Float[Tensor, "B N F"],
) -> Stabilised:
    """Stabilise the tokens of a call. maximum: of the initial state, -inf where it is empty. log_key: -inf for an absent key."""
    decay = torch.zeros_like(log_key[:, :, :, :1]) if log_decay is None else log_decay
    decay = decay if decay.dim() == 4 else decay[..., None]
    with torch.no_grad():
        running, before = _running_maximum(log_key.detach(), decay.detach(), segment, maximum)
        shift = torch.where(before.isneginf() | running.isneginf(), -decay.detach(), before - running)
        finite = running.masked_fill(running.isneginf(), 0.0)
        exponents = log_query.detach() + repeat_heads(finite, log_query.shape[2])
        log_scale = exponents.amax(-1)
    query = (log_query + repeat_heads(finite, log_query.shape[2]) - log_scale[..., None]).exp()
    return Stabilised(query, (log_key - finite).exp(), decay + shift, log_scale, running[:, -1])


def stabilise_step(
    log_query: Float[Tensor, "B 1 H F"],
    log_key: Float[Tensor, "B E n F"] | None,
    log_decay: Tensor | None,
    segment: Int[Tensor, "B 1"] | None,
    maximum: Float[Tensor, "B N F"],
) -> Stabilised:
    """Stabilise one token and the E keys that enter at it. The keys have N heads, or fewer that are shared."""
    before = maximum if log_decay is None else maximum + log_decay.view(*maximum.shape[:2], -1)
    if segment is not None:
        before = before.masked_fill((segment != 0)[..., None], -math.inf)
    with torch.no_grad():
        running = before.detach()
        if log_key is not None:
            running = torch.maximum(running, repeat_heads(log_key.amax(1), maximum.shape[1], dim=1))
        finite = running.masked_fill(running.isneginf(), 0.0)[:, None]
    exponents = log_query + repeat_heads(finite, log_query.shape[2])
    log_scale = exponents.detach().amax(-1)
    key = None if log_key is None else (repeat_heads(log_key, maximum.shape[1]) - finite).exp()
    # Where there was no key yet, there is nothing that could be left.
    return Stabilised((exponents - log_scale[..., None]).exp(), key, before[:, None] - finite, log_scale, running)


def _running_maximum(
    log_key: Float[Tensor, "B T N F"],
    decay: Tensor,
    segment: Int[Tensor, "B T"] | None,
    maximum: Float[Tensor, "B N F"],
) -> tuple[Float[Tensor, "B T N F"], Float[Tensor, "B T N F"]]:
    """M_t and M_{t-1} (-inf where a document starts), by doubling: after the step of size s each entry covers 2s tokens."""
    lost = decay.expand_as(log_key).clone()
    if segment is not None:
        before = torch.cat((torch.zeros_like(segment[:, :1]), segment[:, :-1]), dim=1)
        lost[segment != before] = -math.inf
    first = lost.clone()
    running = log_key.clone()
    running[:, 0] = torch.maximum(running[:, 0], maximum + lost[:, 0])
    size = 1
    while size < running.shape[1]:
        running[:, size:] = torch.maximum(running[:, size:], (running[:, :-size] + lost[:, size:]).clone())
        lost[:, size:] = lost[:, size:] + lost[:, :-size].clone()
        size *= 2
    previous = torch.cat((maximum[:, None], running[:, :-1]), dim=1)
    return running, previous.masked_fill(first.isneginf(), -math.inf)
