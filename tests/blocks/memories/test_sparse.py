"""The sparse cache keeps and evicts the same pairs as LoLA in plain lists, for every score and split. In its limits the head is
LoLCATs or softmax.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from blocks import operation
from blocks.flow import Features, Tokens
from blocks.legend import Shape
from blocks.memories.full import Full
from blocks.memories.sparse import Sparse
from blocks.memories.state import StateMemory
from blocks.positions import NoPosition
from blocks.reads import Shared
from blocks.scores import SCORES
from blocks.softmax import dense
from tests.blocks.memories.by_hand import Call, pairs_at
from tests.blocks.memories.lola import (
    CONVOLVED,
    ROPE,
    ROWS,
    SPLITS,
    Beneath,
    ByHand,
    Cascade,
    features,
    run,
    sparse,
    streamed,
    window,
)
from tests.blocks.support import GROUPED, ONE_KEY, assert_derivatives, close, combined, computed, counted, empty, random, recalled

WINDOWS = ["sliding", "terraced"]
KEEPS = list(SCORES)


def assert_by_hand(of: Cascade) -> None:
    """Check outputs and last states for each split of the sequence."""
    stream = streamed(of)
    sigma = None if of.factor is None else of.factor.sigmoid()
    hands = [[ByHand(stream, row, head, of.window, of.sparse) for head in range(of.shape.heads)] for row in range(len(ROWS))]
    wanted = [torch.stack([hand.outputs(sigma) for hand in row], dim=1) for row in hands]
    for split in SPLITS:
        outputs, states = run(of, stream, split)
        for index, row in enumerate(hands):
            close(outputs[index], wanted[index])
            for head, hand in enumerate(row):
                close(states["state"]["state"][index, head], torch.cat((hand.H, hand.s[:, None]), dim=1))
                position = states["sparse"]["position"][index, :, head]
                present = position >= 0
                assert position[present].tolist() == [hand.places[pair][1] for pair in hand.cache]
                own = head // (of.shape.heads // of.shape.key_heads)
                rotated = ROPE.rotate(stream.key[index, None, hand.cache, own, None], position[None, present])[0, :, 0]
                assert torch.equal(states["sparse"]["key"][index, present, head], rotated)
                assert torch.equal(states["sparse"]["value"][index, present, head], stream.value[index, hand.cache, own])
                if of.shape.convolved_heads:
                    convolved = stream.convolved[index, hand.cache, head]
                    assert torch.equal(states["sparse"]["convolved"][index, present, head], convolved)
                if of.sparse.keep.reads == "window":
                    sums = torch.tensor([hand.errors[pair] for pair in hand.cache], dtype=torch.float64)
                    close(states["sparse"]["sparse_error"][index, present, head], sums)


@pytest.mark.parametrize(
    ("sizes", "form"), [((1, 1), "torch"), ((2, 3), "reference"), ((4, 2), "torch"), ((2, 20), "torch")], ids=str
)
@pytest.mark.parametrize("shape", WINDOWS)
def test_the_cache_keeps_pairs_that_the_state_predicts_worst(shape: str, sizes: tuple[int, int], form: str) -> None:
    assert_by_hand(Cascade(window(sizes[0], shape), sparse(sizes[1]), CONVOLVED, form=form))


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("shape", WINDOWS)
def test_every_score_keeps_the_highest_pairs(shape: str, keep: str) -> None:
    assert_by_hand(Cascade(window(2, shape), sparse(3, keep), CONVOLVED, factor=random(4)))


@pytest.mark.parametrize("keep", ["self_recall", "overestimate"])
@pytest.mark.parametrize("heads", [GROUPED, ONE_KEY], ids=["grouped", "one key head"])
def test_heads_of_a_key_head_keep_different_pairs_only_if_the_score_reads_queries(heads: Shape, keep: str) -> None:
    """Without a convolution, heads that share a key head have the same pairs. They keep different ones only if the score reads
    the queries.
    """
    of = Cascade(window(2, "sliding"), sparse(3, keep), heads)
    assert_by_hand(of)
    position = run(of, streamed(of), "whole")[1]["sparse"]["position"]
    assert torch.equal(position[..., 0], position[..., 1]) is (keep == "self_recall")
    assert not torch.equal(position[..., 0], position[..., -1]) or keep == "self_recall"


def test_older_pairs_are_kept_on_ties() -> None:
    """Five pairs of equal value are evicted at once onto an empty state that predicts 0 for all of them: the older stay."""
    states, of = random(1, 1, 2, 4).repeat(1, 11, 1, 1), Cascade(window(5, "terraced"), sparse(3), GROUPED)
    _, after, _ = of.call(random(1, 11, 4, 4), pairs_at(states, [[*range(11)]]), counted(1, 11), of.start(1))
    assert after["sparse"]["position"][0].T.tolist() == [[0, 1, 2]] * 4


def test_scores_at_a_documents_first_token_use_an_empty_state() -> None:
    """Three pairs are evicted at a document's first token. The old state predicts 100 for each, but counts as empty, so the
    longest value is furthest from it.
    """
    states = torch.zeros(1, 3, 2, 4, dtype=torch.float64)
    states[0, :, :, 0] = torch.tensor([3.0, -2.0, 0.1])[:, None]
    pairs = replace(pairs_at(states, [[0, 1, 2]]), arrival=torch.zeros(1, 3, dtype=torch.int64), max_per_token=3)
    part, query, tokens = sparse(1), random(1, 2, 4, 4), Tokens(torch.arange(2)[None], torch.ones(1, 2, dtype=torch.int64))
    shape = replace(GROUPED, features=4, state_heads=4)
    held = {"state": torch.ones_like(empty(StateMemory(), shape, 1)["state"])}
    held["state"][..., 0] = 100.0
    beneath = Beneath(StateMemory(), query, tokens, held, "torch")
    call = operation.Call(tokens, empty(part, GROUPED, 1), GROUPED)
    _, after = part.attend({}, query, pairs, call, below=beneath, attention=dense)
    assert after["position"].flatten().tolist() == [0] * 4


def test_nothing_is_evicted_before_the_cache_is_full() -> None:
    of = Cascade(window(2, "sliding"), sparse(4), GROUPED)
    stream, states = streamed(of, [[9]]), of.start(1)
    for token in range(9):
        _, states, _ = of.call(*stream.call(Call([1], 1)), states)
        stream.rows[0].at += 1
        assert (states["sparse"]["position"] >= 0).sum(1).tolist() == [[min(4, max(0, token - 1))] * 4]
        assert bool(states["state"]["state"].any()) is (token > 5)


@pytest.mark.parametrize("keep", ["self_recall", "squared_error", "random"])
@pytest.mark.parametrize("shape", WINDOWS)
def test_size_0_equals_lolcats_with_the_same_window(shape: str, keep: str) -> None:
    """With size 0, the window's evicted pairs enter the state directly."""
    of = Cascade(window(3, shape), sparse(0, keep), CONVOLVED, factor=random(4))
    stream = streamed(of)
    query, pairs, tokens = stream.call(SPLITS["whole"][0])
    output, after, kept = of.call(query, pairs, tokens, of.start(3))
    inputs = {"query": query, "pairs": pairs}
    (near, evicted), _ = computed(of.window, "torch", CONVOLVED, {}, tokens, empty(of.window, CONVOLVED, 3), **inputs)
    evictions = Features(features(evicted.mappable(NoPosition())), evicted.value, evicted.present, evicted.arrival)
    below = empty(StateMemory(), replace(CONVOLVED, features=4, state_heads=4), 3)
    far, state = recalled(StateMemory(), "torch", features(query), evictions, None, tokens, below)
    close(output[tokens.valid], combined(Shared(), [replace(near, logit=of.factor), far])[tokens.valid])
    close(after["state"]["state"], state["state"])
    assert not kept.output.any()
    assert kept.lse is not None
    assert kept.lse.isneginf().all()


