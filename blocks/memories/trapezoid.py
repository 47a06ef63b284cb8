"""All the past in a matrix whose features turn, and which each pair enters over two tokens: Mamba-3's state."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from blocks import initialise
from blocks.flow import Features, Pairs, Partial
from blocks.gates import GateConfig
from blocks.gates.base import logits
from blocks.gates.softplus import Softplus
from blocks.legend import Float, Int, Shape, Tensor, torch
from blocks.memories.edited import Edited, gate_matrices, of_gate
from blocks.memories.recurrent import run, stop_at_padding
from blocks.memories.state import add_skip
from blocks.operation import FLA, Call, Form, Kind, Port, Slot, State
from blocks.part import Fresh, Parameters, Problem
from blocks.recurrences import trapezoid
from blocks.recurrences.additive.chunked import CHUNK
from blocks.tensors import accumulating, affine, as_dtype, repeat_heads, take


class Trapezoid(Edited):
    """A matrix in which pairs of features turn, and which each key-value pair enters over two tokens. Its output is raw.

    R_t turns pairs of features by -Δ_t θ_t, as a complex decay does. The state itself does not turn: queries and keys are turned
    by the angles summed so far. Δ is the step from which `softplus` computes its decay, and 1 with other gates. With λ = 1, θ = 0
    and offsets of 0 it is a `state` with the same gate and step. Mamba-3's form with several inputs and outputs per head (MIMO) is
    not included.
    """

    equation: ClassVar[str] = (
        "S_t = α_t R_t S_{t-1} + (1-λ_t) Δ_t α_t R_t c_{t-1}ᵀ v_{t-1} + λ_t Δ_t c_tᵀ v_t, c = φ(k) + b, λ_t = σ(x_t W + w), "
        "R_t turns pairs of features by -π Δ_t tanh(x_t Θ); o_t = (φ(q_t) + b') S_t"
    )
    source: ClassVar[str] = "Lahoti et al. 2026, arXiv:2603.15569 (Mamba-3), angles and starts as in its code"
    decay_ranks: ClassVar[frozenset[str]] = trapezoid.DECAY_RANKS
    incidental: ClassVar[frozenset[str]] = Edited.incidental | {"bias", "offset"}
    kind: Literal["trapezoid"] = "trapezoid"
    gate: GateConfig = Softplus()
    """The decay α, one number per head."""
    turned: Literal["none", "half", "all"] = "half"
    """The share of the features that turn. The heads share the angles θ."""
    bias: float = 0.0
    """w at the start: 4 for λ = 0.98, nearly a pair that enters once. The published layer has no w."""
    offset: float = 1.0
    """b and b', one vector per head, at the start: 1 in the published layer."""
    skip: bool = False
    """Add the token's own value, times one learned number per head, as in Mamba-2 and Mamba-3 (their D)."""

    @property
    def recurrences(self) -> tuple[Form, ...]:
        return trapezoid.FORMS

    def problem(self, shape: Shape) -> Problem | None:
        if shape.exponential:
            return "features of this map are exponentials without a bound; choose another feature map, such as `identity`", ()
        return super().problem(shape)

    def angles(self, shape: Shape) -> int:
        """Return the number of pairs of features that turn."""
        pairs = shape.features // 2
        return {"none": 0, "half": -(-pairs // 2), "all": pairs}[self.turned]

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        width, heads, angles = shape.hidden_size, shape.state_heads, self.angles(shape)
        bias = Fresh((heads,), initialise.constant(self.bias))
        fresh = super().parameters(shape) | gate_matrices("share", width, heads, "full", bias)
        for name, count in (("query", shape.heads), ("key", heads)):
            fresh[f"{name}_offset"] = Fresh((count, shape.features), initialise.constant(self.offset))
        if angles:
            fresh["angle"] = Fresh((angles, width), initialise.fan_in(width), precise=True)
        return fresh | ({"skip": Fresh((shape.heads,), initialise.constant(1.0))} if self.skip else {})

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        step = Port("step", Kind.NUMBERS, shape.state_heads, 1)
        return (*super().inputs(shape), *([step] if self.gate.steps else []))

    def state(self, shape: Shape) -> dict[str, Slot]:
        """S, the last pair, and the angles summed so far, between -π and π."""
        slots = {
            "state": Slot((shape.state_heads, shape.features, shape.value_dim), "state"),
            "key": Slot((shape.state_heads, shape.features), "state"),
            "value": Slot((shape.key_heads, shape.value_dim), "pairs"),
        }
        return slots | ({"angle": Slot((shape.state_heads, angles), "state")} if (angles := self.angles(shape)) else {})

    def flops(self, shape: Shape, tokens: int) -> int:
        """The decay, two updates and the reads of the state, the queries' own pairs, the turns, and λ and θ."""
        entry, angles = 2 * shape.features * shape.value_dim, self.angles(shape)
        updates = (2 * entry + (0 if self.gate.rank_of_decay == "none" else entry // 2)) * shape.state_heads
        own_pair_flops = 2 * (shape.features + shape.value_dim) * shape.heads
        gates = 2 * shape.hidden_size * (shape.state_heads + angles)
        return updates + entry * shape.heads + own_pair_flops + 6 * angles * (shape.heads + shape.state_heads) + gates

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """As in decode, with one update and no decay of the state a token, and the chunk's pairs."""
        entry, columns = 2 * shape.features * shape.value_dim, shape.features + shape.value_dim
        decay = 0 if self.gate.rank_of_decay == "none" else entry // 2
        return self.flops(shape, tokens) - (entry + decay) * shape.state_heads + 2 * min(CHUNK, tokens) * shape.heads * columns

    def compute(
        self, parameters: Parameters, call: Call, query: Float[Tensor, "B T H F"], arriving: Features | None, decay: Tensor | None,
        recurrence: Form, *, pairs: Pairs | None, hidden: Float[Tensor, "B T C"] | None = None,
        step: Float[Tensor, "B T N"] | None = None,
    ) -> tuple[Partial, State]:  # fmt: skip
        assert arriving is not None, "it receives every pair"
        assert hidden is not None, "the graph passes it"
        tokens, state, heads = call.tokens, call.state, call.shape.state_heads
        # fla's kernels multiply in the model's dtype, and sum in float32 by themselves.
        value = arriving.value if recurrence.backend == FLA else as_dtype(arriving.value, accumulating(arriving.value.dtype))
        query = query + as_dtype(parameters["query_offset"], query.dtype)
        key = repeat_heads(arriving.key, heads) + as_dtype(parameters["key_offset"], query.dtype)
        own_weight = logits(of_gate("share", parameters), hidden).sigmoid()
        previous_weight = 1 - own_weight
        if step is not None:
            own_weight, previous_weight = own_weight * step, previous_weight * step
        carried: State = {}
        if "angle" in state:
            turn = math.pi * affine(hidden, parameters["angle"], None, query.dtype).tanh()[:, :, None]
            turn = turn.expand(-1, -1, heads, -1) if step is None else turn * step[..., None]
            angle = sum_angles(arriving.fill_absent(turn, 0.0), tokens.segment, state["angle"])
            carried["angle"] = angle[:, -1].clone()
            query, key = turn_features(query, angle), turn_features(key, angle)
        result, carried["state"] = run(
            recurrence,
            call,
            query,
            key,
            value,
            arriving.fill_absent(own_weight, 0.0),
            arriving.fill_absent(previous_weight, 0.0),
            stop_at_padding(decay, tokens),
            tokens.segment,
            state["state"],
            state["key"],
            state["value"],
        )
        for name, entries in (("key", key), ("value", arriving.value)):
            carried[name] = tokens.tail(torch.cat((state[name][:, None], entries), dim=1), 1).squeeze(1).clone()
        partial = Partial(result, None)
        return add_skip(parameters, partial, arriving.value) if self.skip else partial, carried


def sum_angles(
    turn: Float[Tensor, "B T N A"], segment: Int[Tensor, "B T"] | None, start: Float[Tensor, "B N A"]
) -> Float[Tensor, "B T N A"]:
    """Return the angles summed up to each token of its document, between -π and π. start: those of the document that continues.

    Sums are in float64: float32 numbers near 1,000 are 6e-5 apart.
    """
    total = turn.cumsum(1, dtype=torch.float64)
    if segment is None:
        total = total + start[:, None]
    else:
        begins = segment.diff(dim=1, prepend=torch.zeros_like(segment[:, :1])) != 0
        first = torch.where(begins, torch.arange(turn.shape[1], device=turn.device), 0).cummax(1).values
        total = total - take(total - turn, first) + start[:, None] * (segment == 0)[..., None, None]
    return (total - 2 * math.pi * (total.detach() / (2 * math.pi)).round()).to(turn.dtype)


def turn_features(states: Float[Tensor, "B T h F"], angle: Float[Tensor, "B T N A"]) -> Float[Tensor, "B T h F"]:
    """Turn features i and i + A by the angles of the head's state head, for each i < A."""
    angles = angle.shape[-1]
    cosine, sine = (repeat_heads(values, states.shape[2]) for values in (angle.cos(), angle.sin()))
    first, second, others = states.split((angles, angles, states.shape[-1] - 2 * angles), dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine, others), dim=-1)
