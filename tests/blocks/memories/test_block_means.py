"""Means of blocks give softmax over the mean keys and values of the whole blocks so far, and store one mean per block."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from blocks.legend import Shape
from blocks.memories.block_means import BlockMeans
from blocks.positions import Rope
from tests.blocks.memories.by_hand import Call, Stream, pairs_at
from tests.blocks.support import GROUPED, ONE_KEY, assert_derivatives, close, computed, counted, documents, empty, owner, random

ROPE = Rope(theta=20.0)
ROWS = [[10], [4, 1, 5], [1, 2, 7], [8]]
WHOLE = [Call([10, 10, 10, 8], 10)]
RAGGED = [Call([3, 0, 2, 4], 4), Call([0, 5, 1, 0], 5), Call([1, 1, 0, 0], 2), Call([6, 4, 6, 4], 8), Call([0, 0, 1, 0], 1)]
ONE_BY_ONE = [Call([1, 1, 1, 1], 1)] * 8 + [Call([1, 1, 1, 0], 1), Call([1, 1, 1, 0], 1)]


def attend(stream: Stream, row: int, token: int, held: list[int], head: int, size: int) -> tuple[Tensor, Tensor]:
    """Return output and log mass of one query by the equation."""
    shape, places = stream.shape, stream.rows[row].tokens
    key_head = owner(head, shape.heads, shape.key_heads)

    def turned(states: Tensor, pair: int) -> Tensor:
        return ROPE.rotate(states[None, None, None], torch.tensor([[places[pair][1]]]))[0, 0, 0]

    blocks = [held[first : first + size] for first in range(0, len(held) - size + 1, size)]
    if not blocks:
        return torch.zeros(shape.value_dim, dtype=torch.float64), torch.tensor(-math.inf, dtype=torch.float64)
    query = turned(stream.query[row, token, head], token)
    keys = torch.stack([torch.stack([turned(stream.key[row, pair, key_head], pair) for pair in block]).mean(0) for block in blocks])
    values = torch.stack([stream.value[row, block, key_head].mean(0) for block in blocks])
    logits = keys @ query / math.sqrt(shape.head_dim)
    return logits.softmax(0) @ values, logits.logsumexp(0)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("calls", "shape"),
    [(WHOLE, ONE_KEY), (RAGGED, GROUPED), (ONE_BY_ONE, GROUPED)],
    ids=["whole, one key head", "ragged", "one by one"],
)
def test_outputs_equal_softmax_over_means_of_whole_blocks(shape: Shape, calls: list[Call], size: int) -> None:
    part, stream = BlockMeans(position=ROPE, size=size), Stream(shape, ROWS, None)
    state, columns = empty(part, shape, len(ROWS)), 0
    for call in calls:
        query, pairs, tokens = stream.call(call)
        (partial,), state = computed(part, "every", shape, {}, tokens, state, query=query, pairs=pairs)
        columns += call.columns
        for index, (row, real) in enumerate(zip(stream.rows, call.real, strict=True)):
            for column, (token, _, held) in enumerate(row.take(real)):
                for head in range(shape.heads):
                    output, mass = attend(stream, index, token, held, head, size)
                    close(partial.output[index, column, head], output)
                    close(partial.lse[index, column, head], mass)
        assert {name: tuple(held.shape[1:]) for name, held in state.items()} == {
            name: slot.shape for name, slot in part.state_after(shape, columns).items()
        }


def test_a_window_of_the_model_hides_blocks_that_end_before_it() -> None:
    part, shape = BlockMeans(size=2), Shape(hidden_size=6, heads=2, key_heads=2, head_dim=4, window=5)
    query, states, tokens = random(1, 10, 2, 4), random(1, 10, 2, 4), counted(1, 10)
    pairs = pairs_at(states, [list(range(10))])
    (partial,), _ = computed(part, "every", shape, {}, tokens, empty(part, shape, 1), query=query, pairs=pairs)
    means = pairs.value.unflatten(1, (5, 2)).mean(2)[0]
    for token in range(10):
        seen = [block for block in range(5) if token - 5 < 2 * block + 1 <= token]
        for head in range(2 if seen else 0):
            logits = means[seen, head] @ query[0, token, head] / 2
            close(partial.output[0, token, head], logits.softmax(0) @ means[seen, head])


def test_gradients_equal_finite_differences() -> None:
    """Over two documents, the second of which begins inside a block."""
    part, tokens = BlockMeans(position=ROPE, size=2), documents([3, 5])

    def run(query: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        pairs = pairs_at(states, tokens.position.tolist())
        (partial,), state = computed(part, "every", GROUPED, {}, tokens, empty(part, GROUPED, 1), query=query, pairs=pairs)
        return partial.output, state["value_sum"]

    assert_derivatives(run, (random(1, 8, 4, 4), random(1, 8, 2, 4)))


def test_the_state_has_a_mean_per_block_and_a_position_per_token() -> None:
    """64 tokens in bfloat16: 4 means of 2 heads, the sums of the newest block, and positions of 8 bytes."""
    part = BlockMeans(size=16)
    assert sum(slot.bytes(2) for slot in part.state_after(GROUPED, 64).values()) == (4 * 2 + 4) * 2 * 8 + 64 * 8


def test_operation_counts_equal_counts_by_hand() -> None:
    """The 6th token sees two blocks of 3, and its pair is added to the sums."""
    part = BlockMeans(size=3)
    assert part.flops(GROUPED, 5) == 2 * 4 * 2 * 8 + 2 * 8
    assert part.prefill_flops(GROUPED, 11) == sum(part.flops(GROUPED, token) - 16 for token in range(11)) // 11 + 16
