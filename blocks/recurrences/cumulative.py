"""Exponentials normalised by all those before them: causal Latte's p(s|l,t) on any recurrence with a decay per feature.

Letters beside the legend's: L latents of a state head. With θ the key logits and z_t = log Σ_s exp(θ_s) over the tokens s ≤ t of
the document, p(s|l,t) = exp(θ_s - z_t) is the remainder at t of a key that entered at s:

    decay  z_{t-1} - z_t = log σ(z_{t-1} - θ_t)        key  exp(θ_t - z_t) = σ(θ_t - z_{t-1})

Key and decay sum to 1, so a state is always a mean of values; no exponent is above 0; and a small decay keeps all its digits, which
the difference of two z would not. z is carried as the running maximum and the sum of appendix B.3: as one number, updated token by
token in float32, it drifts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blocks.legend import Float, Int, Tensor, torch


@dataclass(frozen=True)
class Cumulative:
    """The inputs of the recurrence (key in [0, 1], log_decay at most 0), and the sum after the last token."""

    key: Float[Tensor, "B T N L"]
    log_decay: Float[Tensor, "B T N L"]
    maximum: Float[Tensor, "B N L"]
    total: Float[Tensor, "B N L"]


def cumulate(
    logits: Float[Tensor, "B T N L"],
    segment: Int[Tensor, "B T"] | None,
    maximum: Float[Tensor, "B N L"],
    total: Float[Tensor, "B N L"],
) -> Cumulative:
    """Keys and decays of the logits θ; -inf is no token.

    segment: as in the additive recurrence. total: Σ_s exp(θ_s - maximum) over the earlier tokens of the document that segment 0
    continues; 0, with a maximum of -inf, where there are none. A document's first token has log_decay 0: its state is dropped
    anyway.
    """
    # A maximum cancels, so it carries no gradient.
    largest = logits.detach()
    token_sums = _Sums(largest, (logits - _finite(largest)).exp(), segment)
    carried = _Sums(maximum.detach()[:, None], total[:, None], None if segment is None else torch.zeros_like(segment[:, :1]))
    if logits.shape[1] == 1:
        earlier, last = carried, carried.join(token_sums)
    else:
        running = _running(carried.then(token_sums))
        earlier, last = running.at(slice(-1)), running.at(slice(-1, None))

    first = earlier.seen_from(token_sums).isneginf()
    rise = logits - _finite(earlier.maximum) - earlier.total.masked_fill(first, 1.0).log()
    rise = rise.masked_fill(first, 0.0)
    key = rise.sigmoid().masked_fill(first, 1.0).masked_fill(largest.isneginf(), 0.0)
    log_decay = torch.nn.functional.logsigmoid(-rise).masked_fill(first, 0.0)
    return Cumulative(key, log_decay, last.maximum[:, 0], last.total[:, 0])


@dataclass(frozen=True)
class _Sums:
    """Σ exp(θ - maximum) over consecutive stretches of tokens, each of the document that it ends in (``segment``)."""

    maximum: Tensor
    total: Tensor
    segment: Tensor | None

    def at(self, which: slice) -> _Sums:
        return _Sums(self.maximum[:, which], self.total[:, which], None if self.segment is None else self.segment[:, which])

    def then(self, later: _Sums) -> _Sums:
        """Return these stretches followed by others."""
        segment = None
        if self.segment is not None and later.segment is not None:
            segment = torch.cat((self.segment, later.segment), dim=1)
        return _Sums(torch.cat((self.maximum, later.maximum), dim=1), torch.cat((self.total, later.total), dim=1), segment)

    def seen_from(self, later: _Sums) -> Tensor:
        """Return the maxima, -inf where the stretch that follows ends in another document."""
        if self.segment is None:
            return self.maximum
        return self.maximum.masked_fill((self.segment != later.segment)[..., None, None], -math.inf)

    def join(self, later: _Sums) -> _Sums:
        """Return each stretch and the one that follows it as one (eq. 19)."""
        before = self.seen_from(later)
        maximum = torch.maximum(before, later.maximum)
        total = self.total * (before - _finite(maximum)).exp() + later.total * (later.maximum - _finite(maximum)).exp()
        return _Sums(maximum, total, later.segment)


def _running(stretches: _Sums) -> _Sums:
    """Return all stretches up to each, joined: first in pairs, then between the pairs. The depth is 2 log₂ T additions, their
    number 2 T."""
    length = stretches.maximum.shape[1]
    if length == 1:
        return stretches
    odd = _running(stretches.at(slice(0, length // 2 * 2, 2)).join(stretches.at(slice(1, None, 2))))
    even = stretches.at(slice(1))
    if length > 2:
        even = even.then(odd.at(slice((length - 1) // 2)).join(stretches.at(slice(2, None, 2))))
    return _Sums(_interleave(even.maximum, odd.maximum), _interleave(even.total, odd.total), stretches.segment)


def _interleave(even: Tensor, odd: Tensor) -> Tensor:
    """even[0], odd[0], even[1], …; there may be one more even."""
    count = odd.shape[1]
    both = torch.stack((even[:, :count], odd), dim=2).flatten(1, 2)
    return both if even.shape[1] == count else torch.cat((both, even[:, count:]), dim=1)


def _finite(maximum: Tensor) -> Tensor:
    return maximum.masked_fill(maximum.isneginf(), 0.0)
