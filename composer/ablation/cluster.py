"""Runs the steps of an ablation on a Ray cluster, whose machines share the folder of the results."""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from blocks.external_parts import list_named_parts, register_parts
from composer.ablation.plan import AblationStep
from composer.ablation.runner import StartWorkers, Workers
from composer.ablation.steps import FAILURE, MARK, Figures, run_step
from composer.errors import AblationError, first_line
from composer.system.subprocesses import protected_children
from composer.system.versions import install_command

LOCAL, AUTO = "local", "auto"
STARTS = 3
"""Tries to start a cluster on this machine."""
PATIENCE = 10.0
"""Seconds in which a cluster has to answer."""


def ray_workers(address: str, *, gpus: float = 0) -> StartWorkers:
    """Workers that run each step as a task of Ray. Raises AblationError if Ray is not installed.

    - address: of a cluster; ``auto`` for the one that this machine belongs to; ``local`` to start one on this machine, which ends
      with the ablation.
    - gpus: for each step.
    """
    try:
        import ray
    except ImportError as error:
        raise AblationError(f"Ray is not installed: {install_command('ray')}, or leave --ray out.") from error

    @contextmanager
    def start() -> Iterator[Workers]:
        options: dict[str, Any] = {"include_dashboard": False} if address == LOCAL else {}
        if address == LOCAL:  # no statistics are sent to Ray's makers
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address not in (LOCAL, AUTO):
            _check_answers(address)
        with TemporaryDirectory(prefix="composer-ray-") as empty, protected_children():
            # Ray's workers import from the folder that is the current one here. A step moves to the caller's.
            with chdir(empty):
                _connect(ray, address, options)
            try:
                yield _Cluster(ray, gpus)
            finally:
                ray.shutdown()

    return start


def _connect(ray: Any, address: str, options: Mapping[str, Any]) -> None:
    """Connect to a cluster, or start one here. Raises AblationError.

    A server of Ray's aborts if its own agent, a program of Python, has not started within 15 seconds, which happens on a busy
    machine. Then another start is tried, for which the agent's files are in memory.
    """
    for tries_left in reversed(range(STARTS if address == LOCAL else 1)):
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
            return
        except Exception as error:  # of any class, and of Exception itself for a server that did not start
            ray.shutdown()
            if not tries_left:
                where = "that this machine belongs to" if address == AUTO else f"at {address}"
                problem = f"Ray did not start here in {STARTS} tries" if address == LOCAL else f"There is no Ray cluster {where}"
                raise AblationError(f"{problem}: {first_line(error)}.") from error


def _check_answers(address: str) -> None:
    """Raise AblationError if nothing answers at the address; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=PATIENCE):
            pass
    except (OSError, ValueError) as error:
        raise AblationError(
            f"There is no Ray cluster at {address} ({error}): expected HOST:PORT, ray://HOST:PORT, {AUTO} or {LOCAL}."
        ) from error


class _Cluster:
    at_once = math.inf
    """Ray has its own queue, and a cluster can grow."""

    def __init__(self, ray: Any, gpus: float) -> None:
        self._ray, self._task = ray, ray.remote(num_gpus=gpus)(_run_sent)
        self._waiting: dict[Any, AblationStep] = {}

    def start(self, step: AblationStep, folder: Path) -> None:
        self._waiting[self._task.remote(_WithParts(step), folder.resolve(), Path.cwd())] = step

    def wait_for_one(self) -> tuple[AblationStep, Figures]:
        (done, *_), _ = self._ray.wait(list(self._waiting))
        step = self._waiting.pop(done)
        try:
            return step, self._ray.get(done)
        except self._ray.exceptions.RayTaskError:  # an error of the step itself
            raise
        except self._ray.exceptions.RayError as error:
            return step, {FAILURE: f"Ray lost the step, on a machine or for want of memory: {first_line(error)}"}


class _WithParts:
    """A step on its way to another process, which registers the same modules and files of parts before it reads the step."""

    def __init__(self, step: AblationStep) -> None:
        self.step = step

    def __reduce__(self) -> tuple[Any, ...]:
        return _register, (list_named_parts(),), {"step": self.step}


def _register(parts: Sequence[str]) -> _WithParts:
    """Register the parts. Return an object whose step follows."""
    register_parts(parts)
    return _WithParts.__new__(_WithParts)


def _run_sent(sent: _WithParts, folder: Path, here: Path) -> Figures:
    return run_on_machine(sent.step, folder, here)


def run_on_machine(step: AblationStep, folder: Path, here: Path) -> Figures:
    """Runs a step on a machine of the cluster. here: the folder that relative paths of the request start from."""
    if not (folder / MARK).is_file() or not here.is_dir():
        missing = here if (folder / MARK).is_file() else folder
        where = f"{missing} is not there on {socket.gethostname()}"
        return {FAILURE: f"{where}: all machines of the cluster have to see it at the same path"}
    os.chdir(here)
    return run_step(step, folder)
