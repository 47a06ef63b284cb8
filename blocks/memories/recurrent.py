"""The common part of memories of fixed size: a matrix that receives pairs one after the other, and decays over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

from pydantic import Field

from blocks.feature_maps.base import UnitLength
from blocks.flow import Features, Pairs, Partial, Tokens
from blocks.gates import GateConfig
from blocks.gates.base import Gate
from blocks.gates.none import NoGate
from blocks.legend import Bool, Float, Int, Shape, Shaped, Tensor, torch
from blocks.memories.base import Memory
from blocks.operation import EVERY, Call, Form, Kind, Port, State
from blocks.part import Parameters
from blocks.rates import Learned, Rate, RateConfig
from blocks.tensors import in_all_rows, least_mass, take

# Several pairs per token as a sequence with one pair at a time, so that every recurrence can process them.
#
# A row's tokens and pairs become columns of one line: the pairs that are evicted at a token are before it, in their order. Decay
# and new documents apply at the first column of each such group; a pair's column has no query, and a token's column no pair.


@dataclass(frozen=True)
class Timeline:
    """The line of M = T + E columns: the column of each token and of each pair, and the line's own ``Tokens``."""

    tokens: Tokens
    token_column: Int[Tensor, "B T"]
    pair_column: Int[Tensor, "B E"]
    pairs_first: Bool[Tensor, "B T"]
    """Whether pairs precede a token: the first of them then has the token's decay."""
    starts: Bool[Tensor, "B E"]
    """Whether a pair is the first one evicted at its token."""
    arrival: Int[Tensor, "B E"]

    def of_tokens(self, states: Shaped[Tensor, "B T ..."]) -> Shaped[Tensor, "B M ..."]:
        """Return the states in the columns of the tokens, and 0 in those of pairs."""
        return _spread(states, self.token_column, self._columns)

    def of_pairs(self, states: Shaped[Tensor, "B E ..."]) -> Shaped[Tensor, "B M ..."]:
        """Return the states in the columns of the pairs, and 0 in those of tokens."""
        return _spread(states, self.pair_column, self._columns)

    def of_time(self, log_decay: Shaped[Tensor, "B T ..."]) -> Shaped[Tensor, "B M ..."]:
        """Return each token's decay once, at the first column of its group."""
        later = _like(self.pairs_first, log_decay)
        at_pairs = take(log_decay, self.arrival)
        at_pairs = at_pairs.masked_fill(~_like(self.starts, at_pairs), 0.0)
        return self.of_tokens(log_decay.masked_fill(later, 0.0)) + self.of_pairs(at_pairs)

    def at_tokens(self, states: Shaped[Tensor, "B M ..."]) -> Shaped[Tensor, "B T ..."]:
        """Return the columns of the tokens."""
        return take(states, self.token_column)

    @property
    def _columns(self) -> int:
        return self.token_column.shape[1] + self.pair_column.shape[1]


def timeline(tokens: Tokens, pairs: Features) -> Timeline:
    """Return the line of ``tokens`` and of the pairs that are evicted at them. Pairs that are absent in all heads have any
    column."""
    assert pairs.arrival is not None
    length, arrival = tokens.position.shape[1], pairs.arrival.clamp(0, tokens.position.shape[1] - 1)
    order = torch.arange(arrival.shape[1], device=arrival.device)
    count = torch.arange(length, device=arrival.device)
    before = torch.searchsorted(arrival.contiguous(), count.expand(arrival.shape[0], -1).contiguous(), right=True)
    earlier = torch.cat((torch.zeros_like(before[:, :1]), before[:, :-1]), dim=1)
    token_column, pair_column = count + before, order + arrival
    starts = torch.cat((torch.ones_like(arrival[:, :1], dtype=torch.bool), arrival[:, 1:] != arrival[:, :-1]), dim=1)
    columns = length + arrival.shape[1]

    def along(states: Tensor | None) -> Tensor | None:
        if states is None:
            return None
        line = _spread(states, token_column, columns)
        return line.scatter(1, pair_column, states.gather(1, arrival))

    line = Tokens(torch.zeros_like(arrival.new_empty(arrival.shape[0], columns)), along(tokens.segment), along(tokens.valid))
    return Timeline(line, token_column, pair_column, before > earlier, starts, arrival)


def _spread(states: Tensor, column: Tensor, columns: int) -> Tensor:
    line = states.new_zeros(states.shape[0] * columns, *states.shape[2:])
    line.index_copy_(0, in_all_rows(column, columns).flatten(), states.flatten(0, 1))
    return line.unflatten(0, (states.shape[0], columns))


