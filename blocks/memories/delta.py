"""The delta rule, gated or not: a state that is corrected rather than only added to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from blocks import initialise
from blocks.flow import Features, Pairs, Partial, Tokens
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.base import Memory, Misplaced
from blocks.memories.recurrent import Rated, run
from blocks.operation import FLA, Call, Form, Kind, Port, Slot, State
from blocks.part import Fresh, Parameters
from blocks.pattern import NO_MAPS, RunningPart
from blocks.recurrences import delta
from blocks.recurrences.delta.chunked import CHUNK
from blocks.tensors import accumulating, as_dtype, repeat_heads


class Delta(Rated):
    """S_t = (I - β u uᵀ) D_t S_{t-1} + β uᵀ v for the pair that enters at t, read by w_t. u and w are features of length 1.

    D_t is the gate's decay, one number per head or per feature. The state's value for the key is removed before the new
    value is added. The output is a raw numerator, or that over √F, without a mass. A feature vector of 0 writes and reads nothing.
    """

    equation: ClassVar[str] = (
        "S_t = (I - β_t u_tᵀ u_t) D_t S_{t-1} + β_t u_tᵀ v_t, u = φ(k)/‖φ(k)‖ a row; o_t = φ(q_t)/‖φ(q_t)‖ S_t"
    )
    source: ClassVar[str] = (
        "Yang et al. 2024, arXiv:2406.06484 (delta rule) and arXiv:2412.06464, eq. 10 (gated); "
        "a decay for each feature: Kimi team 2025, arXiv:2510.26692; steps: Siems et al. 2025, arXiv:2502.10297 (DeltaProduct)"
    )
    decay_ranks: ClassVar[frozenset[str]] = delta.DECAY_RANKS
    kind: Literal["delta"] = "delta"
    scale: Literal["none", "root"] = "none"
    """root: the output is divided by √F, as published layers divide it before their norm (their K^-½). none: it is not."""

    steps: Annotated[int, Field(ge=1, le=8)] = 1
    """Corrections per token, each with its own key, value and rate. Those after the first are learned maps of the hidden state,
    without convolution. The decay is applied before the first, and the output is read after the last (DeltaProduct)."""

    @property
    def recurrences(self) -> tuple[Form, ...]:
        return delta.FORMS

    def problem_between(self, above: Sequence[Memory], below: Mapping[str, Memory], *, edges: bool) -> Iterator[Misplaced]:
        if self.steps > 1 and above:
            yield (
                "its further steps belong to the token of the pair, and this memory receives pairs that another one evicts "
                f"later; let it receive every pair (`flow: parallel`, or the edge `pairs -> {self.called}`), or set `steps: 1`",
                ("steps",),
            )

    @property
    def brings_values(self) -> tuple[str, ...]:
        """Further steps write values that are projections of the hidden state."""
        return ("value",) if self.steps > 1 else ()

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        hidden = Port("hidden", Kind.HIDDEN, dim=shape.hidden_size)
        return (*super().inputs(shape), *([hidden] if self.steps > 1 else []))

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        more = self.steps - 1
        if not more:
            return super().parameters(shape)
        start = initialise.fan_in(shape.hidden_size)
        key, value = (Fresh((more, shape.key_heads * size, shape.hidden_size), start) for size in (shape.head_dim, shape.value_dim))
        rates = self.rate.parameters(shape).items()
        rates = {f"rate_{name}": replace(parameter, shape=(more, *parameter.shape)) for name, parameter in rates}
        return super().parameters(shape) | {"key": key, "value": value} | rates

    def compute(
        self, parameters: Parameters, call: Call, query: Tensor, arriving: Features | None, decay: Tensor | None, recurrence: Form,
        *, pairs: Pairs | None, hidden: Float[Tensor, "B T C"] | None = None, maps: Mapping[str, RunningPart] = NO_MAPS,
    ) -> tuple[Partial, State]:  # fmt: skip
        """maps: under "steps", the map of the keys of further steps."""
        if hidden is None or pairs is None or arriving is None:
            return self.recall(call, query, arriving, decay, recurrence)
        every = [arriving, *self._further(parameters, call.shape, maps["steps"], pairs, hidden)]
        if recurrence.decode:
            return self._run_in_order(call, query, every, decay, recurrence)
        along = replace(call, tokens=_stretch(call.tokens, self.steps))
        nothing = [torch.zeros_like(query)] * (self.steps - 1)
        if decay is not None:
            decay = _between([decay, *[torch.zeros_like(decay)] * (self.steps - 1)])
        partial, state = self.recall(along, _between([*nothing, query]), _join_steps(every), decay, recurrence)
        return replace(partial, output=partial.output[:, self.steps - 1 :: self.steps]), state

    def _run_in_order(
        self, call: Call, query: Tensor, every: list[Features], decay: Tensor | None, recurrence: Form
    ) -> tuple[Partial, State]:
        """Run the steps of one token, one after the other."""
        partial = None
        for pairs in every:
            partial, state = self.recall(call, query, pairs, decay, recurrence)
            # There is no decay between the steps, and no document begins there.
            call, decay = replace(call, state=state, tokens=replace(call.tokens, segment=None)), None
        assert partial is not None, "there is one step at least"
        return partial, call.state

    def _further(
        self, parameters: Parameters, shape: Shape, keys: RunningPart, pairs: Pairs, hidden: Float[Tensor, "B T C"]
    ) -> Iterator[Features]:
        """Yield the keys, values and rates that the tokens write after their own pairs."""
        for step in range(self.steps - 1):
            key, value = (
                torch.nn.functional.linear(hidden.to(parameters[name].dtype), parameters[name][step])
                .unflatten(-1, (shape.key_heads, -1))
                .to(pairs.value.dtype)
                for name in ("key", "value")
            )
            rate_parameters = {name: parameters[f"rate_{name}"][step] for name in self.rate.parameters(shape)}
            numbers = {self._travels_as: self.rate.rate(rate_parameters, hidden, shape)}
            more = Pairs(key, None, value, pairs.position, numbers=numbers, tokens=pairs.tokens, known_present=pairs.known_present)
            yield self.features_of(keys.map(more), more)

    def state(self, shape: Shape) -> dict[str, Slot]:
        return {"state": Slot((shape.state_heads, shape.features, shape.value_dim), "state")}

    def flops(self, shape: Shape, tokens: int) -> int:
        entry = 2 * shape.features * shape.value_dim
        further = 2 * shape.hidden_size * shape.key_heads * (shape.head_dim + shape.value_dim) + self.rate.flops(shape, tokens)
        decay = 0 if self.gate.rank_of_decay == "none" else entry // 2
        return entry * (2 * self.steps * shape.state_heads + shape.heads) + decay * shape.state_heads + (self.steps - 1) * further

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """Update and read of the state, the pairs of the chunk, and the triangular system of its keys."""
        chunk = self.steps * min(CHUNK, tokens)
        pairs = 2 * chunk * shape.heads * (shape.features + shape.value_dim)
        system = chunk * shape.state_heads * (3 * shape.features + shape.value_dim)
        return pairs + system + self.flops(shape, tokens)

    def recur(
        self, call: Call, query: Float[Tensor, "B T H F"], pairs: Features | None, log_decay: Tensor | None, recurrence: Form
    ) -> tuple[Partial, State]:
        key = value = rate = None
        if pairs is not None:
            assert pairs.rate is not None, "every pair of the graph has a rate"
            key, rate = (repeat_heads(tensor, call.shape.state_heads) for tensor in (pairs.key, pairs.rate))
            # fla's kernels multiply in the model's dtype, and sum in float32.
            value = pairs.value if recurrence.backend == FLA else as_dtype(pairs.value, accumulating(pairs.value.dtype))
            rate = pairs.fill_absent(rate, 0.0)
        output, matrix = run(recurrence, call, query, key, value, rate, log_decay, call.tokens.segment, call.state["state"])
        return Partial(self._scale_by_root(output, query.shape[-1]), None), {"state": matrix}

    def predict(self, key: Float[Tensor, "B E H F"], state: State) -> Float[Tensor, "B E H V"]:
        return self._scale_by_root(torch.einsum("behf,bhfv->behv", key, state["state"]), key.shape[-1])

    def _scale_by_root(self, output: Tensor, features: int) -> Tensor:
        return output / math.sqrt(features) if self.scale == "root" else output

    def matrix(self, state: State) -> Float[Tensor, "B N F V"]:
        return state["state"].double()


def _between(steps: Sequence[Tensor]) -> Tensor:
    """Interleave tensors B T … of each step to B (T · steps) …: the steps of a token are consecutive."""
    return torch.stack(tuple(steps), dim=2).flatten(1, 2)


def _stretch(tokens: Tokens, steps: int) -> Tokens:
    optional = tokens.segment, tokens.valid
    segment, valid = (None if entries is None else entries.repeat_interleave(steps, dim=1) for entries in optional)
    return Tokens(tokens.position.repeat_interleave(steps, dim=1), segment, valid)


def _join_steps(steps: list[Features]) -> Features:
    """Return the pairs of all steps as the pairs of a longer text."""
    heads = max(step.key.shape[2] for step in steps)
    first = steps[0]
    rates = [step.rate for step in steps if step.rate is not None]
    wide = max(rate.shape[2] for rate in rates)
    return Features(
        _between([repeat_heads(step.key, heads) for step in steps]),
        _between([step.value for step in steps]),
        None if first.present is None else first.present.repeat_interleave(len(steps), dim=1),
        rate=_between([repeat_heads(rate, wide) for rate in rates]),
    )
