"""Runs the steps of an ablation, each as soon as the one before it is done: in one process, or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from blocks.external_parts import list_named_parts, register_parts
from composer.ablation.plan import AblationStep, Chain
from composer.ablation.steps import FAILURE, WARNINGS, Figures, read_finished, run_step
from composer.errors import AblationError
from composer.reporting.progress import silence_transformers
from composer.system.locks import suppress_warning
from composer.system.notices import warn_user
from composer.system.subprocesses import protected_children

LIBRARIES = (
    "transformers",
    "composer.training.distill",
    "composer.evaluation.runner",
    "composer.model.classes",
)
"""Modules that steps need, and whose import needs seconds."""


class Workers(Protocol):
    """Run steps that do not depend on each other."""

    @property
    def at_once(self) -> int:
        """The most steps that may be started before one of them has ended."""
        ...

    def start(self, step: AblationStep, folder: Path) -> None:
        """Start a step, or queue it."""
        ...

    def wait_for_one(self) -> tuple[AblationStep, Figures]:
        """Waits for the next started step to end."""
        ...


StartWorkers = Callable[[], AbstractContextManager[Workers]]
OnStep = Callable[[AblationStep | None, Figures, int, int], None]
"""Called with a step that has ended (None at the start), its figures, the number of steps that are done, and of all steps."""


def run_chains(chains: Sequence[Chain], folder: Path, workers: Workers, tell: OnStep | None = None) -> dict[str, Figures]:
    """Return the figures of every step, by its name. A step after one that failed is not run, and fails for the same reason.

    Of the steps that can run, those of the first chain run first, so that a stopped ablation has whole chains. Warnings about a
    step are logged as it ends.
    """
    steps = {step.name: step for chain in reversed(chains) for step in chain.steps}
    order = {name: rank for rank, name in enumerate(dict.fromkeys(step.name for chain in chains for step in chain.steps))}
    results: dict[str, Figures] = {}
    ready: list[AblationStep] = []
    followers: dict[str, list[AblationStep]] = {}
    under_way, warned = 0, set[tuple[str, str]]()

    def reach(step: AblationStep) -> None:
        before = results[step.after.name] if step.after is not None else {}
        done = {FAILURE: before[FAILURE]} if FAILURE in before else read_finished(step, folder)
        if done is None:
            ready.append(step)
        else:
            end(step, done)

    def end(step: AblationStep, figures: Figures) -> None:
        results[step.name] = figures
        for follower in followers.pop(step.name, ()):
            reach(follower)

    first: list[AblationStep] = []
    for name in order:
        step = steps[name]
        (first if step.after is None else followers.setdefault(step.after.name, [])).append(step)
    for step in first:
        reach(step)
    if tell is not None:
        tell(None, {}, len(results), len(steps))
    while ready or under_way:
        ready.sort(key=lambda step: order[step.name])
        while ready and under_way < workers.at_once:
            workers.start(ready.pop(0), folder)
            under_way += 1
        step, figures = workers.wait_for_one()
        under_way -= 1
        end(step, figures)
        if tell is not None:
            tell(step, figures, len(results), len(steps))
        _warn(step, figures, warned)
    return results


def _warn(step: AblationStep, figures: Figures, warned: set[tuple[str, str]]) -> None:
    """Logs the warnings about a step. warned: variants and the texts of their warnings: no variant has one twice."""
    for warning in figures.get(WARNINGS, ()):
        if (step.variant.name, warning) not in warned:
            warned.add((step.variant.name, warning))
            warn_user(f"{step.variant.name}, {step.kind}: {warning}")


class _Here:
    at_once = 1

    def start(self, step: AblationStep, folder: Path) -> None:
        self._next = step, folder

    def wait_for_one(self) -> tuple[AblationStep, Figures]:
        step, folder = self._next
        return step, run_step(step, folder)


@contextmanager
def one_process() -> Iterator[Workers]:
    """Steps run one after the other, in this process."""
    yield _Here()


class _Pool:
    def __init__(self, executor: ProcessPoolExecutor, count: int) -> None:
        self._executor, self.at_once = executor, count
        self._waiting: dict[Future[Figures], AblationStep] = {}

    def start(self, step: AblationStep, folder: Path) -> None:
        with _interrupts_held():
            self._waiting[self._executor.submit(_run_in_process, step, folder)] = step

    def wait_for_one(self) -> tuple[AblationStep, Figures]:
        done = next(iter(wait(self._waiting, return_when=FIRST_COMPLETED).done))
        step = self._waiting.pop(done)
        try:
            return step, done.result()
        except BrokenProcessPool as error:
            raise AblationError(
                "A process was killed from outside, perhaps because memory ran out. Finished steps are kept. Run the same command "
                "again with fewer --jobs."
            ) from error


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """For the block, Ctrl-C waits. Processes that are started in it have none at all: the one that has started them ends them."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    came: list[int] = []
    # What is blocked here reaches other threads, and a handler of Python's is not inherited.
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handler)
    if came:
        raise KeyboardInterrupt


def _run_in_process(step: AblationStep, folder: Path) -> Figures:
    suppress_warning(folder)  # the process that started this one has printed the warning
    return run_step(step, folder)


def processes(count: int) -> StartWorkers:
    """``count`` steps at a time, in processes of one thread each. They end when this process ends, even where it is killed."""

    @contextmanager
    def start() -> Iterator[Workers]:
        with protected_children():
            context = _context()
            stop = context.Event()
            executor = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(stop, list_named_parts()))
            try:
                yield _Pool(executor, count)
            except BaseException:
                stop.set()
                raise
            finally:
                executor.shutdown(cancel_futures=True)

    return start


def _context() -> Any:
    """Return the context that starts processes: on Linux as forks of a process that has imported the libraries, elsewhere as new
    ones."""
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(LIBRARIES))
    return context


def _begin(stop: Any, parts: Sequence[str]) -> None:
    """Set up a process: with one thread, as more would compete for the cores, and so that it ends when its parent does.

    parts: modules and files to register.
    """
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own is a semaphore of the system, which a killed process does not release
    silence_transformers()
    register_parts(parts)
    parent = multiprocessing.parent_process()
    assert parent is not None, "it was started by one"
    for over in (stop.wait, parent.join):
        threading.Thread(target=_leave_after, args=(over,), daemon=True).start()


def _leave_after(over: Callable[[], Any]) -> None:
    over()
    os._exit(1)
