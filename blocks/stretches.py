"""Documents cut into stretches of bounded length: a long one keeps many processors busy, and many short ones take few launches."""

from __future__ import annotations

from dataclasses import dataclass

from blocks.legend import Int, Tensor, torch

SPAN = 512


@dataclass(frozen=True)
class Stretches:
    """Tokens of one document each. count: stretches of each document, which follow one another."""

    begins: Int[Tensor, " P"]
    ends: Int[Tensor, " P"]
    document: Int[Tensor, " P"]
    count: Int[Tensor, " n"]

    @staticmethod
    def of(bounds: Int[Tensor, " b"]) -> Stretches:
        """bounds: where each document begins, and where the last ends. Of at most ``SPAN`` tokens each."""
        lengths = bounds.diff()
        count = (lengths + SPAN - 1) // SPAN
        document = torch.repeat_interleave(count)
        first = count.cumsum(0) - count
        begins = bounds[document] + (torch.arange(document.shape[0], device=bounds.device) - first[document]) * SPAN
        ends = torch.minimum(begins + SPAN, bounds[document + 1])
        return Stretches(begins.to(torch.int32), ends.to(torch.int32), document.to(torch.int32), count)

    def joined(self, brought: Tensor, how: str = "sum") -> Tensor:
        """Of each document, what its stretches bring."""
        return torch.segment_reduce(brought, how, lengths=self.count, axis=0, unsafe=True)
