"""The shapes that `blocks` states in its annotations are checked while tests run: a wrong tensor does not get through."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import TypeCheckError

from blocks.gates.head import PerHead
from blocks.legend import Shape

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
