"""Runs in turn: in each round every contestant runs once, so that other work of the machine slows all alike."""

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
) -> dict[str, list[float] | None]:
    """Seconds of each run in each round; None for one that ran out of memory, which is left out of later rounds.

    settle: waits until the device has finished. What a run returns is freed once it has been timed.
    """
    seconds: dict[str, list[float] | None] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            taken = seconds[name]
            if taken is None:
                continue
            try:
                with room():
                    settle()
                    began = clock()
                    returned = run()
                    settle()
                    taken.append(clock() - began)
                    del returned
            except NoRoom:
                seconds[name] = None
            if seconds[name] is None:
                gc.collect()  # the error has been dropped, and with it the frames that held the run's tensors
    return seconds
