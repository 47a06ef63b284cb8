"""A model's memory is measured in a child process. If the system kills it, or if it cannot start, the reason is reported."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from composer.benching import memory
from composer.benching.memory import can_tell_resident, peaks_of
from composer.benching.options import BenchOptions
from composer.benching.report import Workload
from composer.benching.trial import Trial
from composer.errors import BenchError

TRIAL = Trial(prefill=(8, 512), decode=(16,), batches=(1,), repeats=2, steps=2, seed=0, vocabulary=64, device="cpu")


@pytest.mark.skipif(not can_tell_resident(), reason="this system does not report resident memory")
def test_child_processes_report_peaks_of_a_model(folders: list[Path]) -> None:
    heard: list[Workload] = []
    peaks = peaks_of(folders[0], BenchOptions(dtype="float32"), TRIAL, heard.append)
    assert heard == list(peaks) == list(TRIAL.workloads())
    values = {place.length: peak for place, peak in peaks.items()}
    short, long = values[8], values[512]
    assert short is not None
    assert long is not None
    assert long > short + 512 * 2 * 2 * 2 * 8 * 4, "keys and values of 512 tokens at least"


def said_by(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run another program in place of the measuring process."""
    original = memory.subprocess.Popen
    monkeypatch.setattr(memory.subprocess, "Popen", lambda command, **how: original([sys.executable, "-c", script], **how))


def test_processes_killed_by_the_system_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    said_by(monkeypatch, "import os; print('[\"prefill\", 8, 1, 77]', flush=True); os.kill(os.getpid(), 9)")
    assert peaks_of(Path(), BenchOptions(), TRIAL, lambda _: None) == {Workload("prefill", 8, 1): 77}


def test_failing_processes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    said_by(monkeypatch, "raise ValueError('that model is broken')")
    with pytest.raises(
        BenchError,
        match=r"measures the memory of mine failed: ValueError: that model is broken\. Fix the cause, or leave --memory out",
    ):
        peaks_of(Path("mine"), BenchOptions(), TRIAL, lambda _: None)


def test_processes_without_output_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    said_by(monkeypatch, "raise SystemExit(3)")
    with pytest.raises(BenchError, match="it printed no message"):
        peaks_of(Path(), BenchOptions(), TRIAL, lambda _: None)


def test_large_output_on_stderr_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    said_by(monkeypatch, "import sys; sys.stderr.write('x' * 10**6); print('[\"decode\", 16, 1, null]')")
    assert peaks_of(Path(), BenchOptions(), TRIAL, lambda _: None) == {Workload("decode", 16, 1): None}


def test_interrupts_end_the_child_process(monkeypatch: pytest.MonkeyPatch) -> None:
    said_by(monkeypatch, "import os, time; print('[\"prefill\", 8, 1, %d]' % os.getpid(), flush=True); time.sleep(600)")
    started: list[Any] = []
    original = memory.subprocess.Popen

    def start(*arguments: Any, **how: Any) -> Any:
        started.append(original(*arguments, **how))
        return started[-1]

    def interrupted(_: Workload) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(memory.subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt):
        peaks_of(Path(), BenchOptions(), TRIAL, interrupted)
    assert started[0].poll() == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(started[0].pid, 0)
