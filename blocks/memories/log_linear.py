"""All the past in states whose number grows with the logarithm of its length: log-linear attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from blocks import initialise
from blocks.flow import Features, Pairs, Partial, Tokens
from blocks.legend import Float, Int, Shape, Tensor, torch
from blocks.memories.base import Memory, Misplaced
from blocks.memories.recurrent import Recurrent, stop_at_padding
from blocks.memories.state import quotient
from blocks.operation import Call, Form, Kind, Port, Slot, State
from blocks.part import Fresh, Parameters, Problem
from blocks.recurrences import fenwick
from blocks.recurrences.fenwick import CHUNK
from blocks.tensors import accumulating, as_dtype, repeat_heads, with_ones


class LogLinear(Recurrent):
    """A state for each level of the past: the newest pair, the pair before it, then 2, 4, 8, … pairs. Each query weighs the levels.

    The weights λ of a query are a linear function of its hidden state. They begin at 1, with which the memory is a `state` with
    the same gate. The paper's Mamba-2 also multiplies pairs by a step, and adds the token's own value, as `state` can.
    """

    equation: ClassVar[str] = (
        "o_t = Σ_ℓ λ_tℓ φ(q_t) S_tℓ, S_tℓ = Σ_{s in level ℓ of t} α_{s+1} … α_t φ(k_s)ᵀ v_s, λ_t = softplus(x_t W + b); "
        "level 0: s = t, else the binary digits of t xor s; normalised as `state`"
    )
    source: ClassVar[str] = "Guo et al. 2025, arXiv:2506.04761 (Log-Linear Attention)"
    decay_ranks: ClassVar[frozenset[str]] = fenwick.DECAY_RANKS
    takes_several: ClassVar[bool] = False
    to_have_mass: ClassVar[str] = "set `normalise: true`, "
    kind: Literal["log_linear"] = "log_linear"
    levels: Annotated[int, Field(ge=2, le=48)] = 17
    """Number of states. 17 levels tell 65,536 positions apart. The last level has all older pairs, too."""
    normalise: bool = True
    """Divide by the mass. Otherwise the output is a raw numerator, which only `read: sum` can combine with other memories."""

    @property
    def declared_size(self) -> int:
        return self.levels

    def has_mass(self) -> bool:
        return self.normalise

    @property
    def recurrences(self) -> tuple[Form, ...]:
        return fenwick.FORMS

    def problem(self, shape: Shape) -> Problem | None:
        if shape.exponential:
            return "features of this map are exponentials without a bound; choose another feature map, such as `relu` or `t2r`", ()
        if self.normalise and shape.signed:
            return (
                "features of this map can be negative, so there is no mass to divide by; "
                "choose a positive feature map, or set `normalise: false`"
            ), ()
        return super().problem(shape)

    def problem_between(self, above: Sequence[Memory], below: Mapping[str, Memory], *, edges: bool) -> Iterator[Misplaced]:
        if above:
            yield (
                "its levels count tokens, and this memory receives pairs that another one evicts later; let it receive every pair "
                f"(`flow: parallel`, or the edge `pairs -> {self.called}`), or use `state`",
                ("kind",),
            )

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        """The linear function of λ, one number for each query head and level."""
        columns = shape.heads * self.levels
        return super().parameters(shape) | {
            "level_weight": Fresh((columns, shape.hidden_size), initialise.constant(0.0)),
            "level_bias": Fresh((columns,), initialise.constant(math.log(math.e - 1))),
        }

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        return (*super().inputs(shape), Port("hidden", Kind.HIDDEN, dim=shape.hidden_size))

    def state(self, shape: Shape) -> dict[str, Slot]:
        """The states of all levels, with the mass as the last column, and the position of the newest token."""
        least = 0.0 if self.normalise else -math.inf
        size = (shape.state_heads, self.levels, shape.features, shape.value_dim + self.normalise)
        return {"state": Slot(size, "state", minimum=least, bounded_from=-1), "newest": Slot((1,), "int64", -1)}

    def flops(self, shape: Shape, tokens: int) -> int:
        """Decay, update and reads of all levels, and λ."""
        entry = 2 * shape.features * (shape.value_dim + self.normalise)
        decay = 0 if self.gate.rank_of_decay == "none" else entry // 2 * self.levels
        reads = shape.heads * self.levels * (entry + 2 * shape.hidden_size)
        return (entry + decay) * shape.state_heads + reads

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """The reads of all levels, the chunk's own pairs, and the update of a level."""
        columns = shape.value_dim + self.normalise
        chunk = 2 * min(CHUNK, tokens) * shape.heads * (shape.features + columns)
        reads = 2 * self.levels * shape.heads * (shape.features * columns + shape.hidden_size)
        return chunk + reads + 2 * shape.features * columns * shape.state_heads

    def compute(
        self, parameters: Parameters, call: Call, query: Float[Tensor, "B T H F"], arriving: Features | None, decay: Tensor | None,
        recurrence: Form, *, pairs: Pairs | None, hidden: Float[Tensor, "B T C"] | None = None,
    ) -> tuple[Partial, State]:  # fmt: skip
        assert arriving is not None, "it receives every pair"
        assert hidden is not None, "the graph passes it"
        shape, tokens, dtype = call.shape, call.tokens, arriving.value.dtype
        value = as_dtype(arriving.value, accumulating(dtype))
        key = arriving.fill_absent(repeat_heads(arriving.key, shape.state_heads), 0.0)
        newest = call.state["newest"][:, 0]
        position, segment = _places(tokens, newest)
        output, matrix = recurrence.run(
            query,
            key,
            with_ones(value) if self.normalise else value,
            self.weigh_levels(parameters, hidden, shape.heads),
            stop_at_padding(decay, tokens),
            position,
            segment,
            call.state["state"],
            newest,
        )
        result = quotient(output, dtype, mass=call.needs_mass) if self.normalise else Partial(output, None)
        # A step that is recorded overwrites the positions of its tokens before the next one reads the state.
        return result, {"state": matrix, "newest": position[:, -1:].clone()}

    def weigh_levels(self, parameters: Parameters, hidden: Float[Tensor, "B T C"], heads: int) -> Float[Tensor, "B T H L"]:
        """Return λ, in the accumulating dtype."""
        weight, bias = (as_dtype(parameters[f"level_{name}"], accumulating(hidden.dtype)) for name in ("weight", "bias"))
        logits = torch.nn.functional.linear(as_dtype(hidden, weight.dtype), weight, bias)
        return torch.nn.functional.softplus(logits).unflatten(2, (heads, self.levels))

    def matrix(self, state: State) -> Float[Tensor, "B N F V"]:
        """Return the sum of all levels, without z."""
        matrix = state["state"].double().sum(2)
        return matrix[..., :-1] if self.normalise else matrix


def _places(tokens: Tokens, newest: Int[Tensor, " B"]) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"] | None]:
    """Return the positions and documents of the tokens. Padding, which is at the end of a row, has those of the last real token, or
    of the state."""
    position, segment, valid = tokens.position, tokens.segment, tokens.valid
    if valid is None:
        return position, segment
    last = (valid.sum(1, keepdim=True) - 1).clamp(min=0)
    final = torch.where(valid.any(1, keepdim=True), position.gather(1, last), newest[:, None])
    return position.where(valid, final), None if segment is None else segment.where(valid, tokens.last_segment())
