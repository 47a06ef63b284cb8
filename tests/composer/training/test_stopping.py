"""Ctrl-C and SIGTERM keep a run's progress, print how to continue, and change no bit of the result."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from composer.errors import Stopped
from composer.training.loop import StepProgress
from tests.composer.training.runs import run
from tests.composer.weights.students import weights


@pytest.fixture(scope="module")
def whole(student: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run(student, out, texts)
    return weights(out)


@pytest.mark.parametrize(("number", "stage"), [(signal.SIGINT, "transfer"), (signal.SIGTERM, "finetune")])
def test_a_signal_keeps_the_run(
    student: Path, texts: Path, tmp_path: Path, number: int, stage: str, whole: dict[str, torch.Tensor]
) -> None:
    before = {signal_number: signal.getsignal(signal_number) for signal_number in (signal.SIGINT, signal.SIGTERM)}
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    messages: list[str] = []

    def watch(step: StepProgress) -> None:
        if (step.stage, step.step) == (stage, 3):
            os.kill(os.getpid(), number)

    try:
        for signal_number, handler in usual.items():
            signal.signal(signal_number, handler)
        with pytest.raises(Stopped, match=f"Stopped after step 3 of . of {stage}.*--resume") as stopped:
            run(student, tmp_path / "out", texts, watch=watch, tell=messages.append)
        assert stopped.value.number == number
        assert {signal_number: signal.getsignal(signal_number) for signal_number in usual} == usual, "as it was"
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
    assert any(what.startswith("Stopping after this step") for what in messages)
    assert not (tmp_path / "out").exists()
    run(student, tmp_path / "out", texts, resume=True, tell=messages.append)
    assert any(
        what.startswith(f"Continuing after step 3 of . of {stage}".replace(" . ", f" {6 if stage == 'transfer' else 5} "))
        for what in messages
    )
    trained = weights(tmp_path / "out")
    assert trained.keys() == whole.keys()
    assert all(trained[name].equal(tensor) for name, tensor in whole.items())
