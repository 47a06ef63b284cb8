"""The past as a regression from keys to values, solved anew at every token: MesaNet's layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal

from pydantic import PositiveFloat

from blocks import initialise
from blocks.flow import Features, Pairs, Partial
from blocks.gates import GateConfig
from blocks.gates.head import PerHead
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.base import Memory, Misplaced
from blocks.memories.recurrent import Rated, run
from blocks.operation import Call, Form, Slot, State
from blocks.part import Fresh, Parameters
from blocks.recurrences import ridge
from blocks.recurrences.ridge import CHUNK, STEPS
from blocks.tensors import accumulating, as_dtype, repeat_heads

START = 1.0
"""λ at the start where `smallest` is below it, as in the published layer."""


class Mesa(Rated):
    """o_t = u_q (G_t + Λ)⁻¹ H_t, where G_t sums β uᵀ u and H_t sums β uᵀ v over the pairs that it receives, both decayed; u has
    length 1.

    (G_t + Λ)⁻¹ H_t maps the keys so far to their values with the smallest weighted squared error, and Λ keeps it small: one learned
    number for each feature of a state head, at least ``smallest``. The output is a raw numerator: there is no mass.
    """

    equation: ClassVar[str] = (
        "G_t = α_t G_{t-1} + β_t u_tᵀ u_t, H_t = α_t H_{t-1} + β_t u_tᵀ v_t, u = φ(k)/‖φ(k)‖ a row; "
        "o_t = φ(q_t)/‖φ(q_t)‖ (G_t + Λ)⁻¹ H_t, Λ = diag(smallest + softplus(λ))"
    )
    source: ClassVar[str] = "von Oswald et al. 2025, arXiv:2506.05233 (MesaNet), as in flash-linear-attention's layer"
    decay_ranks: ClassVar[frozenset[str]] = ridge.DECAY_RANKS
    kind: Literal["mesa"] = "mesa"
    gate: GateConfig = PerHead(temperature=1.0)
    """How fast it forgets: α, one number a head."""
    smallest: PositiveFloat = 0.25
    """The smallest number in Λ."""

    @property
    def recurrences(self) -> tuple[Form, ...]:
        return ridge.FORMS

    def problem_between(self, above: Sequence[Memory], below: Mapping[str, Memory], *, edges: bool) -> Iterator[Misplaced]:
        if above and above[0].reads_below:
            yield (
                "a cache above it would solve a system for every pair that it scores; feed it from a window, or let it see every "
                f"pair (`flow: parallel`, or the edge `pairs -> {self.called}`)",
                ("kind",),
            )

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        start = math.log(math.expm1(max(START - self.smallest, START / 100)))
        penalty = Fresh((shape.state_heads, shape.features), initialise.constant(start), precise=True)
        return super().parameters(shape) | {"penalty": penalty}

    def state(self, shape: Shape) -> dict[str, Slot]:
        """G with H beside it."""
        return {"state": Slot((shape.state_heads, shape.features, shape.features + shape.value_dim), "state")}

    def compute(
        self, parameters: Parameters, call: Call, query: Tensor, arriving: Features | None, decay: Tensor | None, recurrence: Form,
        *, pairs: Pairs | None,
    ) -> tuple[Partial, State]:  # fmt: skip
        penalty = as_dtype(parameters["penalty"], query.dtype)
        diagonal = self.smallest + torch.nn.functional.softplus(penalty)
        solving = replace(recurrence, run=partial(recurrence.run, ridge=diagonal))
        return self.recall(call, query, arriving, decay, solving)

    def flops(self, shape: Shape, tokens: int) -> int:
        """The sums, one system for the queries of a state head, and the reads of their solutions."""
        columns = shape.features + shape.value_dim
        decay = 0 if self.gate.rank_of_decay == "none" else shape.features * columns
        sums = 2 * shape.features * columns + decay
        system = 2 * shape.features**3 // 3
        return (sums + system) * shape.state_heads + 2 * shape.features * columns * shape.heads

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """The sums, and the products of all steps of conjugate gradients: each of a row and the state, and of the chunk's pairs."""
        columns, chunk = shape.features + shape.value_dim, min(CHUNK, tokens)
        sums = 2 * shape.features * columns * shape.state_heads
        step = 2 * shape.features**2 + 4 * chunk * shape.features
        read = 2 * shape.features * shape.value_dim + 2 * chunk * columns
        return sums + (min(STEPS, 2 * shape.features) * step + read) * shape.heads

    def recur(
        self, call: Call, query: Float[Tensor, "B T H F"], pairs: Features | None, log_decay: Tensor | None, recurrence: Form
    ) -> tuple[Partial, State]:
        key = value = rate = None
        if pairs is not None:
            assert pairs.rate is not None, "every pair of the graph has a rate"
            key, rate = (repeat_heads(states, call.shape.state_heads) for states in (pairs.key, pairs.rate))
            value, rate = as_dtype(pairs.value, accumulating(pairs.value.dtype)), pairs.fill_absent(rate, 0.0)
        output, matrix = run(recurrence, call, query, key, value, rate, log_decay, call.tokens.segment, call.state["state"])
        return Partial(output, None), {"state": matrix}

    def matrix(self, state: State) -> Float[Tensor, "B N F V"]:
        """H."""
        matrix = state["state"].double()
        return matrix[..., matrix.shape[-2] :]
