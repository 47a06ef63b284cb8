"""A memory's weight: learned from LoLCATs' σ = 0.1, fixed, or none."""

from __future__ import annotations

import math

import pytest
import torch
from pydantic import ValidationError

from blocks.memories import MEMORIES
from blocks.memories.window import Window
from tests.blocks.support import GROUPED, started

OUTPUT = torch.zeros(1, 1, 4, 2, dtype=torch.float64)


def test_a_learned_weight_starts_at_a_tenth() -> None:
    parameters = started(Window(weight="learned"), GROUPED)
    assert parameters["weight"].shape == (4,)
    logit = Window(weight="learned").logit(parameters, OUTPUT)
    assert logit is not None
    assert logit.sigmoid().tolist() == pytest.approx([0.1] * 4, rel=1e-12)
    assert logit[0].item() == pytest.approx(-2.1972, abs=1e-4)  # as LoLCATs' code writes it


@pytest.mark.parametrize("share", [1e-6, 0.3, 0.5, 0.999])
def test_a_fixed_weight_is_what_it_says(share: float) -> None:
    logit = Window(weight=share).logit({}, OUTPUT)
    assert logit is not None
    assert logit.sigmoid().tolist() == pytest.approx([share] * 4, rel=1e-12)
    assert Window(weight=share).parameters(GROUPED) == {}


def test_no_weight_is_no_logit() -> None:
    assert Window().logit({}, OUTPUT) is None


def test_a_weight_is_weighed_in_float32() -> None:
    half = {name: tensor.bfloat16() for name, tensor in started(Window(weight="learned"), GROUPED).items()}
    for memory in (Window(weight="learned"), Window(weight=0.3)):
        logit = memory.logit(half, OUTPUT.bfloat16())
        assert logit is not None
        assert logit.dtype == torch.float32


def test_what_no_weight_can_be() -> None:
    for wrong in (0.0, 1.0, -0.1, math.nan, "fixed"):
        with pytest.raises(ValidationError):
            Window.model_validate({"weight": wrong})


def test_a_name_is_a_plain_word() -> None:
    assert Window(name="near_2").name == "near_2"
    for wrong in ("", "2", "a.b", "A", "a-b"):
        with pytest.raises(ValidationError):
            Window(name=wrong)


@pytest.mark.parametrize("kind", sorted(MEMORIES))
def test_every_memory_has_a_mass_unless_it_says_otherwise(kind: str) -> None:
    part = MEMORIES[kind]()
    assert part.has_mass()
    if "normalise" in type(part).model_fields:
        assert not part.model_copy(update={"normalise": False}).has_mass()
