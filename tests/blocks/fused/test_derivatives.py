"""A kernel's hand-written gradient has no gradient itself: a second derivative raises instead of returning a wrong number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from blocks.legend import Shape
from tests.blocks.fused.heads import GROUPED
from tests.laws.cases import Inputs, build_head, complete, inputs, run

WINDOW = {"kind": "window", "size": 4}
HEADS: dict[str, dict[str, Any]] = {
    "together": {"feature_map": "elu", "memory": [WINDOW, "state"]},
    "with_mass": {"memory": [{"kind": "first", "size": 2}, WINDOW | {"evict": "drop"}]},
    "shares": {"feature_map": "hedgehog", "memory": ["state"]},
    "convolved_shares": {"conv": {"kernel": 2}, "feature_map": "hedgehog", "memory": ["state"]},
    "pooled": {"memory": [{"kind": "latents", "size": 12}]},
}


@pytest.mark.parametrize("kernel", HEADS)
def test_a_second_derivative_is_refused(kernel: str) -> None:
    shape = GROUPED if kernel != "pooled" else Shape(hidden_size=12, heads=4, key_heads=2, head_dim=6, both_ways=True)
    module, data = build_head(complete({"position": "none"} | HEADS[kernel]), shape).float(), inputs(shape, 1, 7).to(torch.float32)
    leaves = [tensor.requires_grad_() for tensor in data.tensors]
    output, _ = run(module, Inputs(*leaves, data.tokens), backend="triton")
    slopes = torch.autograd.grad(output.square().sum(), leaves, create_graph=True, allow_unused=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.stack([slope.sum() for slope in slopes if slope is not None]).sum().backward()
