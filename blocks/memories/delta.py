"""The past in a matrix that is corrected rather than added to: the delta rule, gated or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

from blocks.flow import Features, Pairs, Partial, accumulating, repeat_heads
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.recurrent import Recurrent, run
from blocks.operation import FLA, Call, Form
from blocks.part import Slot, State
from blocks.rates import Learned, Rate, RateConfig
from blocks.recurrences import delta
from blocks.recurrences.delta.chunked import CHUNK


class Delta(Recurrent):
    """S_t = (I - β u uᵀ) D_t S_{t-1} + β uᵀ v of the pair that falls at t, read by w_t; u and w are features of length 1.

    D_t is what the gate leaves of each feature, one number a head or one a feature.

    What the state already answers to a key is taken out before the new value goes in. The answer is a raw numerator: there is
    no mass. A vector of features that is 0 writes and reads nothing.
    """

    equation: ClassVar[str] = "S_t = (I - β_t u_t u_tᵀ) D_t S_{t-1} + β_t u_tᵀ v_t, u = φ(k)/‖φ(k)‖; o_t = φ(q_t)/‖φ(q_t)‖ S_t"
    source: ClassVar[str] = (
        "Yang et al. 2024, arXiv:2406.06484 (delta rule) and arXiv:2412.06464, eq. 10 (gated); "
        "a decay for each feature: Kimi team 2025, arXiv:2510.26692"
    )
    decay_ranks: ClassVar[frozenset[str]] = delta.DECAY_RANKS
    incidental: ClassVar[frozenset[str]] = Recurrent.incidental | {"rate"}
    kind: Literal["delta"] = "delta"
    rate: RateConfig = Learned()
    """How strongly each pair is written."""

    features_as: ClassVar[Literal["unit"] | None] = "unit"

    def has_mass(self) -> bool:
        return False

    @property
    def recurrences(self) -> tuple[Form, ...]:
        return delta.FORMS

    def named(self, form: Form, shape: Shape) -> str:
        if form.backend != FLA:
            return form.says
        first, *others, by_feature = form.says.split(" or ")
        if self.gate.rank_of_decay == "channel":
            return by_feature
        return first if self.gate.rank_of_decay == "head" else " or ".join((first, *others))

    @property
    def _travels_as(self) -> str:
        return f"{self.called}_rate"

    def rates(self) -> Mapping[str, Rate]:
        return {self._travels_as: self.rate}

    def mapped(self, key: Float[Tensor, "B E N F"], pairs: Pairs) -> Features:
        """With the rate that each pair brings."""
        return replace(super().mapped(key, pairs), rate=pairs.numbers[self._travels_as])

    def state(self, shape: Shape) -> dict[str, Slot]:
        return {"state": Slot((shape.state_heads, shape.features, shape.head_dim), "state")}

    def flops(self, shape: Shape, tokens: int) -> int:
        entry = 2 * shape.features * shape.head_dim
        return entry * (2 * shape.state_heads + shape.heads)

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """Update and read of the state, the chunk's own pairs, and the triangular system of its keys."""
        chunk = min(CHUNK, tokens)
        pairs = 2 * chunk * shape.heads * (shape.features + shape.head_dim)
        system = chunk * shape.state_heads * (3 * shape.features + shape.head_dim)
        return pairs + system + self.flops(shape, tokens)

    def recur(
        self, call: Call, query: Float[Tensor, "B T H F"], pairs: Features | None, log_decay: Tensor | None, recurrence: Form
    ) -> tuple[Partial, State]:
        key = value = rate = None
        if pairs is not None:
            assert pairs.rate is not None, "the graph gives every pair its rate"
            key, rate = (repeat_heads(of, call.shape.state_heads) for of in (pairs.key, pairs.rate))
            # fla's kernels multiply in the model's dtype, and sum in float32 by themselves.
            value = pairs.value if recurrence.backend == FLA else pairs.value.to(accumulating(pairs.value.dtype))
            rate = pairs.there(rate, 0.0)
        output, matrix = run(recurrence, call, query, key, value, rate, log_decay, call.tokens.segment, call.state["state"])
        return Partial(output, None), {"state": matrix}

    def predict(self, key: Float[Tensor, "B E H F"], state: State) -> Float[Tensor, "B E H D"]:
        return torch.einsum("behf,bhfv->behv", key, state["state"])