def _like(index: Tensor, states: Tensor) -> Tensor:
    return index.view(*index.shape, *[1] * (states.dim() - 2))


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


class Rated(Recurrent):
    """A state that writes each pair at the rate of the pair's own token. The output is a raw numerator: there is no mass."""

    incidental: ClassVar[frozenset[str]] = Recurrent.incidental | {"rate"}
    rate: RateConfig = Learned()
    """The write strength β of each pair."""
    epsilon: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Added to the squared length that features are divided by. Published code uses 1e-6."""

    def has_mass(self) -> bool:
        return False

    @property
    def features_as(self) -> UnitLength:
        return UnitLength(self.epsilon)

    @property
    def _travels_as(self) -> str:
        return f"{self.called}_rate"

    def rates(self) -> Mapping[str, Rate]:
        return {self._travels_as: self.rate}

    def features_of(self, key: Float[Tensor, "B E N F"], pairs: Pairs) -> Features:
        """Return the mapped pairs, with the write strength of each."""
        return replace(super().features_of(key, pairs), rate=pairs.numbers[self._travels_as])


# Repeated reads of a state without decay by the same keys. A pair that is added to the state only adds to the numerators of these
# reads, so they are not computed again.


class RepeatedReads:
    """Reads of a state by the keys of some pairs, while some of these pairs are evicted into it.

    matrix: the state. as_queries: a function from keys to the queries that read the state. divisor: the divisor of the numerators
    ``B H E V``; None: the mass, which the last column of the state sums.
    """

    def __init__(self, matrix: Float[Tensor, "B H F V"], as_queries: Callable[[Tensor], Tensor], divisor: float | None) -> None:
        columns = matrix.shape[-1] - (divisor is None)
        # With a divisor, the sums of keys have no column.
        self.matrix, self.sums, self.as_queries, self.divisor = matrix[..., :columns], matrix[..., columns:], as_queries, divisor
        self.not_added: list[Tensor] = []

    def set_pairs(self, pairs: Features, evicted: Features | None) -> None:
        """Set the pairs whose keys read the state from now on. evicted: pairs of the previous set that were evicted into it."""
        if evicted is not None:
            keys, values = (
                evicted.fill_absent(evicted.key, 0.0).transpose(1, 2),
                evicted.value.to(self.matrix.dtype).transpose(1, 2),
            )
            self.matrix = self.matrix + keys.mT @ values
            if self.divisor is None:
                self.sums = self.sums + keys.sum(2)[..., None]
        value, queries = pairs.value.to(self.matrix.dtype), self.as_queries(pairs.key)
        keys = pairs.fill_absent(pairs.key, 0.0)  # a key of 0 enters nothing
        self.value, self.keys, self.queries = (states.transpose(1, 2).contiguous() for states in (value, keys, queries))
        self.numerators, self.masses = self.queries @ self.matrix, self.queries @ self.sums
        self.products, self.not_added = None, []

    def evict(self, index: Int[Tensor, "B M H"]) -> None:
        """Add the pairs at these places to the state."""
        self.not_added.append(index.transpose(1, 2)[..., None])

    def distances(self) -> Float[Tensor, "B E H"]:
        """Return the distance between the state's output for each key and the value of the pair."""
        for index in self.not_added:
            # The contribution of one more pair: the product of its key with each reading key, times its value.
            self.products = self.queries @ self.keys.mT if self.products is None else self.products
            value = self.value.gather(2, index.expand(-1, -1, -1, self.value.shape[-1]))
            products = self.products.gather(3, index.mT.expand(-1, -1, self.products.shape[2], -1))
            if index.shape[2] == 1:  # an outer product, which a matrix product is slow at
                self.numerators.addcmul_(products, value)
                self.masses += products
            else:
                self.numerators += products @ value
                self.masses += products.sum(-1, keepdim=True)
        self.not_added = []
        if self.divisor is not None:
            return torch.linalg.vector_norm(self.numerators / self.divisor - self.value, dim=-1).transpose(1, 2)
        # Without a mass the output is 0, and the numerators are next to it.
        masses = torch.threshold(self.masses, least_mass(self.masses.dtype), 1.0)
        beside = torch.addcmul(self.numerators, masses, self.value, value=-1)
        return (torch.linalg.vector_norm(beside, dim=-1) / masses[..., 0]).transpose(1, 2)
