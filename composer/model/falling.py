"""A state below a sparse cache, while pairs fall into it: the cache looks at it before each fall, and it answers between them."""

from __future__ import annotations

import torch
from torch import Tensor

from blocks.flow import Features, Pairs, Partial
from blocks.part import State
from composer.model.run import Run
from composer.model.wiring import Below


class Falling:
    """``blocks.memories.sparse.Below`` for one forward pass."""

    def __init__(self, below: Below, run: Run) -> None:
        self.below, self.run = below, run
        self.query = below.mapped.query(run)
        self.log_decay = None if below.decay is None else run.values[below.decay]
        self.held = run.own(below.state)
        self.partials: list[Partial] = []

    def map(self, pairs: Pairs) -> Tensor:
        """The pairs' keys as the state sees them."""
        return self.below.mapped.key(self.run, pairs)

    def predict(self, keys: Tensor) -> Tensor:
        """What the state, as it stands, answers to each pair's own key."""
        return self.run.compute(self.below.module, "predict", keys, self.held)

    def take(self, pairs: Pairs | None, keys: Tensor | None, columns: slice) -> None:
        """Let the pairs, if any, fall in at the first of these tokens, time pass, and the tokens ask."""
        query = self.query[:, columns]
        features = _nothing(query, self.run) if pairs is None or keys is None else self._falls(pairs, keys, query.shape[1])
        decay = None if self.log_decay is None else self.log_decay[:, columns]
        given = query, features, decay, self.run.tokens.cut(columns), self.held
        partial, self.held = self.run.compute(self.below.module, "recall", *given, form=self.run.backend)
        self.partials.append(partial)

    def answer(self) -> tuple[Partial, State]:
        """The state's answer to all tokens, and what it hands on."""
        output = torch.cat([partial.output for partial in self.partials], dim=1)
        masses = [partial.lse for partial in self.partials if partial.lse is not None]
        return Partial(output, torch.cat(masses, dim=1) if masses else None), self.held

    def _falls(self, pairs: Pairs, keys: Tensor, length: int) -> Features:
        count = keys.shape[1]
        arrival = None if count == length == 1 else torch.zeros(keys.shape[0], count, dtype=torch.int64, device=keys.device)
        rate = None if self.below.rate is None else pairs.numbers[self.below.rate]
        return Features(keys, pairs.value, pairs.present, arrival, rate)


def _nothing(query: Tensor, run: Run) -> Features:
    """No pair at any of these tokens."""
    like = run.values["query", "query"]
    value = like.new_zeros(*query.shape[:3], like.shape[3])
    absent = torch.zeros(query.shape[:2], dtype=torch.bool, device=query.device)
    return Features(torch.zeros_like(query), value, absent, rate=query.new_zeros(query.shape[:3]))
