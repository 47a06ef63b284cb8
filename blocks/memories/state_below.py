"""The state below a sparse cache, as the cache reads it, and writes evicted pairs into it."""

from __future__ import annotations

from dataclasses import replace

from blocks.flow import Features, Pairs, Partial, Tokens
from blocks.legend import Tensor, torch
from blocks.memories.candidates import select_by_heads
from blocks.memories.recurrent import Recurrent, features_of_no_pair
from blocks.operation import REFERENCE, Form, State
from blocks.pattern import RunningPart


class StateBelow:
    """A state in one call: it maps keys, predicts the values of pairs, and receives evicted pairs.

    The cache chooses pairs by their scores, and a choice has no gradient. For the scores the state receives pairs without
    gradients, and only when it is read. The tokens' outputs are computed by one call over all pairs.
    """

    def __init__(
        self,
        state: RunningPart,
        query: Tensor,
        keys: RunningPart,
        decay: Tensor | None,
        like: Tensor,
        recurrence: Form,
        max_per_token: int = 1,
    ) -> None:
        """query: the features of queries. keys: the map of keys. like: any tensor of the values' dtype. max_per_token: as in
        ``Pairs``."""
        assert isinstance(state.part, Recurrent)
        self.memory, self.call, self.recurrence = state.part, state.call, recurrence
        self.query, self.map, self.log_decay, self.like, self.max_per_token = query, keys.map, decay, like, max_per_token
        self.seen, self.groups = state.call.state, 0
        self.evicted: list[Features] = []
        self.evictions: list[tuple[Tensor, Tensor, Tensor]] = []
        plain = decay is None and state.call.tokens.segment is None and recurrence.backend != REFERENCE
        # A step of decode reads the state once.
        self.reads = self.memory.repeated_reads(self.seen, state.call.shape) if plain and query.shape[1] > 1 else None
        self.pairs_read: Features | None = None

    def set_pairs(self, pairs: Pairs, keys: Tensor) -> None:
        """Set the pairs of the calls that follow, until the next call of ``set_pairs``: ``distances`` compares them, and ``evict``
        evicts some of them."""
        self._settle()
        self.pairs = self.memory.features_of(keys, pairs)

    def reach(self, column: Tensor) -> None:
        """Write the last evicted pairs, and advance to the token in this column, one per row, without that token's decay. If the
        token starts a document, the state is empty."""
        segment = self.call.tokens.segment
        with torch.no_grad():
            if self.reads is not None:
                if self.pairs_read is not self.pairs:  # ``_settle`` has gathered the pairs evicted before these, block by block
                    self.reads.set_pairs(self.pairs, self.evicted[-1] if self.evicted else None)
                self.pairs_read = self.pairs
                return
            last, before = self._last(), torch.full_like(column, -1)
            if last is not None:
                assert last.arrival is not None
                before = last.arrival[:, 0]
                self._pass(replace(last, arrival=None), self._time(before, before + 1), None)
            decay = self._time(before + 1, column) if self.max_per_token > 1 else None
            if segment is not None:
                segment = torch.nn.functional.pad(segment, (1, 0))
                segment = segment.gather(1, column[:, None] + 1) - segment.gather(1, before[:, None] + 1)
            if decay is not None or segment is not None:
                self._pass(self._nothing(1), decay, segment)

    def distances(self) -> Tensor:
        """Return the distance between the state's output for each pair's own key and the value of the pair."""
        with torch.no_grad():
            if self.reads is not None:
                return self.reads.distances()
            predicted = self.memory.predict(self.pairs.key, self.seen)
            return torch.linalg.vector_norm(predicted - self.pairs.value, dim=-1)

    def evict(self, index: Tensor, present: Tensor, column: Tensor) -> None:
        """Evict some of the pairs, if present, at the token in this column."""
        self.groups += 1
        self.evictions.append((index, present, column[:, None].expand(index.shape[:2])))
        if self.reads is not None and self.pairs_read is self.pairs:
            self.reads.evict(index)

    def _settle(self) -> None:
        """Gather the evicted pairs of those set by ``set_pairs``."""
        if self.evictions:
            self.evicted.append(self._features_at(*(torch.cat(groups, dim=1) for groups in zip(*self.evictions, strict=True))))
            self.evictions = []

    def _features_at(self, index: Tensor, present: Tensor, column: Tensor) -> Features:
        pairs = self.pairs
        numbers = {} if pairs.rate is None else {"rate": pairs.rate}
        entries = select_by_heads({"key": pairs.key, "value": pairs.value} | numbers, index)
        return Features(entries["key"], entries["value"], present, column, entries.get("rate"), self.max_per_token)

    def _last(self) -> Features | None:
        """Return the last evicted pairs; None if there are none."""
        if self.evictions:
            return self._features_at(*self.evictions[-1])
        return self.evicted[-1].cut(slice(-self.max_per_token, None)) if self.evicted else None

    def compute_step(self, pairs: Pairs | None, keys: Tensor | None) -> tuple[Partial, State]:
        """Return the state's partial for the only token, at which these pairs are evicted, and the new state."""
        arriving = None
        if pairs is not None and keys is not None:
            arriving = self.memory.features_of(keys, pairs)
            if keys.shape[1] > 1:
                arriving = replace(arriving, arrival=torch.zeros(keys.shape[:2], dtype=torch.int64, device=keys.device))
        return self.memory.recall(self.call, self.query, arriving, self.log_decay, self.recurrence)

    def compute_output(self) -> tuple[Partial, State]:
        """Return the state's partial for all tokens, and its new state."""
        self._settle()
        evicted = _concatenate_evicted(self.evicted, self.max_per_token)
        return self._recall(self.query, evicted, self.log_decay, self.call.tokens, self.call.state)

    def _pass(self, features: Features, log_decay: Tensor | None, segment: Tensor | None) -> None:
        """Write the pairs as if each had its own token, of which the first has the decay."""
        if log_decay is not None:
            later = log_decay.new_zeros(log_decay.shape[0], features.key.shape[1] - 1, *log_decay.shape[2:])
            log_decay = torch.cat((log_decay, later), dim=1)
        tokens = Tokens(self.call.tokens.position.new_zeros(features.key.shape[:2]), segment)
        nobody = torch.zeros_like(features.key)
        _, self.seen = self._recall(nobody, features, log_decay, tokens, self.seen)

    def _time(self, first: Tensor, end: Tensor) -> Tensor | None:
        """Return the decay of the tokens between two columns, B 1 N or B 1 N F: those of the last eviction and of this one."""
        if self.log_decay is None:
            return None
        around = slice(max(self.groups - 1, 0) * self.max_per_token, (self.groups + 1) * self.max_per_token)
        decay, valid = self.log_decay[:, around], self.call.tokens.valid
        column = torch.arange(around.start, around.start + decay.shape[1], device=decay.device)
        inside = (column >= first[:, None]) & (column < end[:, None])
        if valid is not None:
            inside = inside & valid[:, around]
        return decay.masked_fill(~inside.view(*inside.shape, *[1] * (decay.dim() - 2)), 0.0).sum(1, keepdim=True)

    def _recall(
        self, query: Tensor, features: Features, log_decay: Tensor | None, tokens: Tokens, state: State
    ) -> tuple[Partial, State]:
        call = replace(self.call, tokens=tokens, state=state, in_place=False)
        return self.memory.recall(call, query, features, log_decay, self.recurrence)

    def _nothing(self, length: int) -> Features:
        """Return features without a pair at any of ``length`` tokens."""
        return features_of_no_pair(self.query[:, :length], self.call.shape, self.like.dtype)


def _concatenate_evicted(evicted: list[Features], max_per_token: int) -> Features:
    """Return all evicted pairs, in their order; with one per token, in its own column."""
    key, value = (
        torch.cat(groups, dim=1) for groups in zip(*((features.key, features.value) for features in evicted), strict=True)
    )
    others = zip(*((features.present, features.arrival, features.rate) for features in evicted), strict=True)
    present, arrival, rate = ([tensor for tensor in every if tensor is not None] for every in others)
    return Features(
        key,
        value,
        torch.cat(present, dim=1),
        torch.cat(arrival, dim=1) if max_per_token > 1 else None,
        torch.cat(rate, dim=1) if rate else None,
        max_per_token,
    )
