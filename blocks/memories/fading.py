"""Logits that fall with every token after their pair came in: decays, summed from each pair up to each query.

A pair's logit at t falls by Σ log α_u, s < u ≤ t. The sums are kept from each pair up to the last token, so that those of near
pairs stay small and keep their digits, however long the text. Inside a call they are differences of one running sum, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

from blocks.flow import Tokens
from blocks.legend import Float, Tensor, torch


@dataclass(frozen=True)
class Fading:
    """Running sums of a call. totals: at its tokens; since: for each entry, those held and the call's own, what a logit falls by is
    their difference."""

    totals: Float[Tensor, "B T H"]
    since: Float[Tensor, "B S H"]
    dtype: torch.dtype

    def left(self) -> Float[Tensor, "B S H"]:
        """What each entry has fallen by at the last token."""
        return (self.totals[:, -1:] - self.since).to(self.dtype)


def fading(held: Float[Tensor, "B E H"], decay: Float[Tensor, "B T H"], tokens: Tokens) -> Fading:
    """held: what each earlier entry had fallen by. No time passes at padding."""
    if tokens.valid is not None:
        decay = decay.masked_fill(~tokens.valid[..., None], 0.0)
    running = decay.double().cumsum(1)
    return Fading(running, torch.cat((-held.double(), running), dim=1), held.dtype)
