"""What a cache holds is what it says: no state keeps a longer tensor alive that it was once a part of."""

from __future__ import annotations

import pytest
import torch

from composer.model.cache import ComposedCache
from tests.composer.model.models import student, tokens


@pytest.mark.parametrize("spec", ["lolcats", "lolcats-terraced", "lola", "lawcat", "gated-delta", "latte-conv"])
def test_the_memory_of_a_prefill_is_given_back(spec: str) -> None:
    sizes = []
    model = student(spec, "trunk=null")
    for length in (70, 300):
        with torch.no_grad():
            cache = model(tokens(1, length), use_cache=True).past_key_values
        assert isinstance(cache, ComposedCache)
        held = [tensor for layer in range(len(cache.layers)) for tensor in cache.state(layer).tensors.values()]
        assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in held)
        sizes.append(sum(tensor.nbytes for tensor in held))
    assert sizes[0] == sizes[1]
