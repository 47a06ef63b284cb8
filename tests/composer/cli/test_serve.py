"""``compose serve`` prints its address, and Ctrl-C ends it without a word."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from tests.composer.cli.conftest import Compose

TEACHER = Path(__file__).parents[3] / "examples" / "teacher"
PATIENCE = 60


def test_ctrl_c_ends_the_server(compose: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "or the server would never end"
    monkeypatch.setattr(gc, "freeze", lambda: None)
    before = set(threading.enumerate())
    from composer.commands import serve as module

    answers: list[int] = []
    ended = threading.Event()
    say = module.say

    def say_and_use(line: str) -> None:
        say(line)
        with urllib.request.urlopen(f"{line.partition('/v1')[0]}/health", timeout=PATIENCE) as answer:
            answers.append(answer.status)
        threading.Thread(target=interrupt).start()

    def interrupt() -> None:
        time.sleep(0.1)  # so that the command waits; it ends in the same way before
        os.kill(os.getpid(), signal.SIGINT)
        while not ended.wait(20):  # Python drops a KeyboardInterrupt in a weakref's callback
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(module, "say", say_and_use)
    result = compose("serve", TEACHER, "--port", 0, "--quiet")
    ended.set()
    assert result.exit_code in (0, 130)
    assert result.stdout.startswith("http://127.0.0.1:")
    assert result.stdout.endswith('/v1  model: "teacher"  (Ctrl-C ends it)\n')
    assert answers == [200]
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive()
