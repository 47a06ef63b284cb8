"""A model runs on PyTorch's fake tensors, which have shapes and no numbers; what asks for them ahead of a run does so."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.composer.model.models import CAUSAL, student


@pytest.mark.parametrize("spec", [name for name in CAUSAL if not name.startswith("published/")])
def test_a_prefill_has_its_shapes(spec: str) -> None:
    model = student(spec, "trunk=null")
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients), FakeTensorMode(allow_non_fake_inputs=True) as fake:
            ids = fake.from_tensor(torch.zeros(2, 12, dtype=torch.int64))
            assert model(ids, use_cache=False).logits.shape == (2, 12, 97)
