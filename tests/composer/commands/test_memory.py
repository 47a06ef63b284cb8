"""If memory runs out, the error suggests options that need less. A run keeps its progress and can be continued."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import composer
from composer.errors import ComposerError
from composer.inspection.models import TextRun
from composer.selection import layers
from composer.training.loop import _StageRun
from tests.composer.programs import ROOT
from tests.composer.weights.students import weights

TEACHER = ROOT / "examples" / "teacher"
ERRORS = {
    "cuda": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "cpu": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"
    ),
    "python": MemoryError(),
}
LESSON = ["recipe.sequence=32", "recipe.finetune.steps=3", "recipe.finetune.batch=1", "recipe.finetune.lora.rank=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return composer.build_folder("lolcats", TEACHER, tmp_path_factory.mktemp("built") / "student").out


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trunk = {"width": 32, "layers": 1, "heads": 4, "vocabulary": 512}
    recipe = {"sequence": 32, "train": {"lr": 0.01, "steps": 3, "batch": 1}}
    spec = {"compose": 1, "name": "own", "extends": "lawcat", "trunk": trunk, "recipe": recipe}
    return composer.build_folder(spec, out=tmp_path_factory.mktemp("built") / "own", fresh=True, tokenizer=TEACHER).out


def raising(error: Exception, passing: int = 0, then: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a function that calls another one a few times and then raises the error."""
    left = passing

    def full(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0 or then is None:
            raise error
        return then(*arguments, **options)

    return full


def distill(folder: Path, out: Path, **options: Any) -> Any:
    settings = {"stage": "finetune", "overrides": LESSON, "checkpoint_seconds": 0.0, **options}
    return composer.distill(folder, "stories,samples=20", out, **settings)


@pytest.mark.parametrize("error", ERRORS)
def test_runs_without_memory_resume_after_their_last_step(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_StageRun, "_step", raising(ERRORS[error], 2, _StageRun._step))
        words = (
            r"Out of memory on cpu in training. To use less memory: a smaller `batch` or a larger `accumulate` .*recipe.sequence.*"
        )
        with pytest.raises(
            ComposerError, match=words + r"`gradient_checkpointing=True`.*`stream=True`.* is kept in .*out\.run\. .*`resume=True`"
        ) as caught:
            distill(folder, tmp_path / "out")
    assert caught.value.__cause__ is ERRORS[error]
    messages: list[str] = []
    distill(folder, tmp_path / "out", resume=True, tell=messages.append)
    assert any("Continuing after step 2 of 3" in message for message in messages)
    distill(folder, tmp_path / "whole")
    actual, wanted = weights(tmp_path / "out"), weights(tmp_path / "whole")
    assert all(torch.equal(tensor, actual[name]) for name, tensor in wanted.items())


def test_options_that_are_already_set_are_not_suggested(fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that are already set, or that the command lacks, are not suggested."""
    monkeypatch.setattr(_StageRun, "_step", raising(ERRORS["cpu"]))
    with pytest.raises(ComposerError, match=r"Out of memory .*recipe.sequence.*`resume=True`") as caught:
        composer.train(fresh, "stories,samples=20", tmp_path / "out", gradient_checkpointing=True)
    assert "gradient_checkpointing" not in str(caught.value)
    assert "stream" not in str(caught.value)


def test_commands_without_results_name_their_smaller_options(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from composer.data import sampling

    monkeypatch.setattr(sampling, "keep_tokens_alone", raising(ERRORS["cuda"]))
    with pytest.raises(
        ComposerError, match=r"Out of memory on cpu\. Write fewer texts at once \(`batch`, now 4\), .*`length`, now 16"
    ):
        composer.sample(str(TEACHER), tmp_path / "texts.jsonl", texts=4, batch=4, length=16)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(TextRun, "student", raising(ERRORS["cpu"]))
    with pytest.raises(ComposerError, match=r"Out of memory on cpu\. Use a shorter text \(`length`, now 96\), .*`alone=True`"):
        composer.inspect(folder, length=96)


def test_a_selection_without_memory_to_score_keeps_its_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = ["recipe={sequence: 64, transfer: {lr: 0.03, steps: 2, batch: 2, epochs: null, tokens: null}}"]
    options: Any = {"keep": 1, "share": 0.2, "rows": 2, "overrides": recipe}
    with monkeypatch.context() as patch:
        patch.setattr(layers, "score_layers", raising(ERRORS["cuda"]))
        with pytest.raises(
            ComposerError, match=r"Out of memory on cpu\. On a machine with more memory, the same command continues"
        ):
            composer.select("lawcat", TEACHER, "stories,samples=20", tmp_path / "out", **options)
    messages: list[str] = []
    composer.select("lawcat", TEACHER, "stories,samples=20", tmp_path / "out", tell=messages.append, **options)
    assert any("has learned already" in message for message in messages)


def test_other_errors_are_raised(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_StageRun, "_step", raising(RuntimeError("a shape is wrong")))
    with pytest.raises(RuntimeError, match="a shape is wrong"):
        distill(folder, tmp_path / "out")
