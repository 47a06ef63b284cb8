"""A terraced window holds two chunks, counted from each document's first token. A chunk is evicted as the second chunk after it
begins.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from blocks.flow import Pairs, Tokens
from blocks.legend import Number, Shape
from blocks.memories.window import Window
from blocks.operation import Setting
from blocks.positions import NoPosition, Rope
from tests.blocks.memories.by_hand import Call, Stream, pairs_at
from tests.blocks.support import GROUPED, assert_derivatives, close, computed, counted, documents, empty, random

ROWS = [[13], [4, 1, 8], [1, 2, 10], [11]]
WHOLE = [Call([13, 13, 13, 11], 13)]
ONE_BY_ONE = [Call([1, 1, 1, 1], 1)] * 11 + [Call([1, 1, 1, 0], 1)] * 2
RAGGED = [Call([3, 0, 2, 4], 4), Call([0, 5, 1, 0], 5), Call([1, 1, 0, 0], 2), Call([9, 7, 10, 7], 11)]
ROPE = Rope(theta=20.0)
CONVOLVED = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, convolved_heads=4, numbers=(Number("delta_rate", 1),))


def terraced(size: int, **options: object) -> Window:
    return Window.model_validate({"size": size, "shape": "terraced", **options})


def falling(pairs: Pairs, row: int, column: int) -> list[int]:
    """Return the places of the pairs that are evicted at this column."""
    assert pairs.arrival is not None
    return ((pairs.arrival[row] == column) & pairs.present[row]).nonzero()[:, 0].tolist()


@pytest.mark.parametrize("form", ["reference", "torch"])
@pytest.mark.parametrize("calls", [WHOLE, ONE_BY_ONE, RAGGED], ids=["whole", "one by one", "ragged"])
@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_the_window_holds_the_current_and_the_previous_chunk(size: int, calls: list[Call], form: str) -> None:
    part, stream = terraced(size, position=ROPE), Stream(CONVOLVED, ROWS, size, convolved=4, terraced=True)
    angles = torch.arange(13)[:, None].float() * ROPE.frequencies(4)
    turn = torch.complex(angles.cos().double(), angles.sin().double())
    state = empty(part, CONVOLVED, len(ROWS))
    for call in calls:
        query, pairs, tokens = stream.call(call)
        # A number that travels with the pairs: what its value starts with.
        pairs = Pairs(pairs.key, pairs.convolved, pairs.value, pairs.position, numbers={"delta_rate": pairs.value[..., 0, :1]})
        (partial, evicted), state = computed(part, form, CONVOLVED, {}, tokens, state, query=query, pairs=pairs)
        assert partial.lse is not None
        assert evicted.arrival is not None
        raw = evicted.rotate(NoPosition())
        assert all(first <= second for row in evicted.arrival.tolist() for first, second in pairwise(row))
        for index, (row, real) in enumerate(zip(stream.rows, call.real, strict=True)):
            for column, (token, gone, held) in enumerate(row.take(real)):
                places = falling(evicted, index, column)
                assert evicted.position[index, places].tolist() == [row.tokens[pair][1] for pair in gone]
                close(raw[index, places], stream.key[index, gone])
                assert torch.equal(evicted.convolved[index, places], stream.convolved[index, gone])
                assert torch.equal(evicted.value[index, places], stream.value[index, gone])
                assert torch.equal(evicted.numbers["delta_rate"][index, places, 0], stream.value[index, gone, 0, 0])
                answers = [stream.attention(index, token, held, head, turn) for head in range(4)]
                close(partial.output[index, column], torch.stack([output for output, _ in answers]))
                close(partial.lse[index, column], torch.stack([mass for _, mass in answers]))
            assert not any(falling(evicted, index, column) for column in range(real, call.columns))


def test_a_chunk_is_evicted_at_the_first_token_of_the_second_chunk_after_it() -> None:
    part, states = terraced(3), random(1, 10, 2, 4)
    inputs = {"query": random(1, 10, 4, 4), "pairs": pairs_at(states, [[*range(10)]])}
    (_, evicted), _ = computed(part, "torch", GROUPED, {}, counted(1, 10), empty(part, GROUPED, 1), **inputs)
    assert evicted.arrival is not None
    assert evicted.position[evicted.present].tolist() == [0, 1, 2, 3, 4, 5]
    assert evicted.arrival[evicted.present].tolist() == [6, 6, 6, 9, 9, 9]


def test_rows_evict_independently() -> None:
    """One row evicts at columns where the other row does not. Missing places count as no pair."""
    part, states = terraced(2), random(2, 6, 2, 4)
    tokens = documents([6], [1, 5])
    pairs = pairs_at(states, tokens.position.tolist())
    (_, evicted), _ = computed(part, "torch", GROUPED, {}, tokens, empty(part, GROUPED, 2), query=random(2, 6, 4, 4), pairs=pairs)
    assert [len(falling(evicted, 0, column)) for column in range(6)] == [0, 0, 0, 0, 2, 0]
    assert [len(falling(evicted, 1, column)) for column in range(6)] == [0, 0, 0, 0, 0, 2]
    assert torch.equal(evicted.key[1, falling(evicted, 1, 5)], states[1, 1:3])


@pytest.mark.parametrize("form", ["reference", "torch"])
def test_chunks_below_another_window_are_counted_by_tokens(form: str) -> None:
    """Below another window, pairs arrive late. Each belongs to the chunk of the token at which it enters, so none is lost or
    counted twice.
    """
    above, part, states, query = Window(size=1), terraced(3), random(1, 14, 2, 4), random(1, 14, 4, 4)
    tokens = counted(1, 14)
    (_, late), _ = computed(
        above, form, GROUPED, {}, tokens, empty(above, GROUPED, 1), query=query, pairs=pairs_at(states, [[*range(14)]])
    )
    (partial, evicted), _ = computed(part, form, GROUPED, {}, tokens, empty(part, GROUPED, 1), query=query, pairs=late)
    assert partial.lse is not None
    gone: list[int] = []
    for t in range(14):
        chunk = t // 3
        seen = [pair for pair in range(14) if chunk - 1 <= (pair + 1) // 3 and pair < t]
        gone += evicted.position[0, falling(evicted, 0, t)].tolist()
        assert sorted(gone + seen) == list(range(t))
        for head in range(4):
            logits = states[0, seen, head // 2] @ query[0, t, head] / 2
            close(partial.lse[0, t, head], logits.logsumexp(0))


def test_a_new_document_at_the_start_of_a_call_evicts_no_earlier_pairs() -> None:
    part, states = terraced(2), random(1, 4, 2, 4)
    query, pairs = random(1, 4, 4, 4), pairs_at(states, [[0, 1, 2, 3]])
    (_, _), state = computed(part, "torch", GROUPED, {}, counted(1, 4), empty(part, GROUPED, 1), query=query, pairs=pairs)
    (wanted, _), _ = computed(part, "torch", GROUPED, {}, counted(1, 4), empty(part, GROUPED, 1), query=query, pairs=pairs)
    anew = Tokens(torch.arange(4)[None], torch.ones(1, 4, dtype=torch.int64))
    (got, evicted), after = computed(part, "torch", GROUPED, {}, anew, state, query=query, pairs=pairs)
    close(got.output, wanted.output)
    assert not evicted.present.any()
    assert after["position"].tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("evict", ["next", "drop"])
def test_the_state_has_two_chunks(evict: str, dtype: torch.dtype) -> None:
    part, states = terraced(3, evict=evict), random(2, 5, 2, 4, dtype=dtype)
    pairs = pairs_at(states, [[0, 1, 2, 3, 4]] * 2, random(2, 5, 4, 4, dtype=dtype))
    before = empty(part, CONVOLVED, 2, dtype)
    query = random(2, 5, 4, 4, dtype=dtype)
    _, after = computed(part, "torch", CONVOLVED, {}, counted(2, 5), before, query=query, pairs=pairs)
    assert {name: (held.shape, held.dtype) for name, held in after.items()} == {
        name: (held.shape, held.dtype) for name, held in before.items()
    }
    # 6 pairs of 2 × 2 × 4 numbers and a position; where something below wants them, 4 × 4 convolved ones and a rate.
    more = (6 * 4 * 4, 6) if evict == "next" else (0, 0)
    width, wide = dtype.itemsize, max(4, dtype.itemsize)
    wanted = (6 * 2 * 2 * 4 + more[0]) * width + 6 * 8 + more[1] * wide
    assert sum(slot.bytes(width, wide) for slot in part.state(CONVOLVED).values()) == wanted
    assert sum(held[0].nbytes for held in after.values()) == wanted


@pytest.mark.parametrize("form", ["reference", "torch"])
def test_gradients_match_numerical_gradients(form: str) -> None:
    part, tokens, setting = terraced(2, position=ROPE), documents([2, 5]), Setting(gradients=True)
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=2)

    def run(query: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pairs = pairs_at(states, tokens.position.tolist())
        (partial, evicted), _ = computed(
            part, form, shape, {}, tokens, empty(part, shape, 1), setting=setting, query=query, pairs=pairs
        )
        assert partial.lse is not None
        assert evicted.present.any()
        return partial.output, partial.lse, evicted.key * evicted.present[..., None, None]

    assert_derivatives(run, (random(1, 7, 4, 2), random(1, 7, 2, 2)))


def test_operation_count_equals_a_count_by_hand() -> None:
    # On average a token sees half of its own chunk and all of the one before.
    assert terraced(64).flops(GROUPED, 9) == 2 * 2 * 96 * 4 * 4
