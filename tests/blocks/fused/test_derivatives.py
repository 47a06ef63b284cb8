"""A kernel's hand-written gradient has no gradient itself: a second derivative raises instead of returning a wrong number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.blocks.fused.heads import GROUPED
from tests.laws.cases import Inputs, build_head, complete, inputs, run

WINDOW = {"kind": "window", "size": 4}
HEADS: dict[str, dict[str, Any]] = {
    "together": {"feature_map": "elu", "memory": [WINDOW, "state"]},
    "with_mass": {"memory": [{"kind": "first", "size": 2}, WINDOW | {"evict": "drop"}]},
    "shares": {"feature_map": "hedgehog", "memory": ["state"]},
}


@pytest.mark.parametrize("kernel", HEADS)
def test_a_second_derivative_is_refused(kernel: str) -> None:
    module = build_head(complete({"position": "none"} | HEADS[kernel]), GROUPED).float()
    data = inputs(GROUPED, 1, 7).to(torch.float32)
    leaves = [tensor.requires_grad_() for tensor in data.tensors]
    output, _ = run(module, Inputs(*leaves, data.tokens), backend="triton")
    slopes = torch.autograd.grad(output.square().sum(), leaves, create_graph=True, allow_unused=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.stack([slope.sum() for slope in slopes if slope is not None]).sum().backward()
