"""Selected blocks give softmax over a query's own block and those that the papers' rules choose, whichever form computes it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.legend import Shape
from blocks.memories.full import Full
from blocks.memories.selected_blocks import SelectedBlocks
from blocks.operation import Setting
from blocks.positions import Rope
from tests.blocks.memories.by_hand import Call, Stream, pairs_at
from tests.blocks.support import GROUPED, ONE_KEY, close, computed, counted, documents, empty, owner, random

ROPE = Rope(theta=20.0)
ROWS = [[19], [9, 1, 9], [1, 2, 16], [17]]
WHOLE = [Call([19, 19, 19, 17], 19)]
RAGGED = [Call([3, 0, 2, 4], 4), Call([0, 9, 1, 0], 9), Call([1, 1, 0, 0], 2), Call([15, 9, 12, 13], 16), Call([0, 0, 4, 0], 5)]
ONE_BY_ONE = [Call([1, 1, 1, 1], 1)] * 17 + [Call([1, 1, 1, 0], 1), Call([1, 1, 1, 0], 1)]
RULES: list[dict[str, Any]] = [{"size": 2, "count": 3}, {"size": 2, "count": 3, "scores": "share"}, {"size": 3, "count": 1}]


def chosen_pairs(part: SelectedBlocks, stream: Stream, row: int, token: int, held: list[int], head: int) -> list[int]:
    """Return the pairs that a query sees, by the papers' equations, number by number."""
    shape, places = stream.shape, stream.rows[row].tokens
    key_head = owner(head, shape.heads, shape.key_heads)

    def turned(states: Tensor, pair: int) -> Tensor:
        return ROPE.rotate(states[None, None, None], torch.tensor([[places[pair][1]]]))[0, 0, 0]

    def products(of_head: int, of_blocks: list[list[int]]) -> Tensor:
        query = turned(stream.query[row, token, of_head], token)
        means = [torch.stack([turned(stream.key[row, pair, key_head], pair) for pair in block]).mean(0) for block in of_blocks]
        return torch.stack([query @ mean for mean in means]) / math.sqrt(shape.head_dim)

    blocks = [held[first : first + part.size] for first in range(0, len(held), part.size)]
    *earlier, own = blocks
    if not earlier:
        return own
    if part.scores == "product":
        scores = products(head, earlier)
    else:
        whole = [block for block in blocks if len(block) == part.size]
        sharing = [other for other in range(shape.heads) if owner(other, shape.heads, shape.key_heads) == key_head]
        scores = torch.stack([products(other, whole).softmax(0) for other in sharing]).sum(0)[: len(earlier)]
        scores[0], scores[-1] = 1e3, 1e4
    best = sorted(range(len(earlier)), key=lambda block: -float(scores[block]))[: part.count]
    return [pair for block in sorted(best) for pair in earlier[block]] + own


@pytest.mark.parametrize("rule", RULES, ids=["product", "share", "one block"])
@pytest.mark.parametrize(
    ("calls", "shape"),
    [(WHOLE, ONE_KEY), (RAGGED, GROUPED), (ONE_BY_ONE, GROUPED)],
    ids=["whole, one key head", "ragged", "one by one"],
)
@pytest.mark.parametrize("form", ["reference", "torch"])
def test_outputs_equal_softmax_over_the_chosen_pairs(shape: Shape, calls: list[Call], form: str, rule: dict[str, Any]) -> None:
    part, stream = SelectedBlocks(position=ROPE, **rule), Stream(shape, ROWS, None)
    angles = torch.arange(19)[:, None].float() * ROPE.frequencies(4)
    turn = torch.complex(angles.cos().double(), angles.sin().double())
    state, columns = empty(part, shape, len(ROWS)), 0
    for call in calls:
        query, pairs, tokens = stream.call(call)
        setting = Setting(one_token=call.columns == 1)
        (partial,), state = computed(part, form, shape, {}, tokens, state, setting=setting, query=query, pairs=pairs)
        columns += call.columns
        for index, (row, real) in enumerate(zip(stream.rows, call.real, strict=True)):
            for column, (token, _, held) in enumerate(row.take(real)):
                for head in range(shape.heads):
                    pairs_seen = chosen_pairs(part, stream, index, token, held, head)
                    output, mass = stream.attention(index, token, pairs_seen, head, turn)
                    close(partial.output[index, column, head], output)
                    close(partial.lse[index, column, head], mass)
        assert {name: tuple(held.shape[1:]) for name, held in state.items()} == {
            name: slot.shape for name, slot in part.state_after(shape, columns).items()
        }


@pytest.mark.parametrize("scores", ["product", "share"])
@pytest.mark.parametrize("window", [None, 5])
def test_a_choice_of_all_blocks_equals_full_attention(window: int | None, scores: Any) -> None:
    """With and without a window of the model, and over several documents in a row."""
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, window=window)
    query, states = random(1, 16, 4, 4), random(1, 16, 2, 4)
    tokens = documents([9, 1, 6])
    pairs = pairs_at(states, tokens.position.tolist())
    pairs.tokens = tokens
    partials = []
    for part, form in ((Full(), "reference"), (SelectedBlocks(size=2, count=9, scores=scores), "torch")):
        (partial,), _ = computed(part, form, shape, {}, tokens, empty(part, shape, 1), query=query, pairs=pairs)
        partials.append(partial)
    close(partials[1].output, partials[0].output)
    close(partials[1].lse, partials[0].lse)
    close(partials[1].maximum, partials[0].maximum)


