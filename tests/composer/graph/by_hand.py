"""What a head means, followed pair by pair: one document and one query head at a time, in float64, from the papers' formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blocks.feature_maps.base import FeatureMap
from blocks.memories.base import Memory
from blocks.memories.state import StateMemory
from blocks.memories.window import Window
from blocks.positions import NoPosition, Rope
from composer.spec.document import HeadSpec

MAPS = {
    "identity": lambda u: u,
    "relu": lambda u: u.clamp(min=0),
    "t2r": lambda u: u.clamp(min=0),
    "elu": lambda u: torch.where(u > 0, u + 1, u.clamp(max=0).exp()),
    "exp": torch.exp,
    "hedgehog": lambda u: u.softmax(-1).clamp(min=1e-12),
}
EMPTY = torch.tensor(-math.inf, dtype=torch.float64)


@dataclass(frozen=True)
class Document:
    """The tokens of one document: hidden T C, query T H D, key and value T K D, and the head's parameters by their names."""

    head: HeadSpec
    parameters: Mapping[str, Tensor]
    hidden: Tensor
    query: Tensor
    key: Tensor
    value: Tensor

    def outputs(self) -> Tensor:
        """``T H D``."""
        return torch.stack([self._of_head(head) for head in range(self.query.shape[1])], dim=1)

    def _of_head(self, head: int) -> Tensor:
        length, own = len(self.query), self._shared(head, self.key.shape[1])
        entering: list[int | None] = list(range(length))
        partials = []
        for memory in self.head.memory:
            if isinstance(memory, StateMemory):
                partials.append(self._state(memory, head, own, entering))
                continue
            partials.append(self._exact(memory, head, own, entering))
            if self.head.flow == "cascade":
                size = memory.size if isinstance(memory, Window) else length
                entering = [entering[t - size] if t >= size else None for t in range(length)]
        weights = [self._weight(memory, head) for memory in self.head.memory]
        return torch.stack([self._read([partial[t] for partial in partials], weights) for t in range(length)])

    def _shared(self, head: int, owners: int) -> int:
        """Consecutive query heads share one of ``owners``."""
        return head // (self.query.shape[1] // owners)

    def _own(self, name: str, head: int) -> Tensor:
        """This head's slice of a parameter that has one for each of some heads."""
        tensor = self.parameters[name]
        return tensor[self._shared(head, tensor.shape[0])]

    def _exact(self, memory: Memory, head: int, own: int, entering: list[int | None]) -> list[tuple[Tensor, Tensor]]:
        answers = []
        for t in range(len(entering)):
            first = max(0, t + 1 - memory.size) if isinstance(memory, Window) else 0
            held = [pair for pair in entering[first : t + 1] if pair is not None]
            if not held:
                answers.append((torch.zeros_like(self.value[0, 0]), EMPTY))
                continue
            query = turned(self.query[t, head], t, memory.position)
            keys = torch.stack([turned(self.key[pair, own], pair, memory.position) for pair in held])
            logits = keys @ query / math.sqrt(len(query))
            answers.append((logits.softmax(0) @ self.value[held, own], logits.logsumexp(0)))
        return answers

    def _state(self, memory: StateMemory, head: int, own: int, entering: list[int | None]) -> list[tuple[Tensor, Tensor | None]]:
        mapping = self.head.feature_map
        assert mapping is not None
        state = mass = None
        answers: list[tuple[Tensor, Tensor | None]] = []
        for t, pair in enumerate(entering):
            query = self._features(mapping, "query", head, turned(self._convolved("q", head, t), t, memory.position))
            if state is None or mass is None:
                state, mass = query.new_zeros(len(query), self.value.shape[2]), torch.zeros_like(query)
            survives = self._survives(memory, head, t, len(query))
            state, mass = survives[:, None] * state, survives * mass
            if pair is not None:
                key = self._features(mapping, "key", head, turned(self._convolved("k", head, pair), pair, memory.position))
                state, mass = state + torch.outer(key, self.value[pair, own]), mass + key
            numerator, normaliser = query @ state, query @ mass
            if not memory.normalise:
                answers.append((numerator, None))
            elif normaliser > 0:
                answers.append((numerator / normaliser, normaliser.log()))
            else:
                answers.append((torch.zeros_like(numerator), EMPTY))
        return answers

    def _convolved(self, side: str, head: int, t: int) -> Tensor:
        states = self.query[:, head] if side == "q" else self.key[:, self._shared(head, self.key.shape[1])]
        conv = self.head.conv
        if conv is None or side not in conv.inputs:
            return states[t]
        weight = self._own("conv.weight" if conv.share == "qk" else {"q": "conv.query", "k": "conv.key"}[side], head)
        taps = range(min(conv.kernel, t + 1))
        return torch.stack([weight[:, conv.kernel - 1 - back] * states[t - back] for back in taps]).sum(0)

    def _features(self, mapping: FeatureMap, side: str, head: int, x: Tensor) -> Tensor:
        u, prefix = x, "feature_map." + ("" if mapping.share == "qk" else f"{side}_")
        if mapping.linear:
            u = x @ self._own(f"{prefix}weight", head)
            u = u + self._own(f"{prefix}bias", head) if mapping.bias else u
            u = u + x if mapping.skip else u
        activate = MAPS[mapping.kind]  # pyright: ignore[reportAttributeAccessIssue]
        return torch.cat((activate(u), activate(-u))) if mapping.two_sided else activate(u)

    def _survives(self, memory: StateMemory, head: int, t: int, features: int) -> Tensor:
        """What is left of each feature's row after one more token."""
        gate, name = memory.gate, f"{memory.name}_gate"
        if gate.kind == "none":
            return torch.ones(features, dtype=torch.float64)
        if gate.kind == "constant":
            return torch.full((features,), 1 - 2 ** (-gate.exponent - self._shared(head, self._state_heads())), dtype=torch.float64)
        if gate.kind == "channel" and gate.rank != "full":
            weight = self.parameters[f"{name}.up"] @ self.parameters[f"{name}.down"]
        else:
            weight = self.parameters[f"{name}.weight"]
        logits = (weight @ self.hidden[t] + self.parameters[f"{name}.bias"]).view(-1, features if gate.kind == "channel" else 1)
        return (logits[self._shared(head, len(logits))].sigmoid() ** (1 / gate.temperature)).expand(features)

    def _state_heads(self) -> int:
        """One a query head where keys or their features differ between the heads of a key head."""
        mapping, conv = self.head.feature_map, self.head.conv
        mapped = mapping is not None and mapping.linear and mapping.per == "query_head"
        filtered = conv is not None and "k" in conv.inputs and conv.per == "query_head"
        return self.query.shape[1] if mapped or filtered else self.key.shape[1]

    def _weight(self, memory: Memory, head: int) -> float | None:
        """σ."""
        if memory.weight == "learned":
            return self.parameters[f"{memory.name}.weight"][head].sigmoid().item()
        return memory.weight

    def _read(self, partials: list[tuple[Tensor, Tensor | None]], weights: list[float | None]) -> Tensor:
        read = self.head.read
        if read is None:
            return partials[0][0]
        if read.kind == "mixture":
            shares = [1.0 if weight is None else weight / (1 - weight) for weight in weights]
            return torch.stack([share / sum(shares) * output for share, (output, _) in zip(shares, partials, strict=True)]).sum(0)
        factors = [1.0 if weight is None else weight for weight in weights]
        raw, numerator, denominator = 0 * partials[0][0], 0 * partials[0][0], torch.zeros((), dtype=torch.float64)
        for factor, (output, mass) in zip(factors, partials, strict=True):
            if mass is None:
                raw = raw + factor * output
            else:
                numerator, denominator = numerator + factor * mass.exp() * output, denominator + factor * mass.exp()
        return raw + (numerator / denominator if denominator > 0 else numerator)


def turned(states: Tensor, place: int, position: Rope | NoPosition | None) -> Tensor:
    """Rope as a product of complex numbers; angles in float32, as the checkpoints have them."""
    if not isinstance(position, Rope):
        return states
    first, second = states.chunk(2)
    angle = place * position.frequencies(len(states))
    product = torch.complex(first, second) * torch.complex(angle.cos().double(), angle.sin().double())
    return torch.cat((product.real, product.imag))
