"""Documents cut into stretches of bounded length: a long document is spread over many processors, and many short ones need few
launches."""

from __future__ import annotations

from dataclasses import dataclass

from blocks.legend import Int, Tensor, torch

SPAN = 512


@dataclass(frozen=True)
class Stretches:
    """Stretches of tokens, each within one document. count: the number of stretches of each document, which follow one another."""

    begins: Int[Tensor, " P"]
    ends: Int[Tensor, " P"]
    document: Int[Tensor, " P"]
    count: Int[Tensor, " n"]

    @staticmethod
    def of(bounds: Int[Tensor, " b"]) -> Stretches:
        """Stretches of at most ``SPAN`` tokens. bounds: the beginning of each document, and the end of the last."""
        lengths = bounds.diff()
        count = (lengths + SPAN - 1) // SPAN
        document = torch.repeat_interleave(count)
        first = count.cumsum(0) - count
        begins = bounds[document] + (torch.arange(document.shape[0], device=bounds.device) - first[document]) * SPAN
        ends = torch.minimum(begins + SPAN, bounds[document + 1])
        return Stretches(begins.to(torch.int32), ends.to(torch.int32), document.to(torch.int32), count)

    def reduce(self, brought: Tensor, reduction: str = "sum") -> Tensor:
        """For each document, the reduction of the values of its stretches."""
        return torch.segment_reduce(brought, reduction, lengths=self.count, axis=0, unsafe=True)
