"""RWKV-7's state: a delta rule whose rate, removed key and written key are separate vectors."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from blocks import initialise
from blocks.feature_maps.base import UnitLength
from blocks.gates import GateConfig
from blocks.gates.base import MatrixRank, flops_of_matrices, logits
from blocks.gates.bounded_channel import BoundedChannel
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.edited import Edited, gate_matrices, of_gate
from blocks.operation import Form
from blocks.part import Fresh, Parameters, Problem
from blocks.recurrences import rank_one
from blocks.tensors import as_dtype


class Rwkv7(Edited):
    """S_t = (D_t - (a ∘ κ)ᵀ κ) S_{t-1} + k'ᵀ v of the token's own pair, read by q_t. κ = ξ ∘ k divided by its length is the key
    whose value is removed, and k' = k ∘ (1 + (a - 1) ∘ α) is the key that is written. a is the in-context learning rate, one
    number per feature: the share of κ's value that is removed. The paper's S is the transpose.

    Not in this memory: the token shift in front of the projections, the mixture of values with those of the first layer, and the
    bonus (q · (ρ ∘ k')) v, which the published layer adds after its norm.
    """

    equation: ClassVar[str] = (
        "S_t = (D_t - (a_t ∘ κ_t)ᵀ κ_t) S_{t-1} + k'_tᵀ v_t; a_t = σ(x_t A₁ A₂ + b), κ = ξ∘k / ‖ξ∘k‖, k' = k ∘ (1 + (a-1)∘α); "
        "o_t = φ(q_t) S_t"
    )
    source: ClassVar[str] = "Peng et al. 2025, arXiv:2503.14456 (RWKV-7), as in flash-linear-attention's layer"
    incidental: ClassVar[frozenset[str]] = Edited.incidental | {"bias"}
    kind: Literal["rwkv7"] = "rwkv7"
    gate: GateConfig = BoundedChannel()
    """How fast it forgets: D."""
    edit_rank: PositiveInt | Literal["full"] = 16
    """Columns of A₁; full: one matrix."""
    bias: float = 0.0
    """b at the start."""
    length: Literal["unit", "raw"] = "unit"
    """unit: features of queries and keys are divided by their length; raw: they are not, as published."""
    epsilon: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Added to the squared lengths that features and κ are divided by."""

    def problem(self, shape: Shape) -> Problem | None:
        if self.length == "raw" and shape.exponential:
            return "uses features unchanged, and this map's are exponentials without a bound; set `length: unit`", ("length",)
        return super().problem(shape)

    @property
    def features_as(self) -> UnitLength | None:
        return UnitLength(self.epsilon) if self.length == "unit" else None

    @property
    def recurrences(self) -> tuple[Form, ...]:
        return rank_one.FORMS

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        columns, head_shape = shape.state_heads * shape.features, (shape.state_heads, shape.features)
        bias = Fresh((columns,), initialise.constant(self.bias))
        factors = {name: Fresh(head_shape, initialise.constant(1.0)) for name in ("removed", "replaced")}
        return super().parameters(shape) | gate_matrices("rate", shape.hidden_size, columns, self.edit_rank, bias) | factors

    def edits(
        self,
        parameters: Parameters,
        shape: Shape,
        key: Float[Tensor, "B T N F"],
        value: Float[Tensor, "B T K V"],
        hidden: Float[Tensor, "B T C"],
    ) -> tuple[Tensor, ...]:
        """k', v, κ and a ∘ κ."""
        rate = logits(of_gate("rate", parameters), hidden).sigmoid().view(key.shape)
        removed, replaced = (as_dtype(parameters[name], key.dtype) for name in ("removed", "replaced"))
        sought = of_unit_length(key * removed, self.epsilon)
        return key * (1 + (rate - 1) * replaced), value, sought, rate * sought

    def products(self, shape: Shape) -> int:
        return 3

    def flops_of_gates(self, shape: Shape) -> int:
        rank: MatrixRank = self.edit_rank
        return flops_of_matrices(shape.hidden_size, shape.state_heads * shape.features, rank)


def of_unit_length(states: Float[Tensor, "*rest F"], epsilon: float) -> Float[Tensor, "*rest F"]:
    """Return the vectors divided by √(‖x‖² + epsilon). A vector of zeros does not change."""
    if epsilon:
        return states * (states.square().sum(-1, keepdim=True) + epsilon).rsqrt()
    length = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
    return states / length.clamp(min=torch.finfo(states.dtype).tiny ** 0.5)
