"""A model with layers on several devices moves each layer's inputs to it, as device maps do. The second device is ``meta``,
which computes shapes only and refuses tensors of another device.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate.utils import send_to_device
from torch import nn

from tests.composer.model.models import student, tokens


def moved(module: nn.Module, arguments: Any, options: Any) -> tuple[Any, Any]:
    """Return the hook of a device map."""
    return send_to_device(arguments, "meta"), send_to_device(options, "meta", skip_keys="past_key_values")


@pytest.mark.parametrize("spec", ["softmax", "lolcats", "lola", "gated-delta", "rglru-window"])
def test_inputs_move_to_the_device_of_each_layer(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # which meta is no device for
    model: Any = student(spec)
    for module in (*model.model.layers[1:], model.model.norm, model.lm_head):
        module.to("meta")
        module.register_forward_pre_hook(moved, with_kwargs=True)
    with torch.no_grad():
        first = model(tokens(2, 9), use_cache=True)
        step = model(tokens(2, 1), past_key_values=first.past_key_values, use_cache=True)
    assert (first.logits.device.type, first.logits.shape[:2]) == ("meta", (2, 9))
    assert (step.logits.device.type, step.logits.shape[:2]) == ("meta", (2, 1))