@pytest.mark.parametrize("form", ["reference", "torch"])
def test_a_window_of_the_model_hides_evicted_pairs_by_their_position(form: str) -> None:
    """Pairs arrive four tokens late, as below a window of four, and the model sees ten tokens."""
    shape = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=4, window=10)
    query, pairs, tokens = random(1, 16, 4, 4), pairs_at(random(1, 16, 2, 4), [[-1] * 4 + list(range(12))]), counted(1, 16)
    outputs = []
    for part, own_form in ((Full(), "reference"), (SelectedBlocks(size=2, count=9), form)):
        (partial,), _ = computed(part, own_form, shape, {}, tokens, empty(part, shape, 1), query=query, pairs=pairs)
        outputs.append((partial.output, partial.lse))
    close(outputs[1][0], outputs[0][0])
    close(outputs[1][1], outputs[0][1])


@pytest.mark.parametrize("form", ["reference", "torch"])
def test_below_another_memory_the_first_outputs_are_empty(form: str) -> None:
    """Blocks count the pairs that arrive, and a query sees none that arrives later."""
    part, states, query = SelectedBlocks(size=2), random(1, 5, 2, 4), random(1, 5, 4, 4)
    pairs = pairs_at(states, [[-1, -1, 0, -1, 1]])
    (partial,), _ = computed(part, form, GROUPED, {}, counted(1, 5), empty(part, GROUPED, 1), query=query, pairs=pairs)
    assert not partial.output[:, :2].any()
    assert partial.lse[:, :2].isneginf().all()
    for token in (2, 3):
        close(partial.output[:, token], states[:, 2].repeat_interleave(2, dim=1))


def test_of_equal_blocks_the_newer_ones_are_chosen() -> None:
    key = torch.ones(1, 9, 1, 4, dtype=torch.float64)
    pairs = pairs_at(key, [list(range(9))])
    pairs.value = torch.arange(9.0, dtype=torch.float64)[None, :, None, None].expand(-1, -1, -1, 4)
    part = SelectedBlocks(size=2, count=2)
    for form in ("reference", "torch"):
        state = empty(part, ONE_KEY, 1)
        (partial,), _ = computed(part, form, ONE_KEY, {}, counted(1, 9), state, query=random(1, 9, 3, 4), pairs=pairs)
        close(partial.output[0, 8], torch.full((3, 4), (4 + 5 + 6 + 7 + 8) / 5, dtype=torch.float64))


@pytest.mark.parametrize("rule", RULES, ids=["product", "share", "one block"])
def test_gradients_match_the_definition(rule: dict[str, Any]) -> None:
    states, query = random(1, 16, 2, 4).requires_grad_(), random(1, 16, 4, 4).requires_grad_()
    tokens, part, gradients = documents([9, 1, 6]), SelectedBlocks(position=ROPE, **rule), []
    for form in ("reference", "torch"):
        pairs = pairs_at(states, tokens.position.tolist())
        (partial,), _ = computed(part, form, GROUPED, {}, tokens, empty(part, GROUPED, 1), query=query, pairs=pairs)
        gradients.append(torch.autograd.grad((partial.output.square().sum(), partial.lse.sum()), (states, query)))
    for actual, wanted in zip(*gradients, strict=True):
        close(actual, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_state_has_the_declared_bytes(dtype: torch.dtype) -> None:
    """A pair a token, as `full`, and a mean of keys a block."""
    states, part = random(2, 13, 2, 4, dtype=dtype), SelectedBlocks(size=4)
    query = random(2, 13, 4, 4, dtype=dtype)
    pairs = pairs_at(states, [list(range(13))] * 2)
    _, state = computed(part, "torch", GROUPED, {}, counted(2, 13), empty(part, GROUPED, 2, dtype), query=query, pairs=pairs)
    width = states.element_size()
    declared = sum(slot.bytes(width) for slot in part.state_after(GROUPED, 13).values())
    assert declared == sum(held[0].nbytes for held in state.values())
    assert declared == sum(slot.bytes(width) for slot in Full().state_after(GROUPED, 13).values()) + (3 + 1) * 2 * 4 * 4


def test_operation_counts_equal_counts_by_hand() -> None:
    """The 11th token sees two chosen blocks of 3 and two pairs of its own block, and compares three means."""
    part = SelectedBlocks(size=3, count=2)
    assert part.flops(GROUPED, 10) == 2 * 4 * ((2 * 3 + 2) * 8 + 3 * 4)
    assert part.prefill_flops(GROUPED, 11) == sum(part.flops(GROUPED, token) for token in range(11)) // 11
