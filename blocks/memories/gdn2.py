"""Gated DeltaNet-2's state: a delta rule with one gate for removal, and another for writing."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from blocks import initialise
from blocks.feature_maps.base import UnitLength
from blocks.gates import GateConfig
from blocks.gates.base import MatrixRank, flops_of_matrices, logits
from blocks.gates.softplus_channel import SoftplusChannel
from blocks.legend import Float, Shape, Tensor
from blocks.memories.edited import Edited, gate_matrices, of_gate
from blocks.operation import Form
from blocks.part import Fresh, Integer, Parameters
from blocks.recurrences import erase
from blocks.tensors import as_dtype, repeat_heads


class Gdn2(Edited):
    """S_t = (I - uᵀ (b ∘ u)) D_t S_{t-1} + uᵀ (w ∘ v) of the token's own pair, read by a query of length 1; u is a key of length 1.

    b, one number per feature, is the share of the state's value for u that is removed. w, one number per coordinate of the value,
    is the share that is written. If both are one number, this is `delta`.
    """

    equation: ClassVar[str] = (
        "S_t = (I - u_tᵀ (b_t ∘ u_t)) D_t S_{t-1} + u_tᵀ (w_t ∘ v_t), b_t = largest · σ(x_t B + c), w_t = σ(x_t W + c'), "
        "u = φ(k)/‖φ(k)‖; o_t = φ(q_t)/‖φ(q_t)‖ S_t"
    )
    source: ClassVar[str] = "Hatamizadeh et al. 2026, arXiv:2605.22791 (Gated DeltaNet-2), as in flash-linear-attention's layer"
    by_coordinate: ClassVar[bool] = True
    incidental: ClassVar[frozenset[str]] = Edited.incidental | {"bias"}
    kind: Literal["gdn2"] = "gdn2"
    gate: GateConfig = SoftplusChannel()
    """How fast it forgets: D."""
    edit_rank: PositiveInt | Literal["full"] = "full"
    """Columns between the hidden state and each of the two gates; full: one matrix each, as published."""
    bias: float = 0.0
    """c and c' at the start. The published layer has none."""
    largest: Annotated[Literal[1, 2], Integer] = 1
    """With 2, the state can also reverse the sign of the value for a key. With 1, it can only remove the value."""
    scale: Literal["none", "root"] = "none"
    """root: the output is divided by √F, as the published layer divides it before its norm; none: it is not."""
    epsilon: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Added to the squared length that features are divided by. Published code has 1e-6."""

    @property
    def features_as(self) -> UnitLength:
        return UnitLength(self.epsilon)

    @property
    def recurrences(self) -> tuple[Form, ...]:
        return erase.FORMS

    def _columns(self, shape: Shape) -> dict[str, int]:
        return {"erase": shape.state_heads * shape.features, "write": shape.state_heads * shape.value_dim}

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        fresh = super().parameters(shape)
        for name, columns in self._columns(shape).items():
            bias = Fresh((columns,), initialise.constant(self.bias))
            fresh |= gate_matrices(name, shape.hidden_size, columns, self.edit_rank, bias)
        return fresh

    def edits(
        self,
        parameters: Parameters,
        shape: Shape,
        key: Float[Tensor, "B T N F"],
        value: Float[Tensor, "B T K V"],
        hidden: Float[Tensor, "B T C"],
    ) -> tuple[Tensor, ...]:
        """u, w ∘ v and b."""
        erased, written = (logits(of_gate(name, parameters), hidden).sigmoid() for name in ("erase", "write"))
        value = repeat_heads(value, shape.state_heads)
        value = value * as_dtype(written.view(value.shape), value.dtype)
        return key, value, self.largest * erased.view(key.shape)

    def scale_output(self, output: Float[Tensor, "B T H V"], features: int) -> Float[Tensor, "B T H V"]:
        return output / math.sqrt(features) if self.scale == "root" else output

    def products(self, shape: Shape) -> int:
        return 2

    def flops_of_gates(self, shape: Shape) -> int:
        rank: MatrixRank = self.edit_rank
        return sum(flops_of_matrices(shape.hidden_size, columns, rank) for columns in self._columns(shape).values())
