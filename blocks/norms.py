"""Normalisation by the root of the mean square."""

from __future__ import annotations

import functools

from blocks.legend import Float, Tensor, torch
from blocks.tensors import accumulating, as_dtype, derives_by_hand, may_read_numbers


def rms_norm(states: Float[Tensor, "*rest D"], weight: Float[Tensor, " D"], epsilon: float) -> Float[Tensor, "*rest D"]:
    """States over the root of their mean square, times a weight; computed in the accumulating dtype."""
    dtype = accumulating(states.dtype)
    wide = states
    if not states.dtype == weight.dtype == dtype:
        wide, weight = states.to(dtype), weight.to(dtype)
    if wide.requires_grad and derives_by_hand(wide):
        from blocks.gradients import divide_by_root

        return as_dtype(divide_by_root(wide, wide.shape[-1], epsilon) * weight, states.dtype)
    if torch.is_grad_enabled() or not may_read_numbers(wide):
        return torch.rms_norm(wide, weight.shape, weight, epsilon).to(states.dtype)
    # PyTorch has no kernel of it for a CPU. Of the tensors that its steps would make, this makes one.
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = torch.addcmul(_number(epsilon, dtype), length, length, value=1 / weight.shape[0]).rsqrt_()
    normed = wide.mul(scale).mul_(weight)
    return normed if wide is states else normed.to(states.dtype)


@functools.lru_cache
def _number(number: float, dtype: torch.dtype) -> Tensor:
    # Made once, for tensors with numbers: the first call may be in inference mode, and later ones not.
    with torch.inference_mode(mode=False):
        return torch.tensor(number, dtype=dtype, device="cpu")
