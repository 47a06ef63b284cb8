"""A terminal that remembers what is on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
import rich.console


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[rich.console.Console]:
    with open(os.devnull, "w") as nowhere:
        screen = rich.console.Console(force_terminal=True, width=120, record=True, file=nowhere)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr(rich.console, "Console", lambda **_: screen)
        yield screen
