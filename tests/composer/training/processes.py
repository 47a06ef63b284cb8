"""Processes of a test: forks, alone or several that train together."""

from __future__ import annotations

import importlib
import math
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ENDED, FAILED = 0, 1
IMPORTED = (
    "datasets",
    "peft",
    "torch.distributed.fsdp",
    "composer.reporting.plotting",
    "composer.tasks.catalogue",
    "composer.training.journal",
)
"""What most copies come to import, which takes longer than all else that they do: it is imported before the first copy is made."""
PATIENCE = 600.0
"""Seconds, also where other programs leave these little of the machine."""


def forked(child: Callable[[], Any]) -> int:
    """Fork a process that runs ``child`` and ends. Returns its id."""
    for name in IMPORTED:
        importlib.import_module(name)
    process = os.fork()
    if process:
        return process
    code = FAILED
    try:
        child()
        code = ENDED
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else FAILED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ending(process: int, last: float = math.inf) -> int:
    """Return the exit code of a process, or the negative number of its signal. last: the time after which it is killed."""
    while True:
        ended, status = os.waitpid(process, 0 if last == math.inf else os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > last:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def killed_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int, *, behind: bool) -> None:
    """Kill this process at call ``number`` (from 1) of a function, or right after it."""
    original, count = getattr(owner, name), 0

    def function(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == number and not behind:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = original(*arguments, **options)
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    monkeypatch.setattr(owner, name, function)


def several(count: int, act: Callable[[int], Any], output: Path | None = None) -> list[int]:
    """Return the exit codes of processes that run ``act`` with their rank, as torchrun starts them. Hanging ones are killed.
    output: their common output.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def child(rank: int) -> None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if output is not None:
            descriptor = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        act(rank)

    started, last = [forked(lambda rank=rank: child(rank)) for rank in range(count)], time.monotonic() + PATIENCE
    return [ending(process, last) for process in started]
