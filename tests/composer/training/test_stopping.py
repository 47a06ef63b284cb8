"""Ctrl-C and SIGTERM keep a run's progress, print how to continue, and change no bit of the result."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.errors import Stopped, TrainingError
from composer.training.loop import StepProgress
from composer.training.transfer import TransferCourse
from composer.weights.record import read_record
from composer.weights.verify import verify
from tests.composer.training.runs import run
from tests.composer.weights.students import weights


@pytest.fixture(scope="module")
def whole(student: Path, texts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """The weights of an uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run(student, out, texts)
    return weights(out)


@pytest.fixture
def usual() -> Iterator[dict[int, Any]]:
    """Python's own handlers of both signals, for the test. pytest has others."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    for number, handler in handlers.items():
        signal.signal(number, handler)
    yield handlers
    for number, handler in before.items():
        signal.signal(number, handler)


def kill_at_call(patch: pytest.MonkeyPatch, name: str, call: int) -> None:
    """Send SIGTERM to this process after this call of a method of the courses of transfer."""
    original, calls = getattr(TransferCourse, name), list[int]()

    def counted(course: TransferCourse, *arguments: Any) -> Any:
        calls.append(1)
        result = original(course, *arguments)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    patch.setattr(TransferCourse, name, counted)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize(
    ("name", "call", "reached"),
    [
        ("compute_gradients", 5, r"after step 2 of 6 of transfer\. Checkpoint: .*--resume"),
        ("compute_gradients", 1, r"before the end of step 1 of 6 of transfer\. To continue.*--resume"),
        ("compute_losses", 1, r"before the end of step 1 of 6 of transfer\. To continue.*--resume"),
    ],
)
def test_a_signal_within_a_step_keeps_the_last_complete_step(
    student: Path, texts: Path, tmp_path: Path, whole: dict[str, torch.Tensor], name: str, call: int, reached: str
) -> None:
    """A step has two parts. The signal comes in the first part, and no other part is computed."""
    messages: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        kill_at_call(patch, name, call)
        with pytest.raises(Stopped, match=f"Stopped {reached}"):
            run(student, tmp_path / "out", texts, tell=messages.append)
    assert any(what.startswith("Stopping after this part of a step") for what in messages)
    run(student, tmp_path / "out", texts, resume=True, tell=messages.append)
    assert any(what.startswith("Continuing after step 2 of 6") for what in messages) == (call == 5)
    trained = weights(tmp_path / "out")
    assert all(trained[name].equal(tensor) for name, tensor in whole.items())


@pytest.mark.parametrize(("number", "stage"), [(signal.SIGINT, "transfer"), (signal.SIGTERM, "finetune")])
def test_stopped_runs_are_kept(
    student: Path, texts: Path, tmp_path: Path, number: int, stage: str, whole: dict[str, torch.Tensor], usual: dict[int, Any]
) -> None:
    messages: list[str] = []

    def watch(step: StepProgress) -> None:
        if (step.stage, step.step) == (stage, 3):
            os.kill(os.getpid(), number)

    with pytest.raises(Stopped, match=f"Stopped after step 3 of . of {stage}.*--resume") as stopped:
        run(student, tmp_path / "out", texts, watch=watch, tell=messages.append)
    assert stopped.value.number == number
    assert {signal_number: signal.getsignal(signal_number) for signal_number in usual} == usual, "as it was"
    assert any(what.startswith("Stopping after this part of a step") for what in messages)
    assert not (tmp_path / "out").exists()
    run(student, tmp_path / "out", texts, resume=True, tell=messages.append)
    assert any(
        what.startswith(f"Continuing after step 3 of . of {stage}".replace(" . ", f" {6 if stage == 'transfer' else 5} "))
        for what in messages
    )
    trained = weights(tmp_path / "out")
    assert trained.keys() == whole.keys()
    assert all(trained[name].equal(tensor) for name, tensor in whole.items())


REACHED = {"transfer": [("transfer", 3, 6)], "finetune": [("transfer", 6, None), ("finetune", 3, 5)]}
"""Stages with their steps, and with those of the recipe where they were ended before, by the stage that was stopped."""


@pytest.mark.parametrize("stage", REACHED)
def test_stopped_runs_can_become_a_model_and_train_further(
    student: Path, texts: Path, tmp_path: Path, whole: dict[str, torch.Tensor], stage: str
) -> None:
    out, messages = tmp_path / "out", list[str]()

    def stop(step: StepProgress) -> None:
        if (step.stage, step.step) == (stage, 4):
            raise KeyboardInterrupt

    with pytest.raises(TrainingError, match="no run to continue"):
        run(student, out, texts, finish=True)
    with pytest.raises(KeyboardInterrupt):
        run(student, out, texts, watch=stop, checkpoint_seconds=0)
    report = run(student, out, texts, finish=True, tell=messages.append)
    assert messages[-1] == f"The run is kept in {tmp_path / 'out.run'}. To train on: the same command with --resume --force."
    assert f"{stage}: 3 of {REACHED[stage][-1][2]} steps" in str(report)
    record = read_record(out)
    assert record is not None
    assert [(done.stage, done.steps, done.planned) for done in record.training] == REACHED[stage]
    assert verify(out).ok
    assert "3 of" in (out / "README.md").read_text()
    assert any(not tensor.equal(whole[name]) for name, tensor in weights(out).items())
    run(student, out, texts, resume=True, force=True)
    assert not (tmp_path / "out.run").exists()
    trained = weights(out)
    assert all(trained[name].equal(tensor) for name, tensor in whole.items())


def test_runs_without_a_checkpoint_cannot_become_a_model(student: Path, texts: Path, tmp_path: Path) -> None:
    def stop(step: StepProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(student, tmp_path / "out", texts, watch=stop)
    with pytest.raises(TrainingError, match="has no checkpoint yet"):
        run(student, tmp_path / "out", texts, finish=True)
    assert not (tmp_path / "out").exists()
