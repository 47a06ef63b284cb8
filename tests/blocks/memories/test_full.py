"""Full attention is softmax over all earlier pairs of the document, by PyTorch's attention or by the form that returns the mass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from blocks.legend import Shape
from blocks.memories.full import Full
from blocks.operation import Setting
from blocks.positions import Rope
from tests.blocks.memories.by_hand import Call, Stream, pairs_at
from tests.blocks.support import GROUPED, ONE_KEY, close, computed, counted, documents, empty, random

ROWS = [[9], [4, 1, 4], [1, 2, 5], [7]]
WHOLE = [Call([9, 9, 8, 7], 9)]
ONE_BY_ONE = [Call([1, 1, 1, 1], 1)] * 7 + [Call([1, 1, 1, 0], 1), Call([1, 1, 0, 0], 1)]
RAGGED = [Call([3, 0, 2, 4], 4), Call([0, 5, 1, 0], 5), Call([1, 1, 0, 0], 2), Call([5, 3, 5, 3], 7)]
ROPE = Rope(theta=20.0)
WAYS = [("reference", False), ("torch", False), ("torch", True)]
SETTING = {False: Setting(), True: Setting(needs_mass=False, every_pair=True)}
"""Where PyTorch's own attention may stand in, and where it may not."""


@pytest.mark.parametrize(("form", "plain"), WAYS)
@pytest.mark.parametrize("calls", [WHOLE, ONE_BY_ONE, RAGGED], ids=["whole", "one by one", "ragged"])
@pytest.mark.parametrize("shape", [GROUPED, ONE_KEY], ids=["grouped", "one key head"])
def test_full_memory_equals_softmax_over_the_document(shape: Shape, calls: list[Call], form: str, plain: bool) -> None:
    part, stream = Full(position=ROPE), Stream(shape, ROWS, None)
    angles = torch.arange(9)[:, None].float() * ROPE.frequencies(4)
    turn = torch.complex(angles.cos().double(), angles.sin().double())
    state, columns = empty(part, shape, len(ROWS)), 0
    for call in calls:
        query, pairs, tokens = stream.call(call)
        (partial,), state = computed(part, form, shape, {}, tokens, state, setting=SETTING[plain], query=query, pairs=pairs)
        columns += call.columns
        assert (partial.lse is None) is plain
        for index, (row, real) in enumerate(zip(stream.rows, call.real, strict=True)):
            for column, (token, _, held) in enumerate(row.take(real)):
                for head in range(shape.heads):
                    output, mass = stream.attention(index, token, held, head, turn)
                    close(partial.output[index, column, head], output)
                    if partial.lse is not None:
                        close(partial.lse[index, column, head], mass)
            # The state keeps all columns, and knows which of them are pairs of the document.
            position = state["position"][index]
            assert position[position >= 0].tolist() == [row.tokens[pair][1] for pair in row.held]
        assert {name: tuple(held.shape[1:]) for name, held in state.items()} == {
            name: slot.shape for name, slot in part.state_after(shape, columns).items()
        }


@pytest.mark.parametrize("form", ["reference", "torch"])
def test_below_a_window_the_first_outputs_are_empty(form: str) -> None:
    states, query = random(1, 4, 2, 4), random(1, 4, 4, 4)
    pairs = pairs_at(states, [[-1, -1, 0, -1]])
    start = empty(Full(), GROUPED, 1)
    (partial,), _ = computed(Full(), form, GROUPED, {}, counted(1, 4), start, query=query, pairs=pairs)
    assert partial.lse is not None
    assert not partial.output[:, :2].any()
    assert partial.lse[:, :2].isneginf().all()
    for token in (2, 3):
        close(partial.output[:, token], states[:, 2].repeat_interleave(2, dim=1))


@pytest.mark.parametrize(("form", "plain"), WAYS)
def test_outputs_of_padding_are_finite(form: str, plain: bool) -> None:
    """A row of padding after another document has finite outputs, although nobody reads them."""
    part, stream = Full(position=ROPE), Stream(GROUPED, [[3, 2], [5]], None)
    state = empty(part, GROUPED, 2)
    for call in (Call([0, 2], 3), Call([4, 0], 4), Call([1, 1], 2)):
        query, pairs, tokens = stream.call(call)
        (partial,), state = computed(part, form, GROUPED, {}, tokens, state, setting=SETTING[plain], query=query, pairs=pairs)
        assert partial.output.isfinite().all()
        for row, real in zip(stream.rows, call.real, strict=True):
            list(row.take(real))


@pytest.mark.parametrize(("form", "plain"), WAYS)
def test_gradients_match_the_definition(form: str, plain: bool) -> None:
    states, query = random(1, 6, 2, 4).requires_grad_(), random(1, 6, 4, 4).requires_grad_()
    pairs, tokens = pairs_at(states, [[0, 1, 2, 0, 0, 1]]), documents([3, 1, 2])
    answers = []
    for backend, setting in (("reference", SETTING[False]), (form, SETTING[plain])):
        part, start, inputs = Full(position=ROPE), empty(Full(), GROUPED, 1), {"query": query, "pairs": pairs}
        (partial,), _ = computed(part, backend, GROUPED, {}, tokens, start, setting=setting, **inputs)
        answers.append(torch.autograd.grad(partial.output.square().sum(), (states, query)))
    for got, wanted in zip(*answers, strict=True):
        close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_state_has_the_declared_dtypes_and_bytes(dtype: torch.dtype) -> None:
    states = random(2, 5, 2, 4, dtype=dtype)
    pairs, start = pairs_at(states, [[0, 1, 2, 3, 4]] * 2), empty(Full(), GROUPED, 2, dtype)
    inputs = {"query": random(2, 5, 4, 4, dtype=dtype), "pairs": pairs}
    _, state = computed(Full(), "torch", GROUPED, {}, counted(2, 5), start, setting=SETTING[True], **inputs)
    assert {name: held.dtype for name, held in state.items()} == {name: held.dtype for name, held in start.items()}
    width = states.element_size()
    assert sum(slot.bytes(width) for slot in Full().state_after(GROUPED, 5).values()) == sum(
        held[0].nbytes for held in state.values()
    )
    assert sum(slot.bytes(width) for slot in Full().state(GROUPED).values()) == 0


def test_operation_count_equals_a_count_by_hand() -> None:
    # The 101st token meets 101 pairs: two products of 4 numbers of 4 heads. In a prefill of 101 it meets 51 on average.
    assert Full().flops(GROUPED, 100) == 2 * 2 * 101 * 4 * 4
    assert Full().prefill_flops(GROUPED, 101) == 2 * 2 * 51 * 4 * 4
    assert Full().prefill_flops(replace(GROUPED, both_ways=True), 101) == 2 * 2 * 101 * 4 * 4
