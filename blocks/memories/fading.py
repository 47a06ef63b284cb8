"""Logits that decrease at every token after their pair: the sum of log decays from each pair to each query.

A pair's logit at t changes by Σ log α_u, s < u ≤ t. The state has the sum from each pair to the last token, so the sums of
recent pairs are small and precise, however long the text is. Within a call they are differences of one running sum in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

from blocks.flow import Tokens
from blocks.legend import Float, Tensor, torch


@dataclass(frozen=True)
class Fading:
    """The running sums of log decays in a call.

    totals: at the call's tokens. since: for each stored or new entry. The change of a logit is the difference of the two.
    """

    totals: Float[Tensor, "B T H"]
    since: Float[Tensor, "B S H"]
    dtype: torch.dtype

    def left(self) -> Float[Tensor, "B S H"]:
        """Return the sum of log decays from each entry to the last token."""
        return (self.totals[:, -1:] - self.since).to(self.dtype)


def fading(held: Float[Tensor, "B E H"], decay: Float[Tensor, "B T H"], tokens: Tokens) -> Fading:
    """Compute the running sums of a call. held: the sums of the stored entries so far. Padding tokens have no decay."""
    if tokens.valid is not None:
        decay = decay.masked_fill(~tokens.valid[..., None], 0.0)
    running = decay.double().cumsum(1)
    return Fading(running, torch.cat((-held.double(), running), dim=1), held.dtype)
