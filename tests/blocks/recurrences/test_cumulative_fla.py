"""The first token of a document causes no rounding error in later tokens on flash-linear-attention."""

from __future__ import annotations

import math

import torch

from blocks.recurrences import cumulative_fla
from blocks.recurrences.additive.recurrent import naive
from blocks.recurrences.cumulative import cumulate
from tests.interpreter import nothing_refused

LENGTH, HEADS, LATENTS, WIDE = 21, 2, 4, 8


def answers(dtype: torch.dtype, segment: torch.Tensor | None, *, kernel: bool) -> list[torch.Tensor]:
    """Return outputs and the gradients of queries, logits and values, from an empty state."""
    generator = torch.Generator().manual_seed(3)
    sizes = ((HEADS, LATENTS), (HEADS, LATENTS), (HEADS, WIDE), (HEADS, WIDE))
    query, logits, value, weight = (
        torch.randn(1, LENGTH, *size, generator=generator, dtype=torch.float64).to(dtype) for size in sizes
    )
    leaves = [tensor.requires_grad_() for tensor in (query.softmax(-1).detach(), logits, value)]
    maximum, total = torch.full((1, HEADS, LATENTS), -math.inf, dtype=dtype), torch.zeros(1, HEADS, LATENTS, dtype=dtype)
    mean = torch.zeros(1, HEADS, LATENTS, WIDE, dtype=dtype)
    if kernel:
        output, *_ = cumulative_fla.means(leaves[0], leaves[1], leaves[2], segment, maximum, total, mean)
    else:
        sums = cumulate(leaves[1], segment, maximum, total)
        output, _ = naive(leaves[0], sums.key, leaves[2], sums.log_decay, segment, mean)
    (output * weight).sum().backward()
    return [output.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def test_a_documents_first_token_does_not_round_later_decays() -> None:
    """The steepest decay that the kernels accept would round the sums of all later decays, an error of 3e-6 of the output."""
    for segment in (None, (torch.arange(LENGTH)[None] >= 6).long()):
        wanted = answers(torch.float64, segment, kernel=False)
        with nothing_refused():
            actual = answers(torch.float32, segment, kernel=True)
        assert len(actual) == len(wanted) == 4
        for first, other in zip(actual, wanted, strict=True):
            torch.testing.assert_close(first.double(), other, rtol=0, atol=1e-6 * other.abs().max().item())
