"""The definition of a head, pair by pair, for one document and one query head at a time in float64, from the papers' formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blocks.feature_maps.base import FeatureMap
from blocks.memories.base import Memory
from blocks.memories.delta import Delta
from blocks.memories.latents import Latents
from blocks.memories.recurrent import Recurrent
from blocks.memories.sparse import Sparse
from blocks.memories.state import StateMemory
from blocks.memories.window import Window
from blocks.positions import NoPosition, Rope
from composer.graph.composition import HeadSpec
from tests.composer.graph.memories_by_hand import Answer, Corrected, Head, State, Summed, exact, held_by_a_window, kept, together

MAPS = {
    "identity": lambda u: u,
    "relu": lambda u: u.clamp(min=0),
    "t2r": lambda u: u.clamp(min=0),
    "elu": lambda u: torch.where(u > 0, u + 1, u.clamp(max=0).exp()),
    "exp": torch.exp,
    "hedgehog": lambda u: u.softmax(-1).clamp(min=1e-12),
}


@dataclass(frozen=True)
class Document:
    """The tokens of one document: hidden T C, query T H D, key and value T K D, and the head's parameters by name. place: the
    layer and the index of the first of these heads.
    """

    head: HeadSpec
    parameters: Mapping[str, Tensor]
    hidden: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    place: tuple[int, int] = (0, 0)

    def outputs(self) -> Tensor:
        """Return the outputs ``T H D``."""
        return torch.stack([self._of_head(head) for head in range(self.query.shape[1])], dim=1)

    def _of_head(self, head: int) -> Tensor:
        """Compute the memories from top to bottom, each with the pairs that enter it at each token, then the read token by
        token.
        """
        tokens = range(len(self.query))
        evictions: dict[str, list[list[int]]] = {"pairs": [[t] for t in tokens]}
        seen: dict[str, list[list[int]]] = {}
        answers: dict[str, list[Answer]] = {}
        for name, memory in self._memories().items():
            above = self._above()[name]
            own = self._head(memory, head)
            if isinstance(memory, Window):
                seen[name], evictions[name] = held_by_a_window(memory, evictions[above])
                answers[name] = [exact(own, t, seen[name][t]) for t in tokens]
            elif isinstance(memory, Sparse):
                below = next((other for other, source in self._above().items() if source == name), None)
                state = None if below is None else self._started(below, head)
                looking = self._head(self._memories()[above], head) if above != "pairs" else own
                answers[name] = []
                if below is not None:
                    answers[below] = []
                place = self.place[0], self.place[1] + head
                for t, held in enumerate(kept(memory, own, evictions[above], state, place, looking, seen.get(above, []))):
                    answers[name].append(exact(own, t, held))
                    if below is not None and state is not None:
                        answers[below].append(state.answer(t))
            elif isinstance(memory, Recurrent):
                if name not in answers:
                    state, answers[name] = self._started(name, head), []
                    for t in tokens:
                        state.take(t, evictions[above][t])
                        answers[name].append(state.answer(t))
            elif isinstance(memory, Latents):
                answers[name] = [self._of_latents(name, head, t) for t in tokens]
            else:
                answers[name] = [exact(own, t, together(evictions[above][: t + 1])) for t in tokens]
        return torch.stack([self._read({name: answers[name][t] for name in self._memories()}, head, t) for t in tokens])

    def _memories(self) -> dict[str, Memory]:
        return {memory.name or memory.kind: memory for memory in self.head.memory}

    def _above(self) -> dict[str, str]:
        """Return the origin of the pairs of each memory."""
        names = list(self._memories())
        if self.head.graph is not None:
            return {end.strip(): start.strip() for start, end in (edge.split("->") for edge in self.head.graph)}
        if self.head.flow == "parallel":
            return dict.fromkeys(names, "pairs")
        return dict(zip(names, ["pairs", *names[:-1]], strict=True))

    def _shared(self, head: int, owners: int) -> int:
        """Return which of ``owners`` a query head uses. Consecutive heads share one."""
        return head // (self.query.shape[1] // owners)

    def _own(self, name: str, head: int) -> Tensor:
        """Return this head's slice of a parameter that has one slice for each of some heads."""
        tensor = self.parameters[name]
        return tensor[self._shared(head, tensor.shape[0])]

    def _head(self, memory: Memory, head: int) -> Head:
        """Return queries, keys and values of one query head, rotated for this memory."""
        own = self._shared(head, self.key.shape[1])
        query, key = (rotated(states, memory.position) for states in (self.query[:, head], self.key[:, own]))
        return Head(query, key, list(self.value[:, own]))

    def _started(self, name: str, head: int) -> State:
        """Return a state memory before the first token."""
        memory, mapping = self._memories()[name], self.head.feature_map
        assert isinstance(memory, (StateMemory, Delta))
        assert mapping is not None
        tokens = range(len(self.query))

        def features(side: str) -> list[Tensor]:
            convolved = torch.stack([self._convolved(side[0], head, t) for t in tokens])
            return [self._features(mapping, side, head, vector) for vector in rotated(convolved, memory.position)]

        query, key = features("query"), features("key")
        survives = [self._survives(name, memory, head, t, len(query[0])) for t in tokens]
        own = Head(query, key, self._head(memory, head).value)
        if isinstance(memory, Delta):
            return Corrected(own, survives, [self._rate(name, memory, head, t) for t in tokens])
        return Summed(own, survives, memory.normalise, memory.scale == "root")

    @property
    def mixed(self) -> Tensor:
        """Return the hidden states that latents and token weights read, ``T C``."""
        mixer = self.head.mix_input
        if mixer is None:
            return self.hidden
        own = {name.removeprefix("mix_input."): tensor for name, tensor in self.parameters.items()}
        return (mixed_by_rglru if mixer.kind == "rglru" else mixed_by_taps)(self.hidden, own)

    def _of_latents(self, name: str, head: int, t: int) -> Answer:
        """Compute Latte, eq. 8: Σ_l p(l|t) Σ_s p(s|l,t) v_s. The mass is Σ_l exp(x_t·w_l^q)."""
        ask, take = (self.parameters[f"{name}.{side}"].chunk(self.query.shape[1])[head] for side in ("query", "key"))
        weights = (self.mixed[: t + 1] @ take.T).exp()
        means = (weights / weights.sum(0)).T @ self.value[: t + 1, self._shared(head, self.value.shape[1])]
        exponentials = (ask @ self.mixed[t]).exp()
        return Answer(exponentials / exponentials.sum() @ means, exponentials.sum())

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

    def _survives(self, name: str, memory: StateMemory | Delta, head: int, t: int, features: int) -> Tensor:
        """Return the factor of each feature's row at one more token."""
        gate, name = memory.gate, f"{name}_gate"
        if gate.kind == "none":
            return torch.ones(features, dtype=torch.float64)
        if gate.kind == "constant":
            place = head if gate.per == "query_head" else self._shared(head, self.key.shape[1])
            return torch.full((features,), 1 - 2 ** (-gate.exponent - place), dtype=torch.float64)
        if gate.kind == "from_key":
            key = self.key[t, self._shared(head, self.key.shape[1])]
            return (key.sigmoid() ** (1 / gate.temperature)).repeat(features // len(key))
        if gate.kind == "channel" and gate.rank != "full":
            weight = self.parameters[f"{name}.up"] @ self.parameters[f"{name}.down"]
        else:
            weight = self.parameters[f"{name}.weight"]
        logits = (weight @ self.hidden[t] + self.parameters[f"{name}.bias"]).view(-1, features if gate.kind == "channel" else 1)
        return (logits[self._shared(head, len(logits))].sigmoid() ** (1 / gate.temperature)).expand(features)

    def _rate(self, name: str, memory: Delta, head: int, t: int) -> Tensor:
        """Return β of the token of a pair."""
        if memory.rate.kind == "fixed":
            return torch.tensor(memory.rate.value, dtype=torch.float64)
        logit = self._own(f"{name}_rate.weight", head) @ self.hidden[t] + self._own(f"{name}_rate.bias", head)
        return memory.rate.largest * logit.sigmoid()

    def _weight(self, name: str, head: int, t: int) -> Tensor | None:
        """Return σ."""
        memory = self._memories()[name]
        if memory.weight == "same":
            return self._weight(self._above()[name], head, t)
        if memory.weight == "token":
            return (self.parameters[f"{name}.weight"][head] @ self.mixed[t]).sigmoid()
        if memory.weight == "learned":
            return self.parameters[f"{name}.weight"][head].sigmoid()
        return None if memory.weight is None else torch.tensor(memory.weight, dtype=torch.float64)

    def _read(self, answers: Mapping[str, Answer], head: int, t: int) -> Tensor:
        read, first = self.head.read, next(iter(answers.values()))
        if read is None:
            return first.output
        weights = {name: self._weight(name, head, t) for name in answers}
        if read.kind == "mixture":
            shares = {name: 1.0 if weight is None else weight / (1 - weight) for name, weight in weights.items()}
            # Latte, definition 3: the latents share one softmax with the window.
            shares |= {name: answers[name].mass for name, memory in self._memories().items() if isinstance(memory, Latents)}
            return torch.stack([shares[name] / sum(shares.values()) * answers[name].output for name in answers]).sum(0)
        maxima = [answer.largest for answer in answers.values() if answer.largest is not None]
        rescaled = read.kind == "shared" and read.scale == "row_max" and bool(maxima)
        raw, numerator, denominator = 0 * first.output, 0 * first.output, torch.zeros((), dtype=torch.float64)
        for name, answer in answers.items():
            weight = weights[name]
            factor = torch.ones((), dtype=torch.float64) if weight is None else weight
            if answer.mass is None:
                raw = raw + factor * answer.output
                continue
            if rescaled and answer.exact:
                factor = factor * (-torch.stack(maxima).max()).exp()
            numerator, denominator = numerator + factor * answer.mass * answer.output, denominator + factor * answer.mass
        return raw + (numerator / denominator if denominator > 0 else numerator)


def mixed_by_rglru(hidden: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
    """Compute Griffin's equations 1 to 4 token by token."""
    held, mixed = torch.zeros_like(hidden[0]), []
    for x in hidden:
        gates = []
        for gate in ("recurrence", "input"):
            weight = torch.block_diag(*parameters[f"{gate}_weight"])
            gates.append((weight @ x + parameters[f"{gate}_bias"]).sigmoid())
        a = parameters["decay"].sigmoid() ** (8 * gates[0])
        held = a * held + (1 - a**2).sqrt() * gates[1] * x
        mixed.append(held)
    return torch.stack(mixed)


def mixed_by_taps(hidden: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
    """Apply each token's taps to it and to the tokens before it."""
    weight = parameters["weight"]
    taps = weight.shape[-1]
    return torch.stack(
        [sum(weight[..., taps - 1 - back] * hidden[t - back] for back in range(min(taps, t + 1))) for t in range(len(hidden))]
    )


def rotated(states: Tensor, position: Rope | NoPosition | None) -> list[Tensor]:
    """Rotate token by token: rope as a product of complex numbers, with float32 angles as in the checkpoints."""
    if not isinstance(position, Rope):
        return list(states)
    first, second = states.chunk(2, dim=-1)
    angle = torch.arange(len(states))[:, None] * position.frequencies(states.shape[-1])
    product = torch.complex(first, second) * torch.complex(angle.cos().double(), angle.sin().double())
    return list(torch.cat((product.real, product.imag), dim=-1))
