"""The shapes that `blocks` states in its annotations are checked while tests run: a wrong tensor does not get through."""

from __future__ import annotations

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


def test_the_stated_shape_passes() -> None:
    assert decay_of(torch.zeros(2, 5, 16)).shape == (2, 5, 4)


def test_another_rank_is_refused() -> None:
    with pytest.raises(TypeCheckError, match=r"(?s)'hidden'.*f32\[2,5,3,16\].*B T C"):
        decay_of(torch.zeros(2, 5, 3, 16))


def test_another_kind_of_number_is_refused() -> None:
    with pytest.raises(TypeCheckError, match="hidden"):
        decay_of(torch.zeros(2, 5, 16, dtype=torch.int64))


@stated_shapes
def doubled(left: Float[torch.Tensor, "B T"], right: Float[torch.Tensor, "B T"]) -> Float[torch.Tensor, "B T"]:
    """Wrong where there are three columns."""
    return torch.cat((left, right), 1) if left.shape[1] == 3 else left + right


def test_a_letter_is_one_size_in_arguments_and_result() -> None:
    assert doubled(torch.zeros(2, 4), torch.zeros(2, 4)).shape == (2, 4)
    with pytest.raises(TypeCheckError, match="right"):
        doubled(torch.zeros(2, 4), torch.zeros(2, 5))
    with pytest.raises(TypeCheckError, match="return value"):
        doubled(torch.zeros(2, 3), torch.zeros(2, 3))
