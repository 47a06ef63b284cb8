"""Mamba-3's state equals Mamba-2's if a pair enters once and nothing turns. Its angles keep their digits, and turns tell parity."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from blocks.legend import Shape
from blocks.memories.trapezoid import Trapezoid, sum_angles, turn_features
from composer.errors import GraphError
from tests.blocks.support import close
from tests.laws.cases import SMALL, build_head, complete, inputs, pieces, run

SHAPE = Shape(hidden_size=6, heads=4, key_heads=2, head_dim=8, features=8, state_heads=2)
HEAD: dict[str, Any] = {"position": "none", "feature_map": "identity", "memory": ["trapezoid"]}


@pytest.mark.parametrize("gate", ["softplus", "head"])
@pytest.mark.parametrize("skip", [True, False])
def test_a_pair_that_enters_once_makes_it_a_state(gate: str, skip: bool) -> None:
    """λ = 1 to within rounding, features do not turn, and vectors are 0. With another gate than `softplus` Δ is 1."""
    start = {"bias": 60.0, "offset": 0.0, "turned": "none"}
    plain = {"normalise": False, "input_scale": "step" if gate == "softplus" else "none"}
    answers = []
    for memory in ({"kind": "trapezoid", **start}, {"kind": "state", **plain}):
        parts = {"name": "state", "gate": gate, "skip": skip} | memory
        head = build_head(complete(HEAD | {"memory": [parts]}), SMALL.shape(4), noise=0.0)
        answers.append(run(head, inputs(SMALL.shape(4), 2, 80))[0])
    close(answers[0], answers[1], 1e-9)


@pytest.mark.parametrize("option", [{"bias": 60.0}, {"turned": "none"}, {"offset": 0.0}, {"turned": "all"}])
def test_each_of_its_options_changes_the_output(option: dict[str, Any]) -> None:
    data = inputs(SMALL.shape(4), 2, 30)
    usual, other = (
        run(build_head(complete(HEAD | {"memory": [{"kind": "trapezoid", **fields}]}), SMALL.shape(4)), data)[0]
        for fields in ({}, option)
    )
    assert (usual - other).abs().max() > 1e-3


def test_turns_by_half_a_circle_keep_the_parity_of_tokens() -> None:
    """One feature pair, turned by π at every odd token, has the sign of the parity so far. A decay between 0 and 1 cannot."""
    bits = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1, 1], dtype=torch.float64)
    angle = sum_angles((math.pi * bits).view(1, -1, 1, 1), None, torch.zeros(1, 1, 1, dtype=torch.float64))
    turned = turn_features(torch.tensor([1.0, 0.0], dtype=torch.float64).expand(1, 10, 1, 2), angle)
    parity = 1 - 2 * (bits.cumsum(0) % 2)
    close(turned[0, :, 0, 0], parity)


def test_angles_of_a_long_text_keep_their_digits_in_float32() -> None:
    turn = torch.rand(1, 50_000, 1, 3, generator=torch.Generator().manual_seed(0)) * math.pi
    start = torch.zeros(1, 1, 3)
    exact = sum_angles(turn.double(), None, start.double())
    whole = sum_angles(turn, None, start)
    state = start
    for piece in turn.split(1000, dim=1):
        state = sum_angles(piece, None, state)[:, -1]
    for angle, expected in ((whole, exact), (state, exact[:, -1])):
        assert angle.abs().max() <= math.pi + 1e-6
        assert (angle.double() - expected).sin().abs().max() < 2e-5, "a float32 sum of 78,500 has an error of 4e-3"


def test_packed_documents_start_with_no_angle_and_no_pair() -> None:
    head, data = build_head(complete(HEAD), SMALL.shape(4)), inputs(SMALL.shape(4), 1, 23)
    expected = [run(head, data.cut(piece)) for piece in pieces(23, (9, 10))]
    data.tokens.segment = torch.tensor([[0] * 9 + [1] + [2] * 13])
    output, state = run(head, data)
    close(output, torch.cat([of_document for of_document, _ in expected], dim=1))
    for name, tensor in expected[-1][1].items():
        close(state[name], tensor)


def test_state_and_operation_count_equal_a_count_by_hand() -> None:
    memory = Trapezoid()
    assert {name: slot.shape for name, slot in memory.state(SHAPE).items()} == {
        "state": (2, 8, 8), "key": (2, 8), "value": (2, 8), "angle": (2, 2),
    }  # fmt: skip
    # Two state heads with a decay and two updates, and four queries with the products of their own pair; 2 λ and 2 θ.
    assert memory.flops(SHAPE, 9) == 2 * 5 * 64 + 4 * 2 * 64 + 4 * 2 * 16 + 6 * 2 * 6 + 2 * 6 * 4
    assert memory.prefill_flops(SHAPE, 64) == memory.prefill_flops(SHAPE, 10_000) > memory.prefill_flops(SHAPE, 10)


@pytest.mark.parametrize(("features", "angles"), [(1, (0, 0)), (2, (1, 1)), (6, (2, 3)), (8, (2, 4))])
def test_half_or_all_pairs_of_features_turn(features: int, angles: tuple[int, int]) -> None:
    shape = Shape(hidden_size=6, heads=2, key_heads=2, head_dim=4, features=features, state_heads=2)
    assert tuple(Trapezoid(turned=share).angles(shape) for share in ("half", "all")) == angles
    assert Trapezoid(turned="none").angles(shape) == 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"memory": [{"kind": "window", "size": 5}, {"kind": "trapezoid"}], "read": "sum"},
            "its gates belong to the token of the pair",
        ),
        ({"memory": [{"kind": "trapezoid", "gate": "channel"}]}, "which a `trapezoid` memory does not support"),
        ({"feature_map": "exp"}, "exponentials without a bound"),
    ],
)
def test_unsupported_heads_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(GraphError, match=problem):
        build_head(complete(HEAD | changes), SMALL.shape(4))
