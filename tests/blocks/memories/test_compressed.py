"""Compressed pairs give softmax over restored pairs, whichever form computes it, and equal full attention where nothing is lost."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.calibration import States
from blocks.legend import Shape
from blocks.memories.compressed import Compressed, choose_coordinates
from blocks.memories.full import Full
from blocks.operation import Setting
from blocks.positions import Rope
from tests.blocks.memories.by_hand import Call, Stream
from tests.blocks.support import (
    GROUPED,
    ONE_KEY,
    assert_derivatives,
    close,
    computed,
    counted,
    drawn,
    empty,
    owner,
    random,
    started,
)

ROPE = Rope(theta=20.0)
ROWS = [[9], [4, 1, 4], [1, 2, 5], [7]]
WHOLE = [Call([9, 9, 8, 7], 9)]
RAGGED = [Call([3, 0, 2, 4], 4), Call([0, 5, 1, 0], 5), Call([1, 1, 0, 0], 2), Call([5, 3, 5, 3], 7)]
ONE_BY_ONE = [Call([1, 1, 1, 1], 1)] * 7 + [Call([1, 1, 1, 0], 1), Call([1, 1, 0, 0], 1)]


def attention(
    part: Compressed, parameters: dict[str, Tensor], stream: Stream, row: int, token: int, held: list[int], head: int
) -> tuple[Tensor, Tensor]:
    """Return output and log mass of one query by the equation, number by number."""
    shape = stream.shape
    key_heads, width = shape.key_heads, shape.head_dim
    scores = parameters.get("score", torch.zeros(key_heads, width))
    kept = {key_head: set(scores[key_head].topk(part.rope).indices.tolist()) for key_head in range(key_heads)}
    places = stream.rows[row].tokens
    mine = owner(head, shape.heads, key_heads)

    def turned(states: Tensor, pair: int) -> Tensor:
        return ROPE.rotate(states[None, None, None], torch.tensor([[places[pair][1]]]))[0, 0, 0]

    logits, values = [], []
    for pair in held:
        joined = [stream.value[row, pair].flatten()]
        for key_head in range(key_heads):
            key = stream.key[row, pair, key_head].clone()
            key[list(kept[key_head])] = 0.0
            joined.append(key)
        code = parameters["down"] @ torch.cat(joined)
        restored = parameters["up"] @ code
        value, key = restored[: key_heads * width].view(key_heads, width)[mine], restored[key_heads * width :]
        key = key.view(key_heads, width)[mine]
        query = stream.query[row, token, head]
        turned_query, turned_key = turned(query, token), turned(stream.key[row, pair, mine], pair)
        if part.rotate == "all":
            query, key = turned_query, turned(key, pair)
        logit = sum(
            float(turned_query[index] * turned_key[index] if index in kept[mine] else query[index] * key[index])
            for index in range(width)
        )
        logits.append(logit / math.sqrt(width))
        values.append(value)
    scores = torch.tensor(logits, dtype=torch.float64)
    return scores.softmax(0) @ torch.stack(values), scores.logsumexp(0)


@pytest.mark.parametrize(("rank", "rope", "rotate"), [(5, 2, "kept"), (3, 0, "all"), (5, 2, "all"), (8, 4, "kept")])
@pytest.mark.parametrize(
    ("calls", "shape"),
    [(WHOLE, ONE_KEY), (RAGGED, GROUPED), (ONE_BY_ONE, GROUPED)],
    ids=["whole, one key head", "ragged", "one by one"],
)
@pytest.mark.parametrize("form", ["reference", "torch"])
def test_outputs_equal_softmax_over_restored_pairs(
    shape: Shape, calls: list[Call], form: str, rank: int, rope: int, rotate: Any
) -> None:
    part, stream = Compressed(position=ROPE, rank=rank, rope=rope, rotate=rotate), Stream(shape, ROWS, None)
    parameters = drawn(part, shape)
    state, columns = empty(part, shape, len(ROWS)), 0
    for call in calls:
        query, pairs, tokens = stream.call(call)
        setting = Setting(one_token=call.columns == 1)
        (partial,), state = computed(part, form, shape, parameters, tokens, state, setting=setting, query=query, pairs=pairs)
        columns += call.columns
        for index, (row, real) in enumerate(zip(stream.rows, call.real, strict=True)):
            for column, (token, _, held) in enumerate(row.take(real)):
                for head in range(shape.heads):
                    output, mass = attention(part, parameters, stream, index, token, held, head)
                    close(partial.output[index, column, head], output)
                    close(partial.lse[index, column, head], mass)
        assert {name: tuple(held.shape[1:]) for name, held in state.items()} == {
            name: slot.shape for name, slot in part.state_after(shape, columns).items()
        }


@pytest.mark.parametrize(("rank", "rope", "rotate"), [(8, 4, "kept"), (16, 0, "all"), (12, 2, "all"), (8, 4, "all")])
def test_full_rank_equals_full_attention(rank: int, rope: int, rotate: Any) -> None:
    """The parameters are those of the start: identity matrices."""
    part, stream = Compressed(position=ROPE, rank=rank, rope=rope, rotate=rotate), Stream(GROUPED, ROWS, None)
    query, pairs, tokens = stream.call(WHOLE[0])
    (partial,), _ = computed(
        part, "torch", GROUPED, started(part, GROUPED), tokens, empty(part, GROUPED, 4), query=query, pairs=pairs
    )
    full = Full(position=ROPE)
    (expected,), _ = computed(full, "reference", GROUPED, {}, tokens, empty(full, GROUPED, 4), query=query, pairs=pairs)
    close(partial.output, expected.output)
    close(partial.lse, expected.lse)


@pytest.mark.parametrize(("rope", "rotate"), [(0, "all"), (2, "all"), (4, "kept")])
def test_a_start_at_full_rank_loses_nothing(rope: int, rotate: Any) -> None:
    """The parameters are computed from the states; with all coordinates kept, or all rotated, they are any that fit."""
    part, full = Compressed(position=ROPE, rank=16 - 2 * rope, rope=rope, rotate=rotate), Full(position=ROPE)
    stream = Stream(GROUPED, [[9], [9]], None)
    query, pairs, tokens = stream.call(Call([9, 9], 9))
    parameters = part.begin(many_states(), GROUPED)
    (partial,), _ = computed(part, "reference", GROUPED, parameters, tokens, empty(part, GROUPED, 2), query=query, pairs=pairs)
    (expected,), _ = computed(full, "reference", GROUPED, {}, tokens, empty(full, GROUPED, 2), query=query, pairs=pairs)
    close(partial.output, expected.output)
    close(partial.lse, expected.lse)


def many_states() -> States:
    """Queries, keys and values of 400 tokens, of which some directions are much larger than others."""
    scale = torch.tensor([3.0, 1.0, 0.3, 0.1], dtype=torch.float64)
    return States(random(400, 4, 4) * scale.flip(0), random(400, 2, 4) * scale, random(400, 2, 4) * scale, 16)


@pytest.mark.parametrize("rotate", ["all", "kept"])
def test_a_start_has_a_smaller_error_than_principal_components(rotate: Any) -> None:
    """The error sums values, and logits times the spread of values, over query heads. No matrix of this rank has a smaller one."""
    states, part = many_states(), Compressed(rank=6, rotate=rotate)  # without rotation, a logit is q·k
    begun = part.begin(states, GROUPED)
    joined = torch.cat((states.value.flatten(1), states.key.flatten(1)), dim=-1)
    basis = torch.linalg.eigh(joined.T @ joined).eigenvectors[:, -6:]

    def error(down: Tensor, up: Tensor) -> float:
        missed = joined - joined @ down.T @ up.T
        value, key = missed[:, :8].unflatten(-1, (2, 4)), missed[:, 8:].unflatten(-1, (2, 4))
        logits = torch.einsum("nhd,mhd->nmh", states.query, key.repeat_interleave(2, dim=1)) / 2
        spread = (states.value - states.value.mean(0)).square().mean(0).sum(-1).repeat_interleave(2)
        return float(2 * value.square().sum((1, 2)).mean() + (logits.square().mean((0, 1)) * spread).sum())

    smallest = error(begun["down"], begun["up"])
    assert smallest < 0.9 * error(basis.T, basis)
    for seed in range(5):
        change = 1e-2 * torch.randn(16, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert smallest < error(begun["down"], begun["up"] + change)


def test_a_start_keeps_the_pairs_whose_rotation_matters() -> None:
    """Both coordinates of a pair have one score. With `rotate: kept`, slow rotations are lost without harm."""
    states = States(torch.ones(8, 4, 4), torch.ones(8, 2, 4), torch.ones(8, 2, 4), 16)
    for rotate, kept in (("kept", [0, 2]), ("all", [1, 3])):
        strong = torch.tensor([1.0, 3.0, 1.0, 3.0])
        part = Compressed(position=Rope(theta=1e8), rank=4, rope=2, rotate=rotate)  # pyright: ignore[reportArgumentType]
        score = part.begin(replace(states, key=states.key * strong), GROUPED)["score"]
        torch.testing.assert_close(score[:, :2], score[:, 2:], rtol=1e-12, atol=0)
        assert choose_coordinates(score, 2).tolist() == [kept, kept]


def test_coordinates_with_the_largest_scores_are_kept() -> None:
    score = torch.tensor([[0.1, 3.0, -1.0, 2.0], [5.0, 1.0, 4.0, 0.0]])
    assert choose_coordinates(score, 2).tolist() == [[1, 3], [0, 2]]
    started_score = started(Compressed(rope=2), GROUPED)["score"]
    assert choose_coordinates(started_score, 2).tolist() == [[0, 2], [0, 2]], "the fastest rotation, in halves"


@pytest.mark.parametrize(("form", "rotate"), [("reference", "all"), ("reference", "kept"), ("torch", "kept")])
def test_gradients_equal_finite_differences(form: str, rotate: Any) -> None:
    part = Compressed(position=ROPE, rank=5, rope=2, rotate=rotate)
    parameters, stream = drawn(part, GROUPED), Stream(GROUPED, [[4]], None)
    query, pairs, _ = stream.call(Call([4], 4))
    state = empty(part, GROUPED, 1)

    def run(query: Tensor, down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        own = parameters | {"down": down, "up": up}
        setting = Setting(one_token=True)  # the form with projected queries
        (partial,), _ = computed(part, form, GROUPED, own, counted(1, 4), state, setting=setting, query=query, pairs=pairs)
        return partial.output, partial.lse

    assert_derivatives(run, (query, parameters["down"], parameters["up"]))


@pytest.mark.parametrize(
    ("choice", "message", "path"),
    [
        ({"rank": 17}, "a token has 16 numbers to compress in these heads; set `rank` to at most 16", ("rank",)),
        ({"rank": 13, "rope": 2}, "set `rank` to at most 12", ("rank",)),
        ({"rope": 6}, "4 coordinates; set `rope` to at most 4", ("rope",)),
        ({"rope": 3, "position": ROPE}, "`rope` is 3; set an even number", ("rope",)),
    ],
)
def test_sizes_that_do_not_fit_are_refused(choice: dict[str, Any], message: str, path: tuple[str, ...]) -> None:
    problem = Compressed(**choice).misfit(GROUPED)
    assert problem is not None
    assert problem[0].endswith(message)
    assert problem[1] == path
