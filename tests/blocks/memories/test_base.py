"""A memory's weight is learned from LoLCATs' σ = 0.1, a linear function of each token, fixed, or absent."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from blocks.memories import MEMORIES
from blocks.memories.base import Memory
from blocks.memories.window import Window
from tests.blocks.support import GROUPED, call_by_name, close, drawn, random, started

INPUTS = torch.zeros(1, 1, 6, dtype=torch.float64)


def weigh(memory: Window, parameters: Mapping[str, Tensor], hidden: Tensor) -> Tensor:
    weighing = memory.weighing(GROUPED)
    assert weighing is not None
    return call_by_name(weighing.forms[0].run, parameters=parameters, hidden=hidden)


def test_a_learned_weight_starts_at_a_tenth() -> None:
    parameters = started(Window(weight="learned"), GROUPED)
    assert parameters["weight"].shape == (4,)
    logit = weigh(Window(weight="learned"), parameters, INPUTS)
    assert logit.sigmoid().tolist() == pytest.approx([0.1] * 4, rel=1e-12)
    assert logit[0].item() == pytest.approx(-2.1972, abs=1e-4)  # as LoLCATs' code writes it


@pytest.mark.parametrize("share", [1e-6, 0.3, 0.5, 0.999])
def test_a_fixed_weight_is_the_sigmoid_of_its_logit(share: float) -> None:
    logit = weigh(Window(weight=share), {}, INPUTS)
    assert logit.sigmoid().tolist() == pytest.approx([share] * 4, rel=1e-12)
    assert Window(weight=share).parameters(GROUPED) == {}


def test_memories_without_weight_have_no_logit() -> None:
    assert Window().weighing(GROUPED) is None
    assert Window(weight=0.3).weighing(GROUPED) is not None


def test_weights_are_computed_in_float32() -> None:
    for memory in (Window(weight="learned"), Window(weight="token"), Window(weight=0.3)):
        half = {name: tensor.bfloat16() for name, tensor in started(memory, GROUPED).items()}
        logit = weigh(memory, half, INPUTS.bfloat16())
        assert logit.dtype == torch.float32


def test_a_weight_of_the_token_is_linear_in_its_hidden_state() -> None:
    parameters, hidden = drawn(Window(weight="token"), GROUPED), random(2, 3, 6)
    assert parameters["weight"].shape == (4, 6)
    logit = weigh(Window(weight="token"), parameters, hidden)
    for batch, token, head in torch.ones(2, 3, 4).nonzero().tolist():
        close(logit[batch, token, head], (parameters["weight"][head] * hidden[batch, token]).sum())


def test_invalid_weights_are_refused() -> None:
    for wrong in (0.0, 1.0, -0.1, math.nan, "fixed"):
        with pytest.raises(ValidationError):
            Window.model_validate({"weight": wrong})


def test_names_are_identifiers_in_lower_case() -> None:
    assert Window(name="near_2").name == "near_2"
    for wrong in ("", "2", "a.b", "A", "a-b"):
        with pytest.raises(ValidationError):
            Window(name=wrong)


@pytest.mark.parametrize("kind", sorted(MEMORIES))
def test_only_listed_memories_have_no_mass(kind: str) -> None:
    part = MEMORIES[kind]()
    assert isinstance(part, Memory)
    assert part.has_mass() is (kind not in {"delta", "gdn2", "latents", "mesa", "rwkv7", "trapezoid"})
    if "normalise" in type(part).model_fields:
        assert not part.model_copy(update={"normalise": False}).has_mass()
