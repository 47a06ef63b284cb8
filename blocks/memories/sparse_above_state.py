"""A sparse cache and the state below it, as one step: the cache looks at the state before each fall, and the state takes what
falls on. No form of either alone could do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from blocks.flow import Features, Mapped, Pairs, Partial, Tokens
from blocks.legend import Tensor, torch
from blocks.memories.recurrent import Recurrent, nothing
from blocks.memories.sparse import STEP, Attention, Sparse
from blocks.operation import REFERENCE, Bound, Form, Kind, Pattern, Setting, unbroken
from blocks.part import Part, State
from blocks.softmax import native, native_fits, single


class Falling:
    """``blocks.memories.sparse.Below`` for one call.

    The cache chooses by what it sees, and a choice has no gradient: for its looks the state takes the pairs without one, and
    only when it is looked at. The tokens' answers come from one call over all the pairs.
    """

    def __init__(self, state: Bound, features: Mapped, decay: Tensor | None, like: Tensor, recurrence: Form) -> None:
        """like: any tensor of the values' dtype."""
        assert isinstance(state.part, Recurrent)
        self.memory, self.call, self.recurrence = state.part, state.call, recurrence
        self.mapped, self.log_decay, self.like = features, decay, like
        self.seen = state.call.state
        self.unseen: list[tuple[Features, slice]] = []
        self.fallen: list[Features] = []

    def map(self, pairs: Pairs) -> Tensor:
        """The pairs' keys as the state sees them."""
        return self.mapped.key(pairs)

    def predict(self, keys: Tensor) -> Tensor:
        """What the state, as it stands, answers to each pair's own key."""
        with torch.no_grad():
            for features, columns in self.unseen:
                self._pass(features, columns)
            self.unseen = []
            return self.memory.predict(keys, self.seen)

    def take(self, pairs: Pairs | None, keys: Tensor | None, columns: slice) -> None:
        """Let the pairs, if any, fall in at the first of these tokens, time pass, and the tokens ask."""
        if pairs is None or keys is None:
            self.unseen.append((self._nothing(1), columns))
            return
        arrival = torch.full(keys.shape[:2], columns.start, device=keys.device)
        self.fallen.append(replace(self.memory.mapped(keys, pairs), arrival=arrival))
        self.unseen.append((self.fallen[-1], columns))

    def answer_one(self, pairs: Pairs | None, keys: Tensor | None) -> tuple[Partial, State]:
        """The state's answer to the only token, at which these pairs fall, and what it hands on."""
        taken = None
        if pairs is not None and keys is not None:
            taken = self.memory.mapped(keys, pairs)
            if keys.shape[1] > 1:
                taken = replace(taken, arrival=torch.zeros(keys.shape[:2], dtype=torch.int64, device=keys.device))
        return self.memory.recall(self.call, self.mapped.query, taken, self.log_decay, self.recurrence)

    def answer(self) -> tuple[Partial, State]:
        """The state's answer to all tokens, and what it hands on."""
        query = self.mapped.query
        features = _joined(self.fallen) if self.fallen else self._nothing(query.shape[1])
        if query.shape[1] == features.key.shape[1] == 1:
            features = replace(features, arrival=None)
        return self._recall(query, features, self.log_decay, self.call.tokens, self.call.state)

    def _pass(self, features: Features, columns: slice) -> None:
        """Let the pairs fall in, as if each had a token of its own, and the time of the columns pass."""
        tokens, nobody = self.call.tokens.cut(columns), torch.zeros_like(features.key)
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
        call = replace(self.call, tokens=tokens, state=state, in_place=False)
        return self.memory.recall(call, query, features, log_decay, self.recurrence)

    def _nothing(self, length: int) -> Features:
        """No pair at any of so many tokens."""
        return nothing(self.mapped.query[:, :length], self.call.shape, self.like.dtype)


def _joined(fallen: list[Features]) -> Features:
    """All that fell, in its order."""
    key, value, present = (
        torch.cat(of, dim=1) for of in zip(*((each.key, each.value, each.present) for each in fallen), strict=True)
    )
    arrivals = [each.arrival for each in fallen if each.arrival is not None]
    rates = [each.rate for each in fallen if each.rate is not None]
    return Features(key, value, present, torch.cat(arrivals, dim=1), torch.cat(rates, dim=1) if rates else None)


def _answer(
    bound: Mapping[str, Bound],
    inputs: Mapping[str, Mapping[str, Any]],
    *,
    recurrence: Form,
    attention: Attention | None = None,
) -> list[tuple[Any, State]]:
    """What the cache gives, and what the state does. attention: of a step of decode."""
    cache, state = bound["sparse"], bound["state"]
    assert isinstance(cache.part, Sparse)
    query, pairs = inputs["sparse"]["query"], inputs["sparse"]["pairs"]
    below = Falling(state, inputs["state"]["features"], inputs["state"].get("decay"), query, recurrence)
    if attention is None:
        exact, held = cache.compute(cache.part.attend, query, pairs, cache.call, below=below)
        rest, summed = state.compute(lambda _: below.answer())
    else:
        given = cache.compute(cache.part.step, query, pairs, cache.call, below=below, attention=attention)
        exact, *falling, held = given
        rest, summed = state.compute(lambda _: below.answer_one(*falling))
    return [((exact, None), held), ((rest,), summed)]


def _forms(parts: Mapping[str, Part]) -> tuple[Form, ...]:
    cache, memory = parts["sparse"], parts["state"]
    assert isinstance(cache, Sparse)
    assert isinstance(memory, Recurrent)
    steps = [
        Form(recurrence.backend, f"{STEP}{how}; {recurrence.says}", partial(_answer, recurrence=recurrence, attention=attention),
             partial(_both_fit, (fits, recurrence.fits)), decode=True)
        for how, attention, fits in ((", by PyTorch's kernel", native, native_fits), ("", single, unbroken))
        for recurrence in memory.recurrences
        if recurrence.backend != REFERENCE
    ]  # fmt: skip
    falls = [
        Form(form.backend, f"one fall after the other; {form.says}", partial(_answer, recurrence=form), form.fits)
        for form in memory.recurrences
        if not form.decode
    ]
    return (*steps, *falls)


def _both_fit(fits: tuple[Callable[[Setting], str | None], ...], setting: Setting) -> str | None:
    return next(filter(None, (one(setting) for one in fits)), None)


SPARSE_ABOVE_STATE = Pattern(
    nodes={"sparse": lambda part: isinstance(part, Sparse), "state": lambda part: isinstance(part, Recurrent)},
    edges=(("sparse", "state", Kind.PAIRS),),
    forms=_forms,
)
