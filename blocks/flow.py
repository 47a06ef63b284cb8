"""What flows along the edges of a head: tokens of a call, pairs on their way down, partial attentions on their way out."""

from __future__ import annotations

from dataclasses import dataclass

from blocks.legend import Bool, Float, Int, Shaped, Tensor, torch


@dataclass(frozen=True)
class Tokens:
    """The tokens of one call. A row's real tokens stand first; padding, if any, stands behind them.

    position: place of each token in its own document, from 0.
    segment: which document of the row each token belongs to, not decreasing; 0 continues the state that was handed in, so a
        document that starts at the first token has 1. None: all tokens continue it.
    valid: which tokens are real. None: all of them.
    """

    position: Int[Tensor, "B T"]
    segment: Int[Tensor, "B T"] | None = None
    valid: Bool[Tensor, "B T"] | None = None

    def tail(self, extended: Shaped[Tensor, "B E ..."], count: int) -> Tensor:
        """The last ``count`` entries up to each row's last real one, of ``count`` earlier entries and those of the call."""
        if self.valid is None:
            return extended[:, extended.shape[1] - count :]
        index = self.valid.sum(1)[:, None] + torch.arange(count, device=extended.device)
        index = index.view(*index.shape, *[1] * (extended.dim() - 2)).expand(-1, -1, *extended.shape[2:])
        return extended.gather(1, index)

    def extended_segment(self, count: int) -> Int[Tensor, "B E"] | None:
        """Segments of ``count`` earlier entries (they belong to the document that the state belongs to) and of the call's."""
        if self.segment is None:
            return None
        return torch.cat((self.segment.new_zeros(self.segment.shape[0], count), self.segment), dim=1)

    def last_segment(self) -> Int[Tensor, "B 1"]:
        """The document that each row ends in."""
        assert self.segment is not None
        if self.valid is None:
            return self.segment[:, -1:]
        last = self.segment.gather(1, (self.valid.sum(1, keepdim=True) - 1).clamp(min=0))
        return last * self.valid.any(1, keepdim=True)

    def tail_is_current(self, count: int) -> Bool[Tensor, "B P"] | None:
        """Which of ``tail``'s entries belong to the document that the row ends in. None: all."""
        extended = self.extended_segment(count)
        return None if extended is None else self.tail(extended, count) == self.last_segment()


@dataclass(frozen=True)
class Pairs:
    """Pairs of one key and one value, one a token: those of the call, or those that fall out of a memory at each of its tokens.

    key: not rotated. convolved: the key as the feature maps see it, not rotated either, with its own number of heads (it is
    the key itself where the head has no convolution). position: place in the document; -1 where there is no pair.
    """

    key: Float[Tensor, "B T K D"]
    convolved: Float[Tensor, "B T N D"]
    value: Float[Tensor, "B T K D"]
    position: Int[Tensor, "B T"]

    @property
    def present(self) -> Bool[Tensor, "B T"]:
        return self.position >= 0


@dataclass(frozen=True)
class Features:
    """Pairs as a feature map sees them: features of the keys (N heads, or fewer that are shared), values, and where one is."""

    key: Float[Tensor, "B T N F"]
    value: Float[Tensor, "B T K D"]
    present: Bool[Tensor, "B T"]


@dataclass(frozen=True)
class Partial:
    """A memory's answer: a normalised output and the natural logarithm of the mass behind it.

    lse: -inf where the memory is empty (the output is 0 there); None where the output is a raw numerator without a mass.
    logit: the memory's own weight in the head's read, one a head, before any sigmoid. None: it has none.
    """

    output: Float[Tensor, "B T H D"]
    lse: Float[Tensor, "B T H"] | None
    logit: Float[Tensor, " H"] | None = None


def accumulating(dtype: torch.dtype) -> torch.dtype:
    """The dtype that sums are kept in: float32, or float64 where the model is in float64."""
    return torch.promote_types(dtype, torch.float32)


def repeat_heads(states: Tensor, heads: int) -> Tensor:
    """Give every query head its key head's entry: ``B T K ...`` to ``B T H ...``, head h from h // (H // K)."""
    return states if states.shape[2] == heads else states.repeat_interleave(heads // states.shape[2], dim=2)
