"""In the first layer, joined states are those of the texts read as one, for every shipped spec, or they are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer.errors import ComposerError
from composer.model.cache import SEEN, ComposedCache, new_cache
from composer.model.generation import read_in_pieces
from composer.model.state_file import join_caches
from tests.composer.model.models import FEW, student, tokens

JOINED = {"softmax", "streaming", "window"}
FIRST, DROPPED, SECOND = 70, 3, 90


def read(model: Any, ids: torch.Tensor) -> ComposedCache:
    cache = new_cache(model.config)
    read_in_pieces(model, ids, cache)
    return cache


@pytest.mark.parametrize("dropped", [0, DROPPED])
@pytest.mark.parametrize("spec", FEW)
def test_joined_states_of_the_first_layer_are_exact(spec: str, dropped: int) -> None:
    model, first, second = student(spec), tokens(1, FIRST), tokens(1, SECOND, seed=1)
    states = read(model, first), read(model, second)
    if spec not in JOINED:
        with pytest.raises(ComposerError, match=r"The states do not join: layer \d, heads `\w+`, `\w+`: .* Read the texts as one"):
            join_caches(model, *states, dropped)
        return
    joined, whole = join_caches(model, *states, dropped), read(model, torch.cat((first, second[:, dropped:]), dim=1))
    assert joined.get_seq_length() == whole.get_seq_length() == FIRST + SECOND - dropped
    assert [joined.state(layer).shapes() for layer in range(3)] == [whole.state(layer).shapes() for layer in range(3)]
    for name, tensor in whole.state(0).tensors.items():
        torch.testing.assert_close(joined.state(0).tensors[name], tensor, rtol=1e-12, atol=1e-12)
    assert joined.state(0).tensors[SEEN].tolist() == [FIRST + SECOND - dropped]


def test_short_texts_are_refused_where_a_memory_is_not_full() -> None:
    model, texts = student("streaming"), {length: tokens(1, length) for length in (3, 50, 70)}
    caches = {length: read(model, ids) for length, ids in texts.items()}
    with pytest.raises(ComposerError, match="layer 0, heads `head`, `first`: it holds fewer than 4 pairs of the first text"):
        join_caches(model, caches[3], caches[70], 0)
    with pytest.raises(ComposerError, match="`window`: it holds fewer than 64 pairs of the second text"):
        join_caches(model, caches[70], caches[50], 0)
