"""The merged sequence of tokens and pairs equals a loop that inserts each token's pairs before the token."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.flow import Features, Tokens
from blocks.legend import Shape
from blocks.memories.delta import Delta
from blocks.memories.recurrent import Recurrent, timeline
from blocks.memories.state import StateMemory
from tests.blocks.support import close, counted, empty, random, recalled

ARRIVALS = [[0, 0, 0, 2, 5, 5], [1, 2, 2, 2, 2, 4], [5, 5, 5, 5, 5, 5], [0, 1, 2, 3, 4, 5]]
LENGTH = 6
SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=4)


def pairs_at(arrivals: list[list[int]], absent: tuple[tuple[int, int], ...] = ()) -> Features:
    batch, count = len(arrivals), len(arrivals[0])
    present = torch.ones(batch, count, dtype=torch.bool)
    for row, pair in absent:
        present[row, pair] = False
    key = random(batch, count, 4, 5).exp()
    arrival = torch.tensor(arrivals, dtype=torch.int64).view(batch, count)
    return Features(key, random(batch, count, 2, 3), present, arrival, torch.rand(batch, count, 4, dtype=torch.float64))


def columns(arrivals: list[int], length: int = LENGTH) -> list[tuple[str, int]]:
    """Build the sequence by hand: for each token, its pairs, then the token."""
    line = []
    for token in range(length):
        line += [("pair", pair) for pair, arrival in enumerate(arrivals) if arrival == token]
        line.append(("token", token))
    return line


def test_the_timeline_orders_each_tokens_pairs_before_the_token() -> None:
    pairs = pairs_at(ARRIVALS)
    line = timeline(counted(4, LENGTH), pairs)
    token, pair = random(4, LENGTH, 2), random(4, 6, 2)
    of_tokens, of_pairs = line.of_tokens(token), line.of_pairs(pair)
    assert torch.equal(line.at_tokens(of_tokens), token)
    for row, arrivals in enumerate(ARRIVALS):
        for column, (kind, index) in enumerate(columns(arrivals)):
            place = (line.token_column if kind == "token" else line.pair_column)[row, index]
            assert place == column
            assert torch.equal(of_tokens[row, column], token[row, index] if kind == "token" else torch.zeros(2).double())
            assert torch.equal(of_pairs[row, column], pair[row, index] if kind == "pair" else torch.zeros(2).double())


@pytest.mark.parametrize("widths", [(), (3,), (2, 4)])
def test_decay_applies_once_per_token_before_its_first_pair(widths: tuple[int, ...]) -> None:
    decay = -torch.rand(4, LENGTH, *widths, dtype=torch.float64)
    of_time = timeline(counted(4, LENGTH), pairs_at(ARRIVALS)).of_time(decay)
    for row, arrivals in enumerate(ARRIVALS):
        passed: set[int] = set()
        for column, (kind, index) in enumerate(columns(arrivals)):
            token = index if kind == "token" else arrivals[index]
            assert torch.equal(of_time[row, column], 0 * decay[row, 0] if token in passed else decay[row, token])
            passed.add(token)


def test_pairs_have_the_segment_of_their_token() -> None:
    segment = torch.tensor([[1, 1, 2, 2, 2, 3], [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1], [1, 2, 3, 4, 5, 6]])
    valid = torch.arange(LENGTH) < torch.tensor([[6], [5], [6], [3]])
    line = timeline(Tokens(torch.zeros(4, LENGTH, dtype=torch.int64), segment, valid), pairs_at(ARRIVALS)).tokens
    assert line.segment is not None
    assert line.valid is not None
    for row, arrivals in enumerate(ARRIVALS):
        tokens = [index if kind == "token" else arrivals[index] for kind, index in columns(arrivals)]
        assert line.segment[row].tolist() == segment[row, tokens].tolist()
        assert line.valid[row].tolist() == valid[row, tokens].tolist()
    assert timeline(counted(4, LENGTH), pairs_at(ARRIVALS)).tokens.segment is None


@dataclass
class Case:
    """A memory, and the further inputs of one call besides queries and pairs."""

    part: Recurrent
    decay: Tensor
    segment: Tensor | None = None
    valid: Tensor | None = None

    def row(self, query: Tensor, pairs: Features, row: int, held: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute a row in calls of one token: decay and document start, then its pairs one by one, then the query."""
        assert pairs.arrival is not None
        outputs: list[Tensor] = []
        for token in range(query.shape[1]):
            row_query, real = query[row : row + 1, token : token + 1], self.valid is None or bool(self.valid[row, token])
            before = self.segment[row, token - 1] if token and self.segment is not None else 0
            begins = None if self.segment is None else (self.segment[row, token] - before).view(1, 1)
            decay = self.decay[row : row + 1, token : token + 1] * real
            nobody = replace(single(pairs, row, 0), present=torch.zeros(1, 1, dtype=torch.bool))
            falling = [pair for pair, arrival in enumerate(pairs.arrival[row].tolist()) if arrival == token]
            for own_pair in [nobody, *(single(pairs, row, pair) for pair in falling)]:
                tokens = Tokens(torch.zeros(1, 1, dtype=torch.int64), begins)
                partial, held = recalled(self.part, "reference", row_query, own_pair, decay, tokens, held)
                decay, begins = torch.zeros_like(decay), None
                outputs[token:] = [partial.output]
        return torch.cat(outputs, dim=1), held


