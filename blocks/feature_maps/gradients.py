"""The softmax map and its gradient, written out. It needs no mask over all features for the few that are at the floor.

This module imports torch. ``Hedgehog`` imports it at its first use.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.amp import custom_bwd, custom_fwd
from torch.autograd.function import once_differentiable

from blocks.legend import Float


def shares(inputs: Float[Tensor, "*rest F"], floor: float) -> Float[Tensor, "*rest 2*F"]:
    """Return softmax(u) ‖ softmax(-u), each value at least ``floor``."""
    return _Shares.apply(inputs, floor).flatten(-2)


class _Shares(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cpu")
    def forward(ctx: Any, inputs: Tensor, floor: float) -> Tensor:
        sides = inputs.new_empty(*inputs.shape[:-1], 2, inputs.shape[-1])
        sides[..., 0, :].copy_(inputs)
        torch.neg(inputs, out=sides[..., 1, :])
        features = sides.softmax(-1)
        ctx.save_for_backward(features)
        ctx.floor = floor if bool(features.amin() < floor) else None
        return features if ctx.floor is None else features.clamp(min=floor)

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (features,) = ctx.saved_tensors
        if ctx.floor is not None:  # features at the floor have no gradient
            slope = slope * (features >= ctx.floor)
        sides = torch.ops.aten._softmax_backward_data(slope, features, -1, features.dtype)
        return sides[..., 0, :] - sides[..., 1, :], None
