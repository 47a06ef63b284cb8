"""A state below a sparse cache, while pairs fall into it: the cache looks at it before each fall, and it answers at the end."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from blocks.flow import Features, Pairs, Partial, Tokens
from blocks.part import State
from composer.model.run import Run
from composer.model.wiring import Below


class Falling:
    """``blocks.memories.sparse.Below`` for one forward pass.

    The cache chooses by what it sees, and a choice has no gradient: for its looks the state takes the pairs without one, and
    only when it is looked at. The tokens' answers come from one call over all the pairs.
    """

    def __init__(self, below: Below, run: Run) -> None:
        self.below, self.run = below, run
        self.query = below.mapped.query(run)
        self.log_decay = None if below.decay is None else run.values[below.decay]
        self.seen = run.own(below.state)
        self.unseen: list[tuple[Features, slice]] = []
        self.fallen: list[Features] = []

    def map(self, pairs: Pairs) -> Tensor:
        """The pairs' keys as the state sees them."""
        return self.below.mapped.key(self.run, pairs)

    def predict(self, keys: Tensor) -> Tensor:
        """What the state, as it stands, answers to each pair's own key."""
        with torch.no_grad():
            for features, columns in self.unseen:
                self._pass(features, columns)
            self.unseen = []
            return self.run.compute(self.below.module, "predict", keys, self.seen)

    def take(self, pairs: Pairs | None, keys: Tensor | None, columns: slice) -> None:
        """Let the pairs, if any, fall in at the first of these tokens, time pass, and the tokens ask."""
        if pairs is None or keys is None:
            self.unseen.append((self._nothing(1), columns))
            return
        arrival = torch.full(keys.shape[:2], columns.start, device=keys.device)
        rate = None if self.below.rate is None else pairs.numbers[self.below.rate]
        self.fallen.append(Features(keys, pairs.value, pairs.present, arrival, rate))
        self.unseen.append((self.fallen[-1], columns))

    def answer(self) -> tuple[Partial, State]:
        """The state's answer to all tokens, and what it hands on."""
        length = self.query.shape[1]
        features = _joined(self.fallen) if self.fallen else self._nothing(length)
        if length == features.key.shape[1] == 1:
            features = replace(features, arrival=None)
        return self._recall(self.query, features, self.log_decay, self.run.tokens, self.run.own(self.below.state))

    def _pass(self, features: Features, columns: slice) -> None:
        """Let the pairs fall in, as if each had a token of its own, and the time of the columns pass."""
        tokens, nobody = self.run.tokens.cut(columns), torch.zeros_like(features.key)
        once = tokens.position.new_zeros(features.key.shape[:2])
        segment = None if tokens.segment is None else tokens.segment[:, :1].expand_as(once)
        before = after = None
        if self.log_decay is not None:
            decay = self.log_decay[:, columns]
            if tokens.valid is not None:
                decay = decay.masked_fill(~tokens.valid.view(*tokens.valid.shape, *[1] * (decay.dim() - 2)), 0.0)
            before = torch.cat((decay[:, :1], decay.new_zeros(decay.shape[0], once.shape[1] - 1, *decay.shape[2:])), dim=1)
            after = decay[:, 1:].sum(1, keepdim=True)
        one_by_one = replace(features, arrival=None)
        _, self.seen = self._recall(nobody, one_by_one, before, Tokens(once, segment), self.seen)
        if after is not None:
            _, self.seen = self._recall(nobody[:, :1], self._nothing(1), after, Tokens(once[:, :1]), self.seen)

    def _recall(
        self, query: Tensor, features: Features, log_decay: Tensor | None, tokens: Tokens, state: State
    ) -> tuple[Partial, State]:
        return self.run.compute(self.below.module, "recall", query, features, log_decay, tokens, state, form=self.run.backend)

    def _nothing(self, length: int) -> Features:
        """No pair at any of so many tokens."""
        like, query = self.run.values["query", "query"], self.query[:, :length]
        value = like.new_zeros(*query.shape[:3], like.shape[3])
        absent = torch.zeros(query.shape[:2], dtype=torch.bool, device=query.device)
        return Features(torch.zeros_like(query), value, absent, rate=query.new_zeros(query.shape[:3]))


def _joined(fallen: list[Features]) -> Features:
    """All that fell, in its order."""
    key, value, present = (
        torch.cat(of, dim=1) for of in zip(*((each.key, each.value, each.present) for each in fallen), strict=True)
    )
    arrivals = [each.arrival for each in fallen if each.arrival is not None]
    rates = [each.rate for each in fallen if each.rate is not None]
    return Features(key, value, present, torch.cat(arrivals, dim=1), torch.cat(rates, dim=1) if rates else None)
