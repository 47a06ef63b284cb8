"""Steps run once, each after the step that it depends on, and child processes end with their parent."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.ablation import runner, steps
from composer.ablation.options import Request
from composer.ablation.plan import AblationStep, Chain
from composer.ablation.runner import one_process, processes, run_chains
from composer.ablation.steps import FAILURE, MARK, WARNINGS, Figures
from composer.errors import AblationError
from tests.composer.ablation.variants import SECOND_STAGES, chains_of, write_spec

pytestmark = pytest.mark.long

ROOT = Path(composer.__file__).parent.parent


class Recorded:
    """An executor that ends steps in the order in which they started, or in reverse."""

    def __init__(self, *, backwards: bool = False, failing: str = "", done: str = "", at_once: float = math.inf) -> None:
        self.at_once = at_once
        self.ran: list[AblationStep] = []
        self._done = {done}
        self._waiting: list[AblationStep] = []
        self._backwards, self._failing = backwards, failing

    def start(self, step: AblationStep, folder: Path) -> None:
        assert step.after is None or step.after.name in self._done
        self._waiting.append(step)
        assert len(self._waiting) <= self.at_once

    def wait_for_one(self) -> tuple[AblationStep, Figures]:
        step = self._waiting.pop(-1 if self._backwards else 0)
        self.ran.append(step)
        self._done.add(step.name)
        return step, {FAILURE: "no"} if step.kind == self._failing else {"of": step.name}


@pytest.fixture
def chains(ablation_request: Request, tmp_path: Path) -> list[Chain]:
    return list(chains_of([write_spec(tmp_path / "s.yaml", vary=SECOND_STAGES)], ablation_request, tmp_path).values())


@pytest.mark.parametrize("backwards", [False, True])
def test_steps_run_once_and_in_order(chains: list[Chain], tmp_path: Path, backwards: bool) -> None:
    workers, messages = Recorded(backwards=backwards), []
    results = run_chains(chains, tmp_path, workers, lambda step, _, done, total: messages.append((step, done, total)))
    names = {step.name for chain in chains for step in chain.steps}
    assert len(names) == 7
    assert sorted(step.name for step in workers.ran) == sorted(names)
    assert results == {name: {"of": name} for name in names}
    assert messages == [(None, 0, 7), *((step, done, 7) for done, step in enumerate(workers.ran, 1))]


def test_steps_after_a_failure_are_not_run(chains: list[Chain], tmp_path: Path) -> None:
    workers = Recorded(failing="finetune")
    results = run_chains(chains, tmp_path, workers)
    assert [step.kind for step in workers.ran] == ["build", "transfer", "compare", "finetune", "finetune"]
    assert [results[chain.steps[-1].name] for chain in chains] == [{FAILURE: "no"}] * 2


@pytest.mark.parametrize("at_once", [1, 2])
def test_chains_are_completed_one_by_one(chains: list[Chain], tmp_path: Path, at_once: int) -> None:
    """A chain is completed before the next one begins, so that a stop leaves whole chains."""
    workers = Recorded(at_once=at_once)
    run_chains(chains, tmp_path, workers)
    ran, own = [step.name for step in workers.ran], [step.name for step in chains[0].steps]
    assert [name for name in ran if name in own] == own
    assert ran.index(own[-1]) < len(own) * at_once
    if at_once == 1:
        assert ran[: len(own)] == own


def test_finished_steps_are_not_run(chains: list[Chain], tmp_path: Path) -> None:
    name = chains[0].steps[0].name
    figures = {"seconds": 1.0, "spec_hash": "0a"}
    (tmp_path / f"{name}.json").write_text(json.dumps(figures))
    (tmp_path / name).mkdir()
    workers, messages = Recorded(done=name), []
    results = run_chains(chains, tmp_path, workers, lambda step, _, done, total: messages.append(done))
    assert results[name] == figures
    assert messages == [1, 2, 3, 4, 5, 6, 7]


def test_killed_processes_are_reported(chains: list[Chain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / MARK).touch()
    original = runner.wait

    def kill(*arguments: Any, **options: Any) -> Any:
        os.kill(started[0], signal.SIGKILL)
        return original(*arguments, **options)

    def run() -> None:
        with processes(1)() as workers:
            workers.start(chains[0].steps[0], tmp_path)
            started.extend(workers._executor._processes)  # pyright: ignore[reportAttributeAccessIssue]
            workers.wait_for_one()

    started: list[int] = []
    monkeypatch.setattr(runner, "wait", kill)
    with pytest.raises(AblationError, match="with fewer --jobs") as raised:
        run()
    assert isinstance(raised.value.__cause__, BrokenProcessPool)


def test_worker_processes_end_with_their_parent(chains: list[Chain], tmp_path: Path) -> None:
    """If a program is killed, its worker processes end, too."""
    code = (
        "import sys, time; from composer.ablation import runner\n"
        "runner.LIBRARIES = ('torch',)\n"
        "if __name__ == '__main__':\n"
        "    with runner.processes(1)() as workers:\n"
        "        workers._executor.submit(time.sleep, 600)\n"
        "        while not workers._executor._processes: time.sleep(0.1)\n"
        "        print(list(workers._executor._processes)[0], flush=True); time.sleep(600)\n"
    )
    (tmp_path / "main.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, tmp_path / "main.py"], env=environment, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        worker = int(program.stdout.readline())
        until = time.monotonic() + 120
        while _threads(worker) < 3 and time.monotonic() < until:  # until it watches over its parent
            time.sleep(0.1)
        program.kill()
    while Path(f"/proc/{worker}/stat").exists() and time.monotonic() < until:
        if " Z " in Path(f"/proc/{worker}/stat").read_text():
            break
        time.sleep(0.1)
    else:
        assert not Path(f"/proc/{worker}").exists()


def test_ctrl_c_waits_while_processes_are_started() -> None:
    """Ctrl-C is delayed while processes start, and does not reach them, so they print no traceback."""
    code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    before, started = signal.getsignal(signal.SIGINT), []

    def start() -> None:
        with runner._interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            started.append(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert started == ["True\n"]
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_one_job_runs_in_this_process(chains: list[Chain], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / MARK).touch()
    ran = list[int]()
    for kind in steps.RUN:
        monkeypatch.setitem(steps.RUN, kind, lambda step, folder: ran.append(os.getpid()) or {FAILURE: "no"})
    with one_process() as workers:
        run_chains(chains, tmp_path, workers)
    assert ran == [os.getpid()]


def _threads(process: int) -> int:
    try:
        return len(os.listdir(f"/proc/{process}/task"))
    except OSError:
        return 0


def test_warnings_are_printed_when_their_step_ends(
    ablation_request: Request, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Warnings of a step in another process appear when the step ends, once for each variant."""
    texts = tmp_path / "unknown.jsonl"
    texts.write_text('{"text": "once qwx zzz xyz a time vvv kkk jjj"}\n' * 24)
    unknown = replace(ablation_request, data=(str(texts),), tasks=(), lengths=())
    made = list(chains_of([write_spec(tmp_path / "s.yaml")], unknown, tmp_path).values())
    steps_of = {step.kind: step.name for chain in made for step in chain.steps}
    (tmp_path / MARK).touch()
    with caplog.at_level("WARNING", "composer"), one_process() as workers:
        results = run_chains(made, tmp_path, workers)
    (warning,) = [what for what in results[steps_of["transfer"]][WARNINGS] if "are the tokenizer's token for unknown text" in what]
    assert warning in results[steps_of["finetune"]][WARNINGS]
    assert WARNINGS not in results[steps_of["build"]]
    assert [record.getMessage() for record in caplog.records].count(f"tiny, transfer: {warning}") == 1
    assert sum(warning in record.getMessage() for record in caplog.records) == 1
