"""A layer's attention with heads: its output on its own, its listener, and its errors if it is called alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer.model.attention import LayerCall
from composer.model.hosts import attentions
from tests.composer.model.models import student, tokens


def listen(spec: str, *overrides: str) -> tuple[Any, list[tuple[LayerCall, Any, torch.Tensor]]]:
    """Return the attention of a student's first layer after a few tokens, and the events of its listener."""
    model, messages = student(spec, *overrides), []
    (_, attention), *_ = attentions(model)
    attention.listener = lambda *event: messages.append(event)
    with torch.no_grad():
        model(tokens(2, 11))
    return attention, messages


@pytest.mark.parametrize("spec", ["lolcats", "lawcat", "latte-macchiato"])
def test_the_output_of_a_layer_alone_equals_its_output_in_the_model(spec: str) -> None:
    """From an empty state, the output of the layer and of its heads alone equal those in the model."""
    attention, ((call, options, output),) = listen(spec)
    assert call.heads is not None
    with torch.no_grad():
        torch.testing.assert_close(attention.attention_output(call.hidden, call.model_call, options), output, rtol=0, atol=1e-12)
        torch.testing.assert_close(attention.heads_output(call.hidden, call.model_call, options), call.heads, rtol=0, atol=1e-12)


def test_passed_values_replace_the_projected_values() -> None:
    attention, ((call, options, _),) = listen("lolcats")
    values = torch.zeros(2, 11, 2, 16, dtype=torch.float64)
    with torch.no_grad():
        assert not attention.heads_output(call.hidden, call.model_call, options, values).any()


def test_a_layer_called_without_its_model_is_refused() -> None:
    model = student("lolcats")
    (_, attention), *_ = attentions(model)
    with pytest.raises(TypeError, match="this layer was called by itself, without the tokens of a call: call the model"):
        attention(torch.zeros(1, 3, 64, dtype=torch.float64), attention_mask=None)


def test_tokens_move_to_another_device_once_per_call() -> None:
    _, ((call, _, _),) = listen("lolcats")
    model_call, device = call.model_call, torch.device("meta")
    assert model_call.on(torch.device("cpu")) is model_call
    moved = model_call.on(device)
    assert moved.tokens.position.device == device
    assert model_call.on(device).tokens is moved.tokens, "all layers that stand there share them"
