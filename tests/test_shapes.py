"""Tests check the shapes in the annotations of `blocks`, and wrong tensors are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from jaxtyping import Float, TypeCheckError

from blocks.gates.head import PerHead
from blocks.legend import Shape
from tests.shapes import stated_shapes

SHAPE = Shape(hidden_size=16, heads=4, key_heads=2, head_dim=4, features=8, state_heads=4)


def decay_of(hidden: torch.Tensor) -> torch.Tensor:
    gate = PerHead()
    parameters = {name: torch.zeros(fresh.shape) for name, fresh in gate.parameters(SHAPE).items()}
    return gate.log_decay(parameters, hidden, SHAPE)


def test_the_annotated_shape_passes() -> None:
    assert decay_of(torch.zeros(2, 5, 16)).shape == (2, 5, 4)


def test_another_rank_is_refused() -> None:
    with pytest.raises(TypeCheckError, match=r"(?s)'hidden'.*f32\[2,5,3,16\].*B T C"):
        decay_of(torch.zeros(2, 5, 3, 16))


def test_another_kind_of_number_is_refused() -> None:
    with pytest.raises(TypeCheckError, match="hidden"):
        decay_of(torch.zeros(2, 5, 16, dtype=torch.int64))


@stated_shapes
def doubled(left: Float[torch.Tensor, "B T"], right: Float[torch.Tensor, "B T"]) -> Float[torch.Tensor, "B T"]:
    """Return a wrong shape for three columns."""
    return torch.cat((left, right), 1) if left.shape[1] == 3 else left + right


def test_a_letter_is_one_size_in_arguments_and_result() -> None:
    assert doubled(torch.zeros(2, 4), torch.zeros(2, 4)).shape == (2, 4)
    with pytest.raises(TypeCheckError, match="right"):
        doubled(torch.zeros(2, 4), torch.zeros(2, 5))
    with pytest.raises(TypeCheckError, match="return value"):
        doubled(torch.zeros(2, 3), torch.zeros(2, 3))


@stated_shapes
def fickle(left: Float[torch.Tensor, "B T"], *, wide: list[bool]) -> Float[torch.Tensor, "B T"]:
    """Return a wrong type."""
    return left.repeat(1, 2) if wide[0] else left


@pytest.mark.parametrize("first", [False, True])
def test_results_are_checked_at_every_call(first: bool) -> None:
    calls = [False, True, False, True] if first else [True, False, True]
    for wide in calls:
        if wide:
            with pytest.raises(TypeCheckError, match="return value"):
                fickle(torch.zeros(2, 4), wide=[wide])
        else:
            assert fickle(torch.zeros(2, 4), wide=[wide]).shape == (2, 4)
    with pytest.raises(TypeCheckError, match="left"):
        fickle(torch.zeros(2, 4, dtype=torch.int64), wide=[False])


@dataclass(frozen=True)
class Held:
    numbers: Mapping[str, Float[torch.Tensor, "B T"]]


def test_tensors_in_mappings_are_checked_at_every_call() -> None:
    held = stated_shapes(Held)
    for _ in range(2):
        assert held({"a": torch.zeros(2, 3)}).numbers["a"].shape == (2, 3)
        with pytest.raises(TypeCheckError, match="numbers"):
            held({"a": torch.zeros(2)})
