"""Gradient checkpointing gives the same gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer.model.attention import ComposedAttention
from composer.spec.recipe import Finetune, Lora
from composer.training import distill as module
from composer.training.finetune import FinetuneCourse, add_adapters, finetune_unit
from composer.training.run import TrainingOptions, prepare
from tests.composer.training.runs import gradients, rows_of, run, small_llama, student_of, whole

STAGES = {
    "adapters": Finetune(lr=1, steps=1, lora=Lora(rank=2)),
    "trunk": Finetune(lr=1, steps=1, trunk=True),
    "heads": Finetune(lr=1, steps=1),
}


@pytest.mark.parametrize("name", STAGES)
def test_gradient_checkpointing_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, batch, gradients_of, calls = STAGES[name], whole(rows_of()), [], []
    original = ComposedAttention.forward
    monkeypatch.setattr(
        ComposedAttention, "forward", lambda self, *arguments, **more: calls.append(self) or original(self, *arguments, **more)
    )
    for twice in (False, True):
        student = student_of(small_llama().float())
        if stage.lora is not None:
            add_adapters(student, stage.lora, 0)
        prepare(student, TrainingOptions((), gradient_checkpointing=twice))
        course = FinetuneCourse(student, finetune_unit(student, stage), stage, None)
        calls.clear()
        course.compute_gradients(batch, course.count(batch))
        assert len(calls) == len(student.model.layers) * (1 + twice)
        calls.clear()
        course.compute_losses(batch, course.count(batch))
        assert len(calls) == len(student.model.layers), "where nothing learns there is no way back"
        gradients_of.append(gradients(student))
    assert gradients_of[0].keys() == gradients_of[1].keys()
    assert all(torch.equal(tensor, gradients_of[1][name]) for name, tensor in gradients_of[0].items())


def test_gradient_checkpointing_depends_on_the_option(
    student: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It depends on the option alone, which may differ between a run and its continuation."""
    requested: list[Any] = []
    monkeypatch.setattr(module, "prepare", lambda student, options: requested.append(options.gradient_checkpointing))
    first = run(student, tmp_path / "one", texts, "recipe.finetune.steps=1", which="finetune")
    other = run(student, tmp_path / "other", texts, "recipe.finetune.steps=1", which="finetune", gradient_checkpointing=True)
    assert requested == [False, True]
    assert first.stages[0].after == other.stages[0].after
