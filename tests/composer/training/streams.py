"""Streamed runs: their options, a stop inside a layer, and a comparison of their results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer.training.loop import StepProgress
from tests.composer.training.runs import run
from tests.composer.training.stages import StoppedError
from tests.composer.weights.students import weights

STREAM: dict[str, Any] = {"which": "transfer", "stream": True, "checkpoint_seconds": 0.0}


def same(wanted: dict[str, torch.Tensor], out: Path) -> bool:
    actual = weights(out)
    assert actual.keys() == wanted.keys() and not out.with_name("out.run").exists()  # noqa: PT018
    return all(torch.equal(tensor, actual[name]) for name, tensor in wanted.items())


def stopped(student: Path, out: Path, texts: Path, layer: int, *overrides: str, **options: Any) -> Path:
    """Return the folder of a run that ended in the third step of a layer."""

    def watch(step: StepProgress) -> None:
        if (step.stage, step.step) == (f"transfer {layer}", 3):
            raise StoppedError

    with pytest.raises(StoppedError):
        run(student, out, texts, *overrides, watch=watch, **options, **STREAM)
    return out.with_name("out.run")
