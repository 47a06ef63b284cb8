"""Liger's decay: computed from the key, without parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import PositiveFloat

from blocks.gates.base import DecayRank, Gate
from blocks.legend import Float, Shape, Tensor, torch
from blocks.operation import EVERY, Call, Form, Kind, Operation, Port, State
from blocks.part import Parameters, Problem
from blocks.tensors import accumulating, repeat_heads


class FromKey(Gate):
    """log α_t = logsigmoid(k_t) / temperature, one number per coordinate of the token's projected key, before rotation and
    convolution. Feature j of a head decays by coordinate j mod D, so both sides of a two-sided map with D features each have
    the same decays."""

    equation: ClassVar[str] = "log α_t = logsigmoid(k_t) / τ, k_t = x_t W_k"
    source: ClassVar[str] = "Lan et al. 2025, arXiv:2503.01496 (Liger), as in its code"
    rank_of_decay: ClassVar[DecayRank] = "channel"
    kind: Literal["from_key"] = "from_key"
    temperature: PositiveFloat = 16.0
    """τ. A larger τ makes the decay slower."""

    def misfit(self, shape: Shape) -> Problem | None:
        if shape.features % shape.head_dim == 0:
            return None
        return (
            f"`from_key` has a decay for each of a key's {shape.head_dim} coordinates, and the feature map has {shape.features} "
            "features, which is not a multiple; leave the map's `dim` out, or choose another gate, such as `channel`"
        ), ()

    def operation(self, shape: Shape) -> Operation:
        reads = Port("key", Kind.KEY, shape.key_heads, shape.head_dim)
        return replace(super().operation(shape), reads=(reads,), forms=(Form(EVERY, "as defined", self._of_key),))

    def _of_key(self, parameters: Parameters, call: Call, *, key: Tensor) -> tuple[tuple[Tensor], State]:
        return (self.log_decay(parameters, key, call.shape),), {}

    def log_decay(self, parameters: Parameters, key: Float[Tensor, "B T K D"], shape: Shape, /) -> Float[Tensor, "B T N F"]:
        decay = torch.nn.functional.logsigmoid(key.to(accumulating(key.dtype))) / self.temperature
        return repeat_heads(decay.repeat(1, 1, 1, shape.features // shape.head_dim), shape.state_heads)
