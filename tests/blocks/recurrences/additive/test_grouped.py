"""A state that receives pairs in groups gives the same outputs as if it received them one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from blocks.flow import Features, Tokens
from blocks.legend import Shape
from blocks.memories.state import SHORTEST_GROUP, StateMemory
from blocks.recurrences.additive import grouped as module
from tests.blocks.support import close, counted, documents, empty, random, recalled

SHAPES = [
    Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=4),
    Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=5, state_heads=2),
]
SIZE, LENGTH = SHORTEST_GROUP, 50
ROWS = {
    "one document": counted(2, LENGTH),
    "documents": documents([LENGTH], [7, 36, 7]),
    "padded": replace(counted(2, LENGTH), valid=torch.arange(LENGTH) < torch.tensor([[LENGTH], [20]])),
}
ARRIVAL = torch.tensor([[0, 16, 32, 49], [9, 31, 32, 48]])
"""Of groups of 16: at the first token of a chunk, at the last, and at the only one of what is left."""


def pairs(shape: Shape) -> Features:
    """Draw pairs. Some places have none, among them a whole group."""
    count = ARRIVAL.shape[1] * SIZE
    present = torch.rand(2, count) < 0.8
    present[0, SIZE : 2 * SIZE] = False
    key, value = random(2, count, shape.state_heads, 5).exp(), random(2, count, 2, 3)
    return Features(key, value, present, ARRIVAL.repeat_interleave(SIZE, dim=1), max_per_token=SIZE)


@pytest.mark.parametrize("shape", SHAPES, ids=["a state a query head", "a state a key head"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("rows", ROWS)
def test_grouped_pairs_equal_pairs_in_sequence(rows: str, normalise: bool, shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients are equal in spans of two chunks, from a state that is not empty."""
    monkeypatch.setattr(module, "SPAN", 2 * SIZE)
    memory, evicted, query = StateMemory(normalise=normalise), pairs(shape), random(2, LENGTH, 4, 5).exp()
    held = {name: tensor + torch.rand_like(tensor) for name, tensor in empty(memory, shape, 2).items()}
    leaves = [tensor.requires_grad_() for tensor in (query, evicted.key, evicted.value, held["state"])]
    answers = []
    for form in ("reference", "torch"):
        partial, state = recalled(memory, form, query, evicted, None, ROWS[rows], held)
        outputs = [partial.output, state["state"], *([] if partial.lse is None else [partial.lse.exp()])]
        gradients = torch.autograd.grad(sum((output.square().sum() for output in outputs), torch.zeros(())), leaves)
        answers.append([*outputs, *gradients])
    for first, other in zip(*answers, strict=True):
        close(first, other)


def test_short_groups_decays_and_exponential_features_use_the_timeline(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Tensor, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("blocks.memories.state.grouped", never)
    evicted, query, shape = pairs(SHAPES[0]), random(2, LENGTH, 4, 5).exp(), SHAPES[0]
    decay = -torch.rand(2, LENGTH, 4, dtype=torch.float64)
    state, exponential = empty(StateMemory(), shape, 2), replace(shape, exponential=True)
    for form, log_decay, group, sizes in (
        ("torch", decay, SIZE, shape),
        ("torch", None, 4, shape),
        ("torch", None, SIZE, exponential),
    ):
        held = state if sizes is shape else empty(StateMemory(), sizes, 2)
        recalled(
            StateMemory(),
            form,
            query,
            replace(evicted, max_per_token=group),
            log_decay,
            Tokens(ROWS["one document"].position),
            held,
        )
    with pytest.raises(AssertionError):
        recalled(StateMemory(), "torch", query, evicted, None, ROWS["one document"], state)
