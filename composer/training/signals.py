"""Ctrl-C and SIGTERM during a training run: it stops between two parts of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def await_signals(tell: Callable[[str], None]) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the number of the signal that was received, 0 if none was.

    tell: called with a message to the user when a signal arrives. A signal that other code handles is not changed, and neither are
    both outside of the main thread.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    mine = [number for number in SIGNALS if signal.getsignal(number) is usual[number]]
    if threading.current_thread() is not threading.main_thread():
        mine = []
    received = 0

    def handle_signal(number: int, _: FrameType | None) -> None:
        nonlocal received
        received = number
        for other in mine:
            signal.signal(other, usual[other])
        tell("Stopping after this part of a step. Press Ctrl-C again to stop now.")

    for number in mine:
        signal.signal(number, handle_signal)
    try:
        yield lambda: received
    finally:
        for number in mine:
            signal.signal(number, usual[number])
