"""Norms of queries and keys after their projection: all later parts, exact memories too, read the normalised ones."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import PositiveFloat

from blocks import initialise
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port, State
from blocks.part import Fresh, Parameters, Part
from blocks.registry import Role
from blocks.tensors import accumulating


class QueryKeyNorm(Part):
    """Each head's query and key, each over its own size."""

    role: ClassVar[str] = "qk norm"
    unread: ClassVar[str] = "latents have no queries and keys; remove `qk_norm` (or set it to null)"
    learned: bool = True
    """Whether learned weights follow; they start at 1."""
    epsilon: PositiveFloat = 1e-6
    """Added to the square of the size."""

    def operation(self, shape: Shape) -> Operation:
        ports = (
            Port("query", Kind.QUERY, shape.heads, shape.head_dim),
            Port("key", Kind.KEY, shape.key_heads, shape.head_dim),
        )
        return Operation(reads=ports, gives=ports, forms=(Form(EVERY, "as defined", self._run),))

    def _run(self, parameters: Parameters, call: Call, *, query: Tensor, key: Tensor) -> tuple[tuple[Tensor, Tensor], State]:
        return (self.norm(query, parameters.get("query")), self.norm(key, parameters.get("key"))), {}

    def flops(self, shape: Shape, tokens: int) -> int:
        return 4 * (shape.heads + shape.key_heads) * shape.head_dim

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        if not self.learned:
            return {}
        sizes = {"query": self.weights(shape, shape.heads), "key": self.weights(shape, shape.key_heads)}
        return {name: Fresh(size, initialise.constant(1.0)) for name, size in sizes.items()}

    def weights(self, shape: Shape, heads: int) -> tuple[int, ...]:
        """Return the size of the learned weights of so many heads."""
        raise NotImplementedError

    def norm(self, states: Float[Tensor, "B T h D"], weight: Tensor | None) -> Float[Tensor, "B T h D"]:
        """In the accumulating dtype, and back."""
        raise NotImplementedError


class RootMeanSquare(QueryKeyNorm):
    """RMSNorm with one weight a coordinate, which the heads share, as Qwen3 has it."""

    equation: ClassVar[str] = "q̂ = q / √(mean(q²) + ε) ⊙ w_q (k̂ likewise)"
    source: ClassVar[str] = "Qwen team 2025, arXiv:2505.09388, section 2; Dehghani et al. 2023, arXiv:2302.05442 (LayerNorm)"
    kind: Literal["rms"] = "rms"

    def weights(self, shape: Shape, heads: int) -> tuple[int, ...]:
        return (shape.head_dim,)

    def norm(self, states: Float[Tensor, "B T h D"], weight: Tensor | None) -> Float[Tensor, "B T h D"]:
        wide = accumulating(states.dtype)
        weight = None if weight is None else weight.to(wide)
        return torch.rms_norm(states.to(wide), states.shape[-1:], weight, self.epsilon).to(states.dtype)


class Length(QueryKeyNorm):
    """Length 1, times one number per head, 1 at the start. With exact memories, which also divide by √D, attention is nearly
    uniform at the start: no logit exceeds 1 / √D, 0.125 at D = 64, before the two numbers have grown.
    """

    equation: ClassVar[str] = "q̂ = q / √(‖q‖² + ε) · s_q (k̂ likewise)"
    source: ClassVar[str] = "Henry et al. 2020, arXiv:2010.04245"
    kind: Literal["l2"] = "l2"

    def weights(self, shape: Shape, heads: int) -> tuple[int, ...]:
        return (heads,)

    def norm(self, states: Float[Tensor, "B T h D"], weight: Tensor | None) -> Float[Tensor, "B T h D"]:
        wide = states.to(accumulating(states.dtype))
        scale = (wide.square().sum(-1, keepdim=True) + self.epsilon).rsqrt()
        if weight is not None:
            scale = scale * weight.to(wide.dtype)[:, None]
        return (wide * scale).to(states.dtype)


QUERY_KEY_NORMS = Role("qk norm", QueryKeyNorm, RootMeanSquare, Length)
QueryKeyNormConfig = Annotated[QueryKeyNorm, QUERY_KEY_NORMS]
