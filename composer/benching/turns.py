"""Runs in turn: in each round every contestant has its turn, so that other work of the machine slows all alike."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping

from composer.devices import NoRoom, room

NO_ROOM = "out of memory"


def in_turn(
    runs: Mapping[str, Callable[[], object]],
    rounds: int,
    settle: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
    row: int = 1,
) -> dict[str, list[float] | None]:
    """Seconds of each of ``rounds`` runs of every contestant; None for one that ran out of memory, which is left out from then on.

    settle: waits until the device has finished. What a run returns is freed once it has been timed.
    row: how many runs a contestant has in a row before the next has its turn.
    """
    seconds: dict[str, list[float] | None] = {name: [] for name in runs}
    for start in range(0, rounds, row):
        for name, run in runs.items():
            taken = seconds[name]
            if taken is None:
                continue
            try:
                with room():
                    for _ in range(min(row, rounds - start)):
                        taken.append(_seconds(run, settle, clock))
            except NoRoom:
                seconds[name] = None
            if seconds[name] is None:
                gc.collect()  # the error has been dropped, and with it the frames that held the run's tensors
    return seconds


def _seconds(run: Callable[[], object], settle: Callable[[], object], clock: Callable[[], float]) -> float:
    settle()
    began = clock()
    returned = run()
    settle()
    taken = clock() - began
    del returned  # not before: what it frees is no part of the run
    return taken