@pytest.mark.parametrize("keep", ["self_recall", "squared_error", "random"])
@pytest.mark.parametrize("shape", WINDOWS)
def test_a_cache_of_all_pairs_equals_softmax(shape: str, keep: str) -> None:
    of = Cascade(window(2, shape), sparse(11, keep), GROUPED, factor=random(4))
    stream = streamed(of)
    query, pairs, tokens = stream.call(SPLITS["whole"][0])
    inputs = {"query": query, "pairs": pairs}
    (softmax,), _ = computed(Full(position=ROPE), "reference", GROUPED, {}, tokens, empty(Full(), GROUPED, 3), **inputs)
    outputs, states = run(of, stream, "ragged")
    for index, output in enumerate(outputs):
        close(output, softmax.output[index, : len(output)])
    assert not states["state"]["state"].any()


def test_keeping_recent_pairs_equals_a_larger_window() -> None:
    factor = random(4)
    kept = Cascade(window(2, "sliding"), sparse(3, "recent"), CONVOLVED, factor=factor)
    larger = Cascade(window(5, "sliding"), sparse(0), CONVOLVED, factor=factor)
    stream = streamed(kept)
    (outputs, states), (wanted, alone) = (run(of, stream, "ragged") for of in (kept, larger))
    for first, other in zip(outputs, wanted, strict=True):
        close(first, other)
    close(states["state"]["state"], alone["state"]["state"])


def test_the_random_score_does_not_depend_on_the_pairs() -> None:
    """The random score depends on seed, layer and head, and not on the numbers of the pairs."""
    kept = []
    for seed, place in ((1, (0, 0)), (1, (0, 0)), (2, (0, 0)), (1, (1, 0)), (1, (0, 1))):
        part, states = sparse(6, {"kind": "random", "seed": seed}, evict="drop"), random(1, 40, 2, 4)
        inputs = {"query": random(1, 40, 4, 4), "pairs": pairs_at(states, [[*range(40)]])}
        (_, evicted), after = computed(part, "torch", GROUPED, {}, counted(1, 40), empty(part, GROUPED, 1), place=place, **inputs)
        assert evicted is None, "what falls out of it goes nowhere"
        kept.append(after["position"][0].T.tolist())
    assert kept[0] == kept[1]
    assert all(kept[0] != other for other in kept[2:])
    assert kept[0][1:] == kept[4][:3], "heads count on from the first"


