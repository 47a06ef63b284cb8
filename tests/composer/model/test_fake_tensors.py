"""A model runs on PyTorch's fake tensors, which have shapes and no numbers; what asks for them ahead of a run does so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.composer.model.models import CAUSAL, llama, student


def of_differing_layers(spec: str) -> Any:
    """A student with every layer of its spec once: those that are composed alike run alike."""
    model: Any = student(spec, "trunk=null", source=llama(num_hidden_layers=4))
    resolved = model.config.resolved()
    places = {tuple((group.heads, resolved.heads[group.head]) for group in layer): at for at, layer in enumerate(resolved.layers)}
    model.model.layers = torch.nn.ModuleList(model.model.layers[at] for at in places.values())
    return model


@pytest.mark.parametrize("spec", [name for name in CAUSAL if not name.startswith("published/")])
def test_a_prefill_has_its_shapes(spec: str) -> None:
    model = of_differing_layers(spec)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients), FakeTensorMode(allow_non_fake_inputs=True) as fake:
            ids = fake.from_tensor(torch.zeros(2, 12, dtype=torch.int64))
            assert model(ids, use_cache=False).logits.shape == (2, 12, 97)