def single(pairs: Features, row: int, pair: int) -> Features:
    """Return one pair that enters at the only token of a call."""
    assert pairs.rate is not None
    here = slice(row, row + 1), slice(pair, pair + 1)
    return Features(pairs.key[here], pairs.value[here], pairs.present[here], rate=pairs.rate[here])


@pytest.mark.parametrize("form", ["reference", "torch"])
@pytest.mark.parametrize("around", ["one document", "documents", "padding"])
@pytest.mark.parametrize("memory", ["state", "raw", "exponential", "delta"])
def test_pairs_evicted_together_equal_pairs_evicted_one_by_one(memory: str, around: str, form: str) -> None:
    part: Recurrent = Delta() if memory == "delta" else StateMemory(normalise=memory != "raw")
    shape = replace(SHAPE, exponential=memory == "exponential")
    case = Case(part, -torch.rand(4, LENGTH, 4, *[5] * (memory != "delta"), dtype=torch.float64))
    if around == "documents":
        case.segment = torch.tensor([[1, 1, 2, 2, 2, 3], [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1], [1, 2, 3, 4, 5, 6]])
    if around == "padding":
        case.valid = torch.arange(LENGTH) < torch.tensor([[6], [5], [6], [4]])
    pairs = pairs_at(ARRIVALS, absent=((0, 1), (1, 0), (3, 5), (1, 5), (3, 4)))
    features = {"exponential": torch.log, "delta": lambda key: torch.nn.functional.normalize(key, dim=-1)}
    pairs = replace(pairs, key=features.get(memory, lambda key: key)(pairs.key))
    query, start = random(4, LENGTH, 4, 5).exp(), empty(part, shape, 4)
    tokens = Tokens(torch.zeros(4, LENGTH, dtype=torch.int64), case.segment, case.valid)
    partial, carried = recalled(part, form, query, pairs, case.decay, tokens, start)
    for row in range(4):
        real = LENGTH if case.valid is None else int(case.valid[row].sum())
        output, state = case.row(query, pairs, row, {name: held[row : row + 1] for name, held in start.items()})
        close(partial.output[row, :real], output[0, :real])
        close(plain(carried)[row], plain(state)[0])


def plain(state: dict[str, Tensor]) -> Tensor:
    """Return the matrix without the maximum that it is stored relative to."""
    return state["state"] * state["maximum"].exp()[..., None] if "maximum" in state else state["state"]


@pytest.mark.parametrize("memory", [StateMemory(), Delta()], ids=["state", "delta"])
def test_gradients_of_the_forms_are_equal(memory: Recurrent) -> None:
    pairs = pairs_at(ARRIVALS[:2], absent=((0, 1),))
    query, decay = random(2, LENGTH, 4, 5).exp(), -torch.rand(2, LENGTH, 4, dtype=torch.float64)
    inputs = [query, pairs.key / 3, pairs.value, pairs.rate, decay]
    leaves = [tensor.requires_grad_() for tensor in inputs if tensor is not None]
    answers: dict[str, Any] = {}
    for form in ("reference", "torch"):
        row_query, key, value, rate, passed = leaves
        features = Features(key, value, pairs.present, pairs.arrival, rate)
        partial, state = recalled(memory, form, row_query, features, passed, counted(2, LENGTH), empty(memory, SHAPE, 2))
        loss = partial.output.square().sum() + state["state"].square().sum()
        answers[form] = torch.autograd.grad(loss, leaves, allow_unused=True)
    for got, wanted, leaf in zip(answers["torch"], answers["reference"], leaves, strict=True):
        assert (got is None) is (wanted is None) is (leaf is leaves[3] and not isinstance(memory, Delta))
        if got is not None:
            close(got, wanted)
    assert not answers["torch"][1][0, 1].any(), "an absent pair has no gradient"


def test_the_state_decays_in_a_call_without_evicted_pairs() -> None:
    """A call without evicted pairs after a call with some: the state decays and answers."""
    part = StateMemory()
    pairs, decay = pairs_at(ARRIVALS), torch.full((4, LENGTH, 4), -0.1, dtype=torch.float64)
    query = random(4, LENGTH, 4, 5).exp()
    _, state = recalled(part, "torch", query, pairs, decay, counted(4, LENGTH), empty(part, SHAPE, 4))
    nothing = pairs_at([[], [], [], []])
    for form in ("reference", "torch"):
        partial, after = recalled(part, form, query, nothing, decay, counted(4, LENGTH, LENGTH), state)
        close(after["state"], math.exp(-0.1 * LENGTH) * state["state"])
        close(partial.output[:, 0], recalled(part, form, query[:, :1], nothing, None, counted(4, 1), state)[0].output[:, 0])
