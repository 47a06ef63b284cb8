"""A model that is streamed layer by layer ends with the same bits as one that is in memory, also where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer.errors import TrainingError
from composer.training.loop import Step
from tests.composer.training.runs import RECIPE, SPEC, make_student, make_teacher, run
from tests.composer.training.stages import StoppedError
from tests.composer.weights.students import weights

MIXED: dict[str, Any] = {
    "compose": 1,
    "name": "mixed",
    "heads": {"tiny": SPEC["head"], "exact": {"position": "rope", "memory": ["full"]}},
    "layers": [{"at": [0, 2], "use": "tiny"}, {"at": [1], "use": "exact"}],
    "recipe": RECIPE,
}


def test_streamed_and_in_memory(texts: Path, tmp_path: Path) -> None:
    """Stopped in its first, and in its last layer; one in between has nothing to train."""
    teacher = make_teacher(tmp_path / "teacher", num_hidden_layers=3)
    student = make_student(tmp_path / "student", teacher, MIXED)

    def stop(*moment: Any) -> Any:
        def watch(step: Step) -> None:
            if (step.stage, step.step) == moment:
                raise StoppedError

        return watch

    whole = run(student, tmp_path / "whole", texts, which="transfer")
    options: dict[str, Any] = {"which": "transfer", "stream": True, "checkpoint_seconds": 0.0}
    for resume, layer in enumerate((0, 2)):
        with pytest.raises(StoppedError):
            run(student, tmp_path / "out", texts, resume=bool(resume), watch=stop(f"transfer {layer}", 3), **options)
    streamed = run(student, tmp_path / "out", texts, resume=True, **options)
    assert streamed.stages[0].model_copy(update={"seconds": 0}) == whole.stages[0].model_copy(update={"seconds": 0})
    assert list(streamed.stages[0].after) == ["layer 0", "layer 2"]
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "out")
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert not (tmp_path / "out.run").exists()


def test_only_transfer_is_streamed(student: Path, texts: Path, tmp_path: Path) -> None:
    for which in ("all", "finetune"):
        with pytest.raises(TrainingError, match="Only attention transfer is streamed: say --stage transfer"):
            run(student, tmp_path / "out", texts, which=which, stream=True)
    assert not list(tmp_path.iterdir())