@pytest.mark.parametrize("shape", WINDOWS)
@pytest.mark.parametrize("keep", ["self_recall", "relative_recall", "squared_error"])
def test_gradients_equal_those_of_the_chosen_pairs(keep: str, shape: str) -> None:
    factor = random(4)
    of = Cascade(window(2, shape), sparse(2, keep), CONVOLVED, factor=factor)
    stream = streamed(of)
    leaves = [tensor.requires_grad_() for tensor in (stream.query, stream.key, stream.convolved, stream.value, factor)]
    hands = [[ByHand(stream, row, head, of.window, of.sparse) for head in range(4)] for row in range(len(ROWS))]
    wanted = [torch.stack([hand.outputs(factor.sigmoid()) for hand in row], dim=1) for row in hands]
    answers = []
    for outputs in (wanted, run(of, stream, "whole")[0], run(of, stream, "ragged")[0]):
        answers.append(torch.autograd.grad(torch.cat(outputs).square().sum(), leaves))
    for got in answers[1:]:
        for first, other in zip(got, answers[0], strict=True):
            close(first, other)
            assert other.any()


def test_values_of_0_have_a_relative_error_of_0_for_an_empty_state() -> None:
    """An empty state predicts the value 0 without error, whatever the divisor. For every other value its relative error is 1."""
    states = random(1, 5, 2, 4)
    states[:, 1] = 0
    of = Cascade(window(2, "terraced"), sparse(1, "relative_recall"), GROUPED)
    _, after, _ = of.call(random(1, 5, 4, 4), pairs_at(states, [[*range(5)]]), counted(1, 5), of.start(1))
    assert after["sparse"]["position"][0].T.tolist() == [[0]] * 4


def test_gradients_match_numerical_gradients() -> None:
    of = Cascade(window(1, "sliding"), sparse(2), GROUPED)

    def outputs(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        pairs = replace(pairs_at(key, [[*range(6)]]), value=value)
        return of.call(query, pairs, counted(1, 6), of.start(1))[0]

    assert_derivatives(outputs, [random(1, 6, heads, 4) for heads in (4, 2, 2)], fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("keep", ["self_recall", "squared_error"])
@pytest.mark.parametrize("heads", [GROUPED, CONVOLVED], ids=["raw", "convolved"])
def test_state_dtype_and_bytes_are_as_declared(heads: Shape, keep: str, dtype: torch.dtype) -> None:
    of = Cascade(window(2, "sliding"), sparse(3, keep), heads)
    before, states = of.start(2, dtype), random(2, 9, 2, 4, dtype=dtype)
    convolved = random(2, 9, 4, 4, dtype=dtype) if heads.convolved_heads else None
    inputs = pairs_at(states, [[*range(9)]] * 2, convolved), counted(2, 9), before
    output, after, kept = of.call(random(2, 9, 4, 4, dtype=dtype), *inputs)
    assert output.dtype == kept.output.dtype == dtype
    assert kept.lse is not None
    assert kept.lse.dtype == torch.promote_types(dtype, torch.float32)
    for name, held in after.items():
        assert {slot: (tensor.shape, tensor.dtype) for slot, tensor in held.items()} == {
            slot: (tensor.shape, tensor.dtype) for slot, tensor in before[name].items()
        }
    # 3 pairs of each of 4 heads: key and value (and convolved key) of 4 numbers, a position, and the sum if there is one.
    part, shape = of.parts()["sparse"]
    width, wide = dtype.itemsize, max(4, dtype.itemsize)
    wanted = 3 * 4 * ((3 if heads.convolved_heads else 2) * 4 * width + 8 + (wide if keep == "squared_error" else 0))
    assert sum(slot.bytes(width, wide) for slot in part.state(shape).values()) == wanted
    assert sum(tensor[0].nbytes for tensor in after["sparse"].values()) == wanted


def test_operation_count_equals_a_count_by_hand() -> None:
    """Return the operations: two products of 64 pairs with 4 numbers for each head. A score that reads the state multiplies 5 ×
    4 numbers by 65 pairs.
    """
    shape = replace(GROUPED, features=5, state_heads=4)
    for keep in KEEPS:
        recall = 2 * 65 * 5 * 4 if keep.endswith("recall") else 0
        part = sparse(64, keep)
        assert part.flops(shape, 10_000) == part.flops(shape, 1) == 4 * (2 * 2 * 64 * 4 + recall)
        assert sparse(1, keep).flops(shape, 9) > 0


@pytest.mark.parametrize(
    "wrong",
    [{"size": -1}, {"size": 1.5}, {"size": math.inf}, {"keep": "best"},
     {"keep": {"kind": "random", "seed": -1}}, {"keep": {"kind": "random", "seed": 2**63}}, {"seed": 1}, {"evict": "x"},
     {"weight": "other"}, {"weight": 1.0}, {"gate": "none"}],
    ids=str,
)  # fmt: skip
def test_invalid_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Sparse.model_validate(wrong)
