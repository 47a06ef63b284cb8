"""A window stores and evicts the same pairs at the same tokens as a list of its size."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from blocks.legend import Shape
from blocks.memories.window import Window
from blocks.positions import NoPosition, Rope
from tests.blocks.memories.by_hand import Call, Stream, pairs_at
from tests.blocks.support import GROUPED, close, computed, counted, documents, empty, random

ROWS = [[11], [4, 1, 6], [1, 2, 8], [9]]
WHOLE = [Call([11, 11, 11, 9], 11)]
ONE_BY_ONE = [Call([1, 1, 1, 1], 1)] * 9 + [Call([1, 1, 1, 0], 1)] * 2
RAGGED = [Call([3, 0, 2, 4], 4), Call([0, 5, 1, 0], 5), Call([1, 1, 0, 0], 2), Call([7, 5, 8, 5], 9)]
ROPE = Rope(theta=20.0)
CONVOLVED = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, convolved_heads=4)


@pytest.mark.parametrize("form", ["reference", "torch"])
@pytest.mark.parametrize("calls", [WHOLE, ONE_BY_ONE, RAGGED], ids=["whole", "one by one", "ragged"])
@pytest.mark.parametrize("size", [1, 2, 4, 20])
def test_the_window_holds_the_last_pairs(size: int, calls: list[Call], form: str) -> None:
    part, stream = Window(size=size, position=ROPE), Stream(CONVOLVED, ROWS, size, convolved=4)
    angles = torch.arange(11)[:, None].float() * ROPE.frequencies(4)
    turn = torch.complex(angles.cos().double(), angles.sin().double())
    state = empty(part, CONVOLVED, len(ROWS))
    for call in calls:
        query, pairs, tokens = stream.call(call)
        (partial, evicted), state = computed(part, form, CONVOLVED, {}, tokens, state, query=query, pairs=pairs)
        assert partial.lse is not None
        raw = evicted.rotate(NoPosition())
        for index, (row, real) in enumerate(zip(stream.rows, call.real, strict=True)):
            for column, (token, gone, held) in enumerate(row.take(real)):
                assert evicted.position[index, column : column + 1].tolist() == ([row.tokens[pair][1] for pair in gone] or [-1])
                for pair in gone:
                    close(raw[index, column], stream.key[index, pair])
                    assert torch.equal(evicted.convolved[index, column], stream.convolved[index, pair])
                    assert torch.equal(evicted.value[index, column], stream.value[index, pair])
                answers = [stream.attention(index, token, held, head, turn) for head in range(4)]
                close(partial.output[index, column], torch.stack([output for output, _ in answers]))
                close(partial.lse[index, column], torch.stack([mass for _, mass in answers]))
            assert not evicted.present[index, real:].any()
            # What is held is what the state says: the pair of position t, with its key turned, at place t modulo the size.
            places = [row.tokens[pair][1] for pair in row.held]
            wanted = torch.full((size,), -1)
            wanted[[place % size for place in places]] = torch.tensor(places, dtype=torch.int64)
            assert state["position"][index].tolist() == wanted.tolist()
            for pair, place in zip(row.held, places, strict=True):
                rotated = ROPE.rotate(stream.key[index, pair][None, None], torch.tensor([[place]]))[0, 0]
                assert torch.equal(state["key"][index, place % size], rotated)
                assert torch.equal(state["value"][index, place % size], stream.value[index, pair])


def test_a_new_document_at_the_start_of_a_call_neither_sees_nor_evicts_earlier_pairs() -> None:
    part, stream = Window(size=3), Stream(GROUPED, [[5], [5]], 3)
    query, pairs, tokens = stream.call(Call([5, 5], 5))
    (wanted, _), _ = computed(part, "torch", GROUPED, {}, tokens, empty(part, GROUPED, 2), query=query, pairs=pairs)
    (_, _), state = computed(part, "torch", GROUPED, {}, tokens, empty(part, GROUPED, 2), query=query, pairs=pairs)
    anew = type(tokens)(tokens.position, torch.ones_like(tokens.position))
    (got, evicted), _ = computed(part, "torch", GROUPED, {}, anew, state, query=query, pairs=pairs)
    close(got.output, wanted.output)
    assert evicted.position.tolist() == [[-1, -1, -1, 0, 1]] * 2


def test_pairs_may_arrive_with_gaps() -> None:
    """Below another window nothing enters at first. An empty window returns 0 and no mass."""
    for form in ("reference", "torch"):
        part, states = Window(size=2, position=ROPE), random(1, 4, 2, 4)
        query = random(1, 4, 4, 4)
        pairs = pairs_at(states, [[-1, -1, 0, -1]])
        (partial, evicted), _ = computed(part, form, GROUPED, {}, counted(1, 4), empty(part, GROUPED, 1), query=query, pairs=pairs)
        assert partial.lse is not None
        assert not partial.output[:, :2].any()
        assert partial.lse[:, :2].isneginf().all()
        for token in (2, 3):
            close(partial.output[:, token], states[:, 2].repeat_interleave(2, dim=1))
        assert evicted.position.tolist() == [[-1, -1, -1, -1]]


@pytest.mark.parametrize("evict", ["next", "drop"])
@pytest.mark.parametrize("convolved", [0, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_state_dtype_and_bytes_are_as_declared(dtype: torch.dtype, evict: str, convolved: int) -> None:
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, convolved_heads=convolved)
    part = Window.model_validate({"size": 3, "evict": evict})
    before = empty(part, shape, 2, dtype)
    states = random(2, 5, 2, 4, dtype=dtype)
    wide = random(2, 5, 4, 4, dtype=dtype) if convolved else states
    pairs = pairs_at(states, [[0, 1, 2, 3, 4]] * 2, wide)
    query = random(2, 5, 4, 4, dtype=dtype)
    _, after = computed(part, "torch", shape, {}, counted(2, 5), before, query=query, pairs=pairs)
    assert {name: (held.shape, held.dtype) for name, held in after.items()} == {
        name: (held.shape, held.dtype) for name, held in before.items()
    }
    assert ("convolved" in after) is (convolved > 0 and evict == "next")
    # 3 pairs of 2 × 2 × 4 numbers, their positions, and 4 heads of convolved keys where something below wants them.
    numbers = 3 * 2 * 2 * 4 + (3 * 4 * 4 if "convolved" in after else 0)
    slots = part.state(shape).values()
    width = torch.empty(0, dtype=dtype).element_size()
    assert sum(slot.bytes(width) for slot in slots) == numbers * width + 3 * 8 == sum(held[0].nbytes for held in after.values())


def test_gradients_across_documents_are_finite() -> None:
    for form in ("reference", "torch"):
        part = Window(size=2, position=ROPE, weight="learned")
        states, query = random(1, 6, 2, 4).requires_grad_(), random(1, 6, 4, 4).requires_grad_()
        pairs = pairs_at(states, [[0, 1, 2, 0, 0, 1]])
        parameters = {"weight": torch.zeros(4, dtype=torch.float64)}
        tokens, start = documents([3, 1, 2]), empty(part, GROUPED, 1)
        (partial, _), _ = computed(part, form, GROUPED, parameters, tokens, start, query=query, pairs=pairs)
        assert partial.lse is not None
        for gradient in torch.autograd.grad(partial.output.sum() + partial.lse.sum(), (states, query)):
            assert gradient.isfinite().all()
            assert gradient.abs().sum() > 0


def test_operation_count_is_constant_and_impossible_sizes_are_refused() -> None:
    # Two products of 64 pairs with 4 numbers of 4 heads, a multiply-add each; the same however long the past.
    assert Window().flops(GROUPED, 10_000) == Window().prefill_flops(GROUPED, 10_000) == 2 * 2 * 64 * 4 * 4
    # Both ways 63 more come after the token, as many as there are.
    both = replace(GROUPED, both_ways=True)
    assert [Window().prefill_flops(both, tokens) for tokens in (10_000, 100)] == [2 * 2 * pairs * 4 * 4 for pairs in (127, 100)]
    for wrong in (0, -1, math.inf):
        with pytest.raises(ValidationError):
            Window.model_validate({"size": wrong})
