"""What the memories of fixed size share: pairs fall into a matrix, one after the other, and time passes for it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from blocks.flow import Features, Partial, Tokens
from blocks.gates import GateConfig
from blocks.gates.none import NoGate
from blocks.legend import Float, Tensor
from blocks.memories.base import Memory
from blocks.part import Parameters, State
from blocks.timeline import timeline


class Recurrent(Memory):
    """A state that takes features of pairs, forgets by its gate, and answers features of queries."""

    bounded: ClassVar[bool] = False
    reads: ClassVar[Literal["pairs", "features", "inputs"]] = "features"
    decay_ranks: ClassVar[frozenset[str]]
    """The ranks of decay that its recurrence has."""
    features_as: ClassVar[Literal["features", "unit"]] = "features"
    """unit: of length 1, whatever the map; features: as they are, exponential ones by their logarithms."""
    incidental: ClassVar[frozenset[str]] = Memory.incidental | {"gate"}
    gate: GateConfig = NoGate()
    """How fast it forgets."""

    def recall(
        self,
        parameters: Parameters,
        query: Float[Tensor, "B T H F"],
        pairs: Features,
        log_decay: Tensor | None,
        tokens: Tokens,
        state: State,
        *,
        form: str,
    ) -> tuple[Partial, State]:
        """Take the pairs that fall at each token, if any, and answer the token's query.

        query and the pairs' keys are features, as ``features_as`` wants them. Decay runs on clock time, whether a pair
        falls or not, and before it does.
        """
        if log_decay is not None and tokens.valid is not None:
            log_decay = log_decay.masked_fill(~tokens.valid.view(*tokens.valid.shape, *[1] * (log_decay.dim() - 2)), 0.0)
        if pairs.arrival is None:
            return self.recur(query, pairs, log_decay, tokens, state, form=form)
        line = timeline(tokens, pairs)
        one_by_one = Features(
            line.of_pairs(pairs.key),
            line.of_pairs(pairs.value),
            line.of_pairs(pairs.present),
            rate=None if pairs.rate is None else line.of_pairs(pairs.rate),
        )
        decay = None if log_decay is None else line.of_time(log_decay)
        partial, carried = self.recur(line.of_tokens(query), one_by_one, decay, line.tokens, state, form=form)
        lse = None if partial.lse is None else line.at_tokens(partial.lse)
        return replace(partial, output=line.at_tokens(partial.output), lse=lse), carried

    def recur(
        self,
        query: Float[Tensor, "B T H F"],
        pairs: Features,
        log_decay: Tensor | None,
        tokens: Tokens,
        state: State,
        *,
        form: str,
    ) -> tuple[Partial, State]:
        """The same for at most one pair a token, in the token's own column."""
        raise NotImplementedError

    def predict(self, parameters: Parameters, key: Float[Tensor, "B E H F"], state: State) -> Float[Tensor, "B E H D"]:
        """What the state, as it stands, answers where a pair's own key asks (LoLA, eq. 8). Every query head has its state."""
        raise NotImplementedError
