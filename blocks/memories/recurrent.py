"""The common part of memories of fixed size: a matrix that receives pairs one after the other, and decays over time."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from blocks.flow import Features, Pairs, Partial, Tokens
from blocks.gates import GateConfig
from blocks.gates.base import Gate
from blocks.gates.none import NoGate
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.base import Memory
from blocks.memories.repeated_reads import RepeatedReads
from blocks.operation import EVERY, Call, Form, Kind, Port, State
from blocks.part import Parameters
from blocks.timeline import timeline


class Recurrent(Memory):
    """A state that receives features of pairs, decays by its gate, and is read with features of queries."""

    reads: ClassVar[Kind] = Kind.FEATURES
    takes_several: ClassVar[bool] = True
    incidental: ClassVar[frozenset[str]] = Memory.incidental | {"gate"}
    gate: GateConfig = NoGate()
    """The gate that computes the decay of the state."""

    @property
    def gates(self) -> Gate:
        return self.gate

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        """The 2D features of V values that LoLA's state has, whatever the map. A pair is D + V numbers."""
        return 2 * shape.head_dim * shape.value_dim / (shape.head_dim + shape.value_dim)

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        width = shape.features if self.gate.rank_of_decay == "channel" else 1
        return (
            Port("features", Kind.FEATURES, shape.heads, shape.features),
            Port("pairs", Kind.PAIRS, dim=shape.head_dim),
            Port("keys", Kind.KEYS, dim=shape.features),
            Port("decay", Kind.DECAY, shape.state_heads, width, needed=False),
        )

    @property
    def recurrences(self) -> tuple[Form, ...]:
        """The forms of its recurrence."""
        raise NotImplementedError

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        rank = self.rank(shape)
        return tuple(
            replace(form, description=form.by_rank.get(rank, form.description), run=partial(self.compute_output, recurrence=form))
            for form in self.recurrences
        )

    def rank(self, shape: Shape) -> str:
        """The rank of the decay that its recurrence runs with."""
        return self.gate.rank_of_decay

    def forms_both_ways(self, shape: Shape) -> tuple[Form, ...]:
        return (Form(EVERY, "sums over each document, whole", self.compute_both_ways),)

    def compute_output(
        self, parameters: Parameters, call: Call, *, features: Float[Tensor, "B T H F"], pairs: Pairs | None,
        keys: Float[Tensor, "B E n F"] | None, decay: Tensor | None = None, recurrence: Form, **further: Any,
    ) -> tuple[tuple[Partial], State]:  # fmt: skip
        """Write the pairs that are evicted into the state at each token, and compute the token's output. features, keys: those of
        queries and of the pairs' keys. further: inputs of some memories."""
        arriving = None if pairs is None or keys is None else self.features_of(keys, pairs)
        result, state = self.compute(parameters, call, features, arriving, decay, recurrence, pairs=pairs, **further)
        return (result,), state

    def compute(
        self, parameters: Parameters, call: Call, query: Tensor, arriving: Features | None, decay: Tensor | None, recurrence: Form,
        *, pairs: Pairs | None,
    ) -> tuple[Partial, State]:  # fmt: skip
        """Compute ``recall`` with the memory's parameters. pairs: as they reach the memory."""
        return self.recall(call, query, arriving, decay, recurrence)

    def compute_both_ways(
        self, parameters: Parameters, call: Call, *, features: Tensor, pairs: Pairs, keys: Tensor, decay: Tensor | None = None
    ) -> tuple[tuple[Partial], State]:
        """Compute each token's output from its whole document."""
        raise NotImplementedError

    def features_of(self, key: Float[Tensor, "B E N F"], pairs: Pairs) -> Features:
        """Return the pairs in the form that this memory writes. key: their features."""
        return Features(
            key, pairs.value, None if pairs.all_present else pairs.present, pairs.arrival, max_per_token=pairs.max_per_token
        )

    def recall(
        self, call: Call, query: Float[Tensor, "B T H F"], pairs: Features | None, log_decay: Tensor | None, recurrence: Form
    ) -> tuple[Partial, State]:
        """Write the pairs that arrive at each token, if any, and compute the token's output.

        query and the pairs' keys are features, in the form of ``features_as``. The state decays at every token, with or without a
        pair, and before the pair is written.
        """
        if log_decay is not None:
            log_decay = stop_at_padding(log_decay, call.tokens)
        if recurrence.decode and pairs is not None and pairs.key.shape[1] == 0:
            pairs = None
        if pairs is None and not recurrence.decode:
            pairs = features_of_no_pair(query, call.shape, query.dtype)
        if pairs is None or pairs.arrival is None or recurrence.decode:
            return self.recur(call, query, pairs, log_decay, recurrence)
        assert pairs.present is not None, "some rows may have fewer evicted pairs"
        line = timeline(call.tokens, pairs)
        one_by_one = Features(
            line.of_pairs(pairs.key),
            line.of_pairs(pairs.value),
            line.of_pairs(pairs.present),
            rate=None if pairs.rate is None else line.of_pairs(pairs.rate),
        )
        decay = None if log_decay is None else line.of_time(log_decay)
        along = replace(call, tokens=line.tokens)
        result, carried = self.recur(along, line.of_tokens(query), one_by_one, decay, recurrence)
        lse = None if result.lse is None else line.at_tokens(result.lse)
        return replace(result, output=line.at_tokens(result.output), lse=lse), carried

    def recur(
        self, call: Call, query: Float[Tensor, "B T H F"], pairs: Features | None, log_decay: Tensor | None, recurrence: Form
    ) -> tuple[Partial, State]:
        """Compute ``recall`` for at most one pair per token, in the token's own column; in decode, for all pairs of the only
        token."""
        raise NotImplementedError

    def predict(self, key: Float[Tensor, "B E H F"], state: State) -> Float[Tensor, "B E H V"]:
        """Return what the state, in its current form, predicts for the pairs' own keys (LoLA, eq. 8). Every query head reads its
        state."""
        raise NotImplementedError

    def repeated_reads(self, state: State, shape: Shape) -> RepeatedReads | None:
        """Return the repeated reads of a state that does not decay, if they are faster than computing each read again. None
        otherwise."""
        return None


def features_of_no_pair(query: Float[Tensor, "B T H F"], shape: Shape, dtype: torch.dtype) -> Features:
    """Return features that have no pair at any of the queries' tokens. dtype: of the values."""
    key = query.new_zeros(*query.shape[:2], shape.state_heads, shape.features)
    value = query.new_zeros(*query.shape[:2], shape.key_heads, shape.value_dim, dtype=dtype)
    absent = torch.zeros(query.shape[:2], dtype=torch.bool, device=query.device)
    return Features(key, value, absent, rate=key.new_zeros(key.shape[:3]))


def stop_at_padding(log_decay: Tensor | None, tokens: Tokens) -> Tensor | None:
    """Return the decay of the tokens, with 0 (no decay) at padding."""
    valid = tokens.valid
    if log_decay is None or valid is None:
        return log_decay
    return log_decay.masked_fill(~valid.view(*valid.shape, *[1] * (log_decay.dim() - 2)), 0.0)


def run(recurrence: Form, call: Call, *inputs: Tensor | None) -> tuple[Tensor, Tensor]:
    """Run the recurrence. Return its output and the new state. inputs: the arguments of the recurrence, in order."""
    return recurrence.run(*inputs, in_place=call.in_place) if recurrence.decode else recurrence.run(*inputs)
