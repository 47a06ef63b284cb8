"""Predictions for the same keys, updated as pairs enter the state, equal predictions computed from the new state."""

from __future__ import annotations

import pytest
import torch

from blocks.flow import Features
from blocks.legend import Shape, Tensor
from blocks.memories.state import StateMemory
from blocks.operation import State
from tests.blocks.support import close, counted, empty, random, recalled

SHAPE = Shape(hidden_size=6, heads=3, key_heads=3, head_dim=4, features=5, state_heads=3)


@pytest.mark.parametrize(
    "memory", [StateMemory(), StateMemory(normalise=False), StateMemory(normalise=False, scale="root")], ids=str
)
@pytest.mark.parametrize("falling", [1, 4])
def test_evicted_pairs_update_the_predictions(falling: int, memory: StateMemory) -> None:
    """Predictions are updated for two sets of keys. Pairs enter the state between them, and some places have no pair."""
    state = {name: tensor + torch.rand_like(tensor) for name, tensor in empty(memory, SHAPE, 2).items()}
    reads, evicted = memory.repeated_reads(state, SHAPE), None
    assert reads is not None
    for _ in range(2):
        features = Features(random(2, 9, 3, 5).exp(), random(2, 9, 3, 4), torch.rand(2, 9, 3) < 0.7)
        reads.set_pairs(features, evicted)
        places = torch.stack([torch.randperm(9) for _ in range(6)]).view(2, 3, 9).transpose(1, 2)
        close(reads.distances(), distances(memory, features, state))
        for first in range(0, 8, falling):
            index = places[:, first : first + falling]
            reads.evict(index)
            new = those(features, index)
            _, state = recalled(memory, "reference", torch.zeros_like(new.key), new, None, counted(2, falling), state)
            if first == 8 - falling:
                evicted = those(features, places[:, :8])
            if first:  # The first to fall are seen together with the second.
                close(reads.distances(), distances(memory, features, state))


@pytest.mark.parametrize("memory", [StateMemory(), StateMemory(normalise=False)], ids=str)
def test_distances_to_an_empty_state_equal_the_norms_of_the_values(memory: StateMemory) -> None:
    reads = memory.repeated_reads(empty(memory, SHAPE, 2), SHAPE)
    assert reads is not None
    features = Features(random(2, 9, 3, 5).exp(), random(2, 9, 3, 4), None)
    reads.set_pairs(features, None)
    close(reads.distances(), features.value.norm(dim=-1))


def those(pairs: Features, index: Tensor) -> Features:
    """Return each head's pairs at these places."""
    key, value = (of.gather(1, index[..., None].expand(-1, -1, -1, of.shape[-1])) for of in (pairs.key, pairs.value))
    assert pairs.present is not None
    return Features(key, value, pairs.present.gather(1, index))


def distances(memory: StateMemory, pairs: Features, state: State) -> Tensor:
    """Return the distance between the state's prediction for each key and the value of the pair."""
    return (memory.predict(pairs.key, state) - pairs.value).norm(dim=-1)


def test_exponential_features_have_no_repeated_reads() -> None:
    exponential = Shape(hidden_size=6, heads=3, key_heads=3, head_dim=4, features=5, state_heads=3, exponential=True)
    assert StateMemory().repeated_reads(empty(StateMemory(), exponential, 2), exponential) is None
