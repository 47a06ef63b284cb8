"""Ctrl-C and SIGTERM in the middle of training: the step is finished and kept, and only a second one ends the run at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def awaited(tell: Callable[[str], None]) -> Iterator[Callable[[], int]]:
    """A function that returns the number of the signal that was received, 0 where none was.

    tell: called with the message to the user when a signal arrives. Where other code handles a signal, and outside of the main
    thread, none is awaited.
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
