"""log α = logsigmoid(k) / τ for each coordinate of the projected key, at most 0."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from blocks.gates.from_key import FromKey
from blocks.legend import Shape
from composer.errors import SpecError
from tests.blocks.support import owner, random
from tests.laws.cases import SMALL, build_head, complete, inputs, run


def shape_of(features: int, state_heads: int) -> Shape:
    return Shape(hidden_size=6, heads=4, key_heads=2, head_dim=3, features=features, state_heads=state_heads)


@pytest.mark.parametrize("features", [3, 6], ids=["as many features as coordinates", "two-sided"])
@pytest.mark.parametrize("state_heads", [2, 4])
def test_from_key_equals_its_formula(features: int, state_heads: int) -> None:
    key = random(2, 5, 2, 3)
    decay = FromKey(temperature=3.0).log_decay({}, key, shape_of(features, state_heads))
    assert decay.shape == (2, 5, state_heads, features)
    for batch, token, head, feature in torch.ones_like(decay).nonzero().tolist():
        survives = (1 / (1 + math.exp(-key[batch, token, owner(head, state_heads, 2), feature % 3]))) ** (1 / 3)
        assert decay[batch, token, head, feature].item() == pytest.approx(math.log(survives), rel=1e-9)


def test_the_gate_has_no_parameters_and_keeps_the_number_of_heads() -> None:
    assert FromKey().parameters(shape_of(3, 2)) == {}
    assert [FromKey().key_heads(shape_of(3, 2), heads) for heads in (2, 4)] == [2, 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_key_gives_a_finite_decay(dtype: torch.dtype) -> None:
    key = (500 * random(1, 9, 2, 3, dtype=dtype)).requires_grad_()
    decay = FromKey().log_decay({}, key, shape_of(3, 2))
    assert decay.dtype == torch.float32
    assert decay.max() <= 0
    assert decay.min() < -10
    assert decay.isfinite().all()
    (gradient,) = torch.autograd.grad(decay.sum(), key)
    assert gradient.isfinite().all()


HEAD: dict[str, Any] = {
    "position": "rope",
    "feature_map": "elu",
    "memory": [{"kind": "state", "normalise": False, "gate": "from_key"}],
}


@pytest.mark.parametrize("more", [{}, {"conv": "causal"}], ids=["rotary positions", "a convolution too"])
def test_the_gate_reads_keys_before_rotation_and_convolution(more: dict[str, Any]) -> None:
    """The gate reads the key before rotation and convolution. The state after a token with zero features shows its decay."""
    shape = SMALL.shape(4)
    head = build_head(complete(HEAD | more), shape)
    data = inputs(shape, 2, 7)
    _, before = run(head, data.cut(slice(0, 6)))
    data.value[:, 6:] = 0.0
    _, after = run(head, data.cut(slice(6, 7)), dict(before))
    wanted = before["state.state"] * (torch.nn.functional.logsigmoid(data.key[:, 6]) / 16).exp().repeat_interleave(
        before["state.state"].shape[1] // 2, 1
    ).unsqueeze(-1)
    torch.testing.assert_close(after["state.state"], wanted, rtol=1e-12, atol=1e-12)


def test_feature_maps_of_another_dimension_are_refused() -> None:
    with pytest.raises(SpecError, match=r"each of a key's 8 coordinates, and the feature map has 12 features"):
        complete(HEAD | {"feature_map": {"kind": "hedgehog", "dim": 6}})
