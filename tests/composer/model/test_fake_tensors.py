"""A model runs on PyTorch's fake tensors, which have shapes and no numbers."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import composer
from tests.composer.model.models import llama
from tests.composer.model.shared_layers import dealt, document, layers_of

# Compilation traces every causal spec on fake tensors in test_prefill_graph.py, with neither gradients nor masks.
PARTS = dealt(layers_of(["softmax", "lolcats", "lola", "lawcat", "gated-deltanet", "latte-macchiato", "mamba2"], lambda _: ()))


@pytest.mark.parametrize("part", PARTS)
def test_a_prefill_on_fake_tensors_has_the_shape_of_its_logits(part: str) -> None:
    """A prefill has its shapes with gradients and a mask, and without either."""
    layers = PARTS[part]
    model = composer.build(document(layers), llama(num_hidden_layers=len(layers)))
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients), FakeTensorMode(allow_non_fake_inputs=True) as fake:
            ids = fake.from_tensor(torch.zeros(2, 12, dtype=torch.int64))
            mask, position = (fake.from_tensor(tensor.expand(2, 12)) for tensor in (torch.ones(12), torch.arange(12)))
            options = {"attention_mask": mask, "position_ids": position} if gradients else {}
            assert model(ids, use_cache=False, **options).logits.shape == (2, 12, 97)
