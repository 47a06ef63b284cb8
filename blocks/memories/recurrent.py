"""What the memories of fixed size share: pairs fall into a matrix, one after the other, and time passes for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from blocks.flow import Features, Mapped, Pairs, Partial, Tokens
from blocks.gates import GateConfig, gates_of
from blocks.gates.base import Gate
from blocks.gates.none import NoGate
from blocks.legend import Float, Shape, Tensor
from blocks.memories.base import Memory, Path
from blocks.operation import EVERY, REFERENCE, Call, Form, Kind, Port
from blocks.part import Parameters, State
from blocks.timeline import timeline

if TYPE_CHECKING:
    from blocks.feature_maps.base import FeatureMap

FORGETS = {"none": "nothing", "head": "at one pace a head", "channel": "at a pace of its own for each feature"}
"""What the rank of a gate's decay means."""


class Recurrent(Memory):
    """A state that takes features of pairs, forgets by its gate, and answers features of queries."""

    bounded: ClassVar[bool] = False
    reads: ClassVar[Kind] = Kind.FEATURES
    takes_several: ClassVar[bool] = True
    decay_ranks: ClassVar[frozenset[str]]
    """The ranks of decay that its recurrence has."""
    incidental: ClassVar[frozenset[str]] = Memory.incidental | {"gate"}
    gate: GateConfig = NoGate()
    """How fast it forgets."""

    @property
    def gates(self) -> Gate:
        return self.gate

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        """The 2D features of D values that LoLA's state has, whatever the map."""
        return shape.head_dim

    def problem_with(self, feature_map: FeatureMap | None) -> Iterator[tuple[str, Path]]:
        if self.gate.rank_of_decay not in self.decay_ranks:
            fitting = ", ".join(f"`{kind}`" for kind in gates_of(self.decay_ranks))
            yield (
                f"the gate `{self.gate.kind}` forgets {FORGETS[self.gate.rank_of_decay]}, which a `{self.kind}` memory "  # pyright: ignore
                f"cannot; it takes {fitting}",
                ("gate",),
            )

    def inputs(self, shape: Shape) -> tuple[Port, ...]:
        width = shape.features if self.gate.rank_of_decay == "channel" else 1
        return (
            Port("features", Kind.FEATURES, shape.heads, shape.features),
            Port("pairs", Kind.PAIRS, dim=shape.head_dim),
            Port("decay", Kind.DECAY, shape.state_heads, width, needed=False),
        )

    @property
    def recurrences(self) -> tuple[Form, ...]:
        """The forms of its recurrence."""
        raise NotImplementedError

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        return tuple(replace(form, run=partial(self.answer, recurrence=form)) for form in self.recurrences)

    def forms_both_ways(self, shape: Shape) -> tuple[Form, ...]:
        return (Form(EVERY, "sums over each document, whole", self.answer_both_ways),)

    def answer(
        self,
        parameters: Parameters,
        call: Call,
        *,
        features: Mapped,
        pairs: Pairs,
        decay: Tensor | None = None,
        recurrence: Form,
    ) -> tuple[tuple[Partial], State]:
        """Take the pairs that fall at each token, if any, and answer the token's query."""
        taken = self.features(features, pairs)
        answer, state = self.recall(features.query, taken, decay, call.tokens, call.state, recurrence)
        return (answer,), state

    def answer_both_ways(
        self, parameters: Parameters, call: Call, *, features: Mapped, pairs: Pairs, decay: Tensor | None = None
    ) -> tuple[tuple[Partial], State]:
        """Answer each token from its whole document."""
        raise NotImplementedError

    def features(self, features: Mapped, pairs: Pairs) -> Features:
        """The pairs as this memory takes them."""
        return self.mapped(features.key(pairs), pairs)

    def mapped(self, key: Float[Tensor, "B E N F"], pairs: Pairs) -> Features:
        """The same, of keys that have been mapped."""
        return Features(key, pairs.value, pairs.present, pairs.arrival)

    def recall(
        self,
        query: Float[Tensor, "B T H F"],
        pairs: Features,
        log_decay: Tensor | None,
        tokens: Tokens,
        state: State,
        recurrence: Form,
    ) -> tuple[Partial, State]:
        """Take the pairs that fall at each token, if any, and answer the token's query.

        query and the pairs' keys are features, as ``features_as`` wants them. Decay runs on clock time, whether a pair
        falls or not, and before it does.
        """
        if log_decay is not None and tokens.valid is not None:
            log_decay = log_decay.masked_fill(~tokens.valid.view(*tokens.valid.shape, *[1] * (log_decay.dim() - 2)), 0.0)
        exact = recurrence.backend == REFERENCE
        if pairs.arrival is None:
            return self.recur(query, pairs, log_decay, tokens, state, recurrence.run, exact=exact)
        line = timeline(tokens, pairs)
        one_by_one = Features(
            line.of_pairs(pairs.key),
            line.of_pairs(pairs.value),
            line.of_pairs(pairs.present),
            rate=None if pairs.rate is None else line.of_pairs(pairs.rate),
        )
        decay = None if log_decay is None else line.of_time(log_decay)
        partial, carried = self.recur(line.of_tokens(query), one_by_one, decay, line.tokens, state, recurrence.run, exact=exact)
        lse = None if partial.lse is None else line.at_tokens(partial.lse)
        return replace(partial, output=line.at_tokens(partial.output), lse=lse), carried

    def recur(
        self,
        query: Float[Tensor, "B T H F"],
        pairs: Features,
        log_decay: Tensor | None,
        tokens: Tokens,
        state: State,
        recurrence: Callable[..., tuple[Tensor, Tensor]],
        *,
        exact: bool,
    ) -> tuple[Partial, State]:
        """The same for at most one pair a token, in the token's own column. exact: as the definition says, however large features
        are."""
        raise NotImplementedError

    def predict(self, key: Float[Tensor, "B E H F"], state: State) -> Float[Tensor, "B E H D"]:
        """What the state, as it stands, answers where a pair's own key asks (LoLA, eq. 8). Every query head has its state."""
        raise NotImplementedError
