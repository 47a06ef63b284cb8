"""Hedgehog: a learned linear map and a softmax over its coordinates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from blocks.feature_maps.base import FeatureMap
from blocks.kernels import TRITON_PACKAGE, Kernel, gpu_obstacle
from blocks.legend import Float, Shape, Tensor
from blocks.operation import TRITON, Form, Setting
from blocks.part import Problem
from blocks.tensors import derives_by_hand

SHARES = Kernel("blocks.fused.hedgehog", "shares", TRITON_PACKAGE)
WIDEST = 256
"""The largest number of columns that the kernel supports."""


class Hedgehog(FeatureMap):
    """φ(x) = softmax(xW) ‖ softmax(-xW), each value at least ``floor``, as in LoLCATs' code."""

    equation: ClassVar[str] = "φ(x) = softmax(xW) ‖ softmax(-xW)"
    source: ClassVar[str] = "Zhang et al. 2024, arXiv:2402.04347, section 4.2; LoLCATs, arXiv:2410.10254"
    incidental: ClassVar[frozenset[str]] = FeatureMap.incidental | {"floor"}
    even: ClassVar[bool] = True
    kind: Literal["hedgehog"] = "hedgehog"
    linear: bool = True
    two_sided: bool = True
    floor: Annotated[float, Field(ge=1e-18, lt=1)] = 1e-12
    """The smallest feature. With it, queries and keys without a common feature still have a mass above 0."""

    def misfit(self, shape: Shape) -> Problem | None:
        if self.with_dim(shape).dim == 1 or (shape.head_dim == 1 and not self.linear):
            return "a softmax over one column is always 1; set `dim` to 2 or more", ("dim",)
        return super().misfit(shape)

    def forms(self, run: Callable[..., Any]) -> tuple[Form, ...]:
        description = "a product and its softmaxes, in one pass"
        plain = partial(fused_shares, skip=self.skip, sides=2 if self.two_sided else 1, floor=self.floor)
        fused = Form(TRITON, description, partial(run, plain=plain), self._obstacle, missing=SHARES.missing, refuses=True)
        return (fused, *super().forms(run))

    def _obstacle(self, setting: Setting) -> str | None:
        if not self.linear:
            return "there is no product to fuse"
        largest = 0 if setting.shape is None else max(setting.shape.head_dim, self.dim or 0)
        return f"it supports at most {WIDEST} columns, not {largest}" if largest > WIDEST else gpu_obstacle(setting)

    def sides(self, inputs: Tensor) -> Tensor:
        """Return softmax(u) ‖ softmax(-u). If gradients are needed on a CPU, the form with a written-out gradient is used."""
        if not (inputs.requires_grad and derives_by_hand(inputs)):
            return super().sides(inputs)
        from blocks.feature_maps.gradients import shares

        return shares(inputs, self.floor)

    def activate(self, inputs: Tensor) -> Tensor:
        shares = inputs.softmax(dim=-1)
        # The gradient of a softmax needs its output, so the clamp must not be in place.
        return shares.clamp(min=self.floor) if shares.requires_grad else shares.clamp_(min=self.floor)


def fused_shares(
    inputs: Float[Tensor, "B T N D"], weight: Float[Tensor, "n D F"], bias: Tensor | None, *, skip: bool, sides: int, floor: float
) -> Float[Tensor, "B T M G"]:
    """Return the product and its softmaxes, by the kernel."""
    return SHARES(inputs, weight, bias, skip=skip, sides=sides, floor=floor)
