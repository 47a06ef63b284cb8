"""Ctrl-C and SIGTERM in training: the first signal ends the run after a checkpoint of the current step, a second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AGAIN = "say the same again with --resume"
"""How the user goes on with a run that was stopped, where the command that runs it says nothing else."""


@contextmanager
def awaited(tell: Callable[[str], None]) -> Iterator[Callable[[], int]]:
    """A function that returns the number of the signal that was received, 0 where none was.

    tell: called with a message to the user when a signal arrives. A signal that other code handles is left alone, and so are both
    outside of the main thread.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    mine = [number for number in SIGNALS if signal.getsignal(number) is usual[number]]
    if threading.current_thread() is not threading.main_thread():
        mine = []
    came = 0

    def take(number: int, _: FrameType | None) -> None:
        nonlocal came
        came = number
        for other in mine:
            signal.signal(other, usual[other])
        tell("Stopping behind this step; once more ends it at once.")

    for number in mine:
        signal.signal(number, take)
    try:
        yield lambda: came
    finally:
        for number in mine:
            signal.signal(number, usual[number])
