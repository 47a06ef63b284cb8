"""All the past in a matrix of fixed size: linear attention, gated or not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from blocks import initialise
from blocks.flow import Features, Pairs, Partial
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.base import Memory, Misplaced
from blocks.memories.recurrent import Recurrent, RepeatedReads, run
from blocks.operation import FLA, REFERENCE, TORCH, Call, Form, Kind, Port, Slot, State
from blocks.part import FieldError, Fresh, Parameters, Problem
from blocks.recurrences import additive
from blocks.recurrences.additive.chunked import CHUNK
from blocks.recurrences.additive.grouped import grouped
from blocks.recurrences.stabilised import stabilise, stabilise_step
from blocks.tensors import accumulating, as_dtype, least_mass, repeat_heads, with_ones

SHORTEST_GROUP = 16
"""The fewest tokens of a group. For shorter groups, their states take more memory than a timeline of pairs and tokens."""


class StateMemory(Recurrent):
    """S_t = D_t S_{t-1} + φ(k)ᵀ v of the pair that enters at t, read by φ(q_t).

    Normalised, o_t = φ(q_t) S_t / φ(q_t)·z_t with lse_t = log φ(q_t)·z_t: the normaliser z is the same recurrence on a column
    of ones, the last column of the state (LAWCAT's eq. 8 for its gate of rank one). Not normalised, o_t = φ(q_t) S_t, a raw
    numerator, or that over √F. Decay runs on clock time, whether a pair enters or not. Without mass the output is 0 and lse -inf.
    """

    equation: ClassVar[str] = "S_t = D_t S_{t-1} + φ(k_t)ᵀ v_t, z_t = D_t z_{t-1} + φ(k_t); o_t = φ(q_t) S_t / φ(q_t)·z_t"
    source: ClassVar[str] = (
        "LoLCATs (workshop), eq. 4 and 5; LAWCAT, eq. 4 to 8; input_scale and skip: Dao & Gu 2024, arXiv:2405.21060 (Mamba-2)"
    )
    decay_ranks: ClassVar[frozenset[str]] = additive.DECAY_RANKS
    to_have_mass: ClassVar[str] = "set `normalise: true`, "
    kind: Literal["state"] = "state"
    normalise: bool = True
    """Divide by the mass. Otherwise the output is a raw numerator, which only `read: sum` can combine with other memories."""
    scale: Literal["none", "root"] = "none"
    """root: a raw numerator is divided by √F, as GLA and RetNet divide q·k (their K^-½); none: it is not."""

    input_scale: Literal["none", "step"] = "none"
    """step: each pair enters times its token's step, the Δ that the gate makes its decay of (`softplus`), as in Mamba-2."""
    skip: bool = False
    """Add the token's own value, times one learned number a head, to a raw numerator, as in Mamba-2 (its D)."""

    @model_validator(mode="after")
    def _a_mass_cancels_the_scale(self) -> Self:
        if self.normalise and self.skip:
            raise FieldError(
                "adds to a raw numerator, and this one is divided by its mass: set normalise: false, or remove it", "skip"
            )
        if self.input_scale == "step" and not self.gate.steps:
            raise FieldError("needs the gate's step, and this gate has none: set `gate: softplus`, or remove it", "input_scale")
        if self.normalise and self.scale != "none":
            raise FieldError(
                "scales a raw numerator, and this one is divided by its mass: set normalise: false, or remove it", "scale"
            )
        return self

    def has_mass(self) -> bool:
        return self.normalise

    @property
    def recurrences(self) -> tuple[Form, ...]:
        return additive.FORMS

    def problem(self, shape: Shape) -> Problem | None:
        if not (self.normalise and shape.signed):
            return super().problem(shape)
        return (
            "features of this map can be negative, so there is no mass to divide by; "
            "choose a positive feature map, or set `normalise: false`"
        ), ()

    def problem_between(self, above: Sequence[Memory], below: Mapping[str, Memory], *, edges: bool) -> Iterator[Misplaced]:
        set_options = [name for name, is_set in (("input_scale", self.input_scale != "none"), ("skip", self.skip)) if is_set]
        if set_options and above:
            yield (
                f"`{set_options[0]}` belongs to the token of the pair, and this state receives pairs that another memory evicts "
                f"later; let it receive every pair (`flow: parallel`, or the edge `pairs -> {self.called}`), or remove it",
                (set_options[0],),
            )

    def parameters(self, shape: Shape) -> dict[str, Fresh]:
        return super().parameters(shape) | ({"skip": Fresh((shape.heads,), initialise.constant(1.0))} if self.skip else {})

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        step = Port("step", Kind.NUMBERS, shape.state_heads, 1)
        return (*super().inputs(shape), *([step] if self.input_scale == "step" else []))

    def rank(self, shape: Shape) -> str:
        """Running maxima of exponential features are a decay for each feature."""
        return "channel" if shape.exponential else super().rank(shape)

    def state(self, shape: Shape) -> dict[str, Slot]:
        """S with z as its last column; of exponential features, both divided by exp(M), and their running maximum M."""
        least = 0.0 if self.normalise and not shape.signed else -math.inf
        size = (shape.state_heads, shape.features, shape.value_dim + self.normalise)
        slots = {"state": Slot(size, "state", minimum=least, bounded_from=-1)}
        if shape.exponential:
            slots["maximum"] = Slot((shape.state_heads, shape.features), "state", -math.inf)
        return slots

    def flops(self, shape: Shape, tokens: int) -> int:
        entry = 2 * shape.features * (shape.value_dim + self.normalise)
        decay = 0 if self.gate.rank_of_decay == "none" else entry // 2
        return entry * (shape.state_heads + shape.heads) + decay * shape.state_heads

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """Return one update and one read of the state a token, and the chunk's own pairs, which a sum over the whole text has
        not."""
        if shape.both_ways:
            return self.flops(shape, tokens)
        columns = shape.value_dim + self.normalise
        chunk = 2 * min(CHUNK, tokens) * shape.heads * (shape.features + columns)
        return chunk + 2 * shape.features * columns * (shape.state_heads + shape.heads)

    def compute(
        self, parameters: Parameters, call: Call, query: Tensor, arriving: Features | None, decay: Tensor | None, recurrence: Form,
        *, pairs: Pairs | None, step: Float[Tensor, "B T N"] | None = None,
    ) -> tuple[Partial, State]:  # fmt: skip
        if step is not None and arriving is not None:
            key, step = repeat_heads(arriving.key, step.shape[2]), step[..., None]
            arriving = replace(arriving, key=key + step.log() if call.shape.exponential else key * step)
        result, state = self.recall(call, query, arriving, decay, recurrence)
        if self.skip and pairs is not None:
            result = add_skip(parameters, result, pairs.value)
        return result, state

    def recall(
        self, call: Call, query: Float[Tensor, "B T H F"], pairs: Features | None, log_decay: Tensor | None, recurrence: Form
    ) -> tuple[Partial, State]:
        plain = log_decay is None and not call.shape.exponential and recurrence.backend == TORCH and not recurrence.decode
        # Without arrivals there is one pair per token, however many may be evicted at once.
        if plain and pairs is not None and pairs.arrival is not None and pairs.max_per_token >= SHORTEST_GROUP:
            run = partial(grouped, arrival=pairs.arrival, size=pairs.max_per_token)
            return self.recur(call, query, pairs, None, replace(recurrence, run=run))
        return super().recall(call, query, pairs, log_decay, recurrence)

    def recur(
        self, call: Call, query: Float[Tensor, "B T H F"], pairs: Features | None, log_decay: Tensor | None, recurrence: Form
    ) -> tuple[Partial, State]:
        shape, segment, state = call.shape, call.tokens.segment, call.state
        key = value = None
        dtype = query.dtype
        if pairs is not None:
            dtype = pairs.value.dtype
            # fla's kernels multiply in the model's dtype, and sum in float32 by themselves.
            key, value = pairs.key, pairs.value if recurrence.backend == FLA else as_dtype(pairs.value, accumulating(dtype))
            if not recurrence.decode:
                key = repeat_heads(key, shape.state_heads)
            if self.normalise:
                value = with_ones(value)
            # An absent pair must add nothing. Its value (and its one) is 0; the key of an exponential map is -inf instead, as it
            # could raise the maximum.
            if pairs.present is not None and shape.exponential:
                key = pairs.fill_absent(key, -math.inf)
            elif pairs.present is not None:
                value = pairs.fill_absent(value, 0.0)

        carried: State = {}
        matrix, log_scale = state["state"], None
        if shape.exponential and recurrence.backend == REFERENCE:
            assert key is not None
            query, key, matrix = query.exp(), key.exp(), matrix * state["maximum"].exp()[..., None]
            carried["maximum"] = torch.zeros_like(state["maximum"])
        elif shape.exponential:
            arguments = log_decay, segment, state["maximum"]
            stable = (
                stabilise_step(query, key, *arguments) if key is None or recurrence.decode else stabilise(query, key, *arguments)
            )
            query, key, log_decay, log_scale = stable.query, stable.key, stable.log_decay, stable.log_scale
            carried["maximum"] = stable.maximum
        elif self.normalise and not shape.even:
            query, log_scale = scale_to_one(query)
        output, carried["state"] = run(recurrence, call, query, key, value, log_decay, segment, matrix)
        return self._normalise(output, log_scale, dtype, query.shape[-1], mass=call.needs_mass), carried

    def predict(self, key: Float[Tensor, "B E H F"], state: State) -> Float[Tensor, "B E H V"]:
        matrix, log_scale = state["state"], None
        if "maximum" in state:
            exponents = key + state["maximum"][:, None]
            log_scale = exponents.amax(-1)
            log_scale = log_scale.masked_fill(log_scale.isneginf(), 0.0)
            key = (exponents - log_scale[..., None]).exp()
        elif self.normalise:
            key, _ = scale_to_one(key)
        output = torch.einsum("behf,bhfv->behv", key, matrix)
        return self._normalise(output, log_scale, output.dtype, key.shape[-1], mass=False).output

    def matrix(self, state: State) -> Float[Tensor, "B N F V"]:
        """S, times exp(M) of exponential features, without z."""
        matrix = state["state"].double()
        if self.normalise:
            matrix = matrix[..., :-1]
        return matrix * state["maximum"].double().exp()[..., None] if "maximum" in state else matrix

    def repeated_reads(self, state: State, shape: Shape) -> RepeatedReads | None:
        if "maximum" in state:
            return None
        if self.normalise:
            return RepeatedReads(state["state"], (lambda key: key) if shape.even else (lambda key: scale_to_one(key)[0]), None)
        return RepeatedReads(state["state"], lambda key: key, math.sqrt(state["state"].shape[2]) if self.scale == "root" else 1.0)

    def problem_both_ways(self) -> str | None:
        return None if self.gate.rank_of_decay == "none" else "a state with a gate decays over time, so it is causal"

    def compute_both_ways(
        self, parameters: Parameters, call: Call, *, features: Tensor, pairs: Pairs, keys: Tensor, decay: Tensor | None = None
    ) -> tuple[tuple[Partial], State]:
        """Compute each token's output from the sums over its whole document, before and after the token."""
        query, arriving, tokens = features, self.features_of(keys, pairs), call.tokens
        dtype, exponential = pairs.value.dtype, call.shape.exponential
        key = arriving.fill_absent(repeat_heads(arriving.key, call.shape.state_heads), -math.inf if exponential else 0.0)
        value = repeat_heads(pairs.value.to(accumulating(dtype)), call.shape.state_heads)
        if self.normalise:
            value = with_ones(value)
        output, log_scale = tokens.each_document(partial(_read_all_pairs, exponential=exponential), query, key, value)
        result = self._normalise(output, log_scale, dtype, query.shape[-1])
        return (add_skip(parameters, result, pairs.value) if self.skip else result,), {}

    def _normalise(
        self, output: Tensor, log_scale: Tensor | None, dtype: torch.dtype, features: int, *, mass: bool = True
    ) -> Partial:
        """Return the output as this state normalises it. log_scale: the logarithm of a factor of the output; None: no factor. mass:
        whether a read needs the mass."""
        if not self.normalise:
            output = output if log_scale is None else output * log_scale[..., None].exp()
            return Partial(output / math.sqrt(features) if self.scale == "root" else output, None)
        return quotient(output, dtype, log_scale, mass=mass)


def add_skip(parameters: Parameters, result: Partial, value: Float[Tensor, "B T K V"]) -> Partial:
    """Return the partial with the tokens' own values added, times the learned ``skip`` of each head."""
    output = result.output
    skipped = repeat_heads(value.to(output.dtype), output.shape[2]) * parameters["skip"].to(output.dtype)[:, None]
    return replace(result, output=output + skipped)


def quotient(
    sums: Float[Tensor, "B T H V"], dtype: torch.dtype, log_scale: Float[Tensor, "B T H"] | None = None, *, mass: bool
) -> Partial:
    """Return sums of weighted values, divided by the sum of the weights, which is their last column.

    log_scale: the logarithm of a factor of the sums; None: no factor. mass: whether the logarithm of the mass is needed.
    """
    columns = sums.shape[-1] - 1
    numerator, masses = sums.narrow(-1, 0, columns), sums.narrow(-1, columns, 1)
    least = least_mass(masses.dtype)
    output = as_dtype(numerator / torch.threshold(masses, least, math.inf), dtype)
    if not mass:
        return Partial(output, None)
    lse = torch.threshold(masses, least, 0.0).log().squeeze(-1)
    return Partial(output, lse if log_scale is None else lse + log_scale)


def scale_to_one(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return features whose largest is 1, and the logarithm of the factor. A query's own scale cancels in the quotient, and without
    it products of small features remain in range."""
    largest = features.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(features.dtype).tiny)
    return features / largest, largest.log().squeeze(-1)


def _read_all_pairs(
    query: Float[Tensor, "B T H F"], key: Float[Tensor, "B T N F"], value: Float[Tensor, "B T N V"], *, exponential: bool
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """Return the output of every query over all pairs, and the logarithm of the factor of each output."""
    log_scale = query.new_zeros(query.shape[:3])
    if exponential:
        largest = key.detach().amax(1, keepdim=True)
        largest = largest.masked_fill(largest.isneginf(), 0.0)
        exponents = query + repeat_heads(largest, query.shape[2])
        log_scale = exponents.detach().amax(-1)
        query, key = (exponents - log_scale[..., None]).exp(), (key - largest).exp()
    state = torch.einsum("btnf,btnv->bnfv", key, value)
    return torch.einsum("bthf,bhfv->bthv", query, repeat_heads(state, query.shape[2], dim=1)), log_scale
