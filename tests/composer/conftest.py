"""A terminal that remembers what is on it. And pictures: they are drawn for tests marked so, which look at one or make a whole run
of their kind; in the others, also those of other folders that make runs, a blank one is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import rich.console
from matplotlib.figure import Figure

HERE = Path(__file__).parent
BLANKS = (HERE, HERE.parent / "evidence", HERE.parent / "test_python_page.py")
BLANK = b"\x89PNG\r\n\x1a\n"
"""How a PNG begins."""
SAVED = Figure.savefig


def _blank(self: Figure, fname: Any, **_: Any) -> None:
    """fname: a path, or a stream of bytes."""
    if isinstance(fname, BytesIO):
        fname.write(BLANK)
    else:
        Path(fname).write_bytes(BLANK)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Also while fixtures are made, whoever shares them. pytest asks this of all tests, wherever they are."""
    if any(item.path.is_relative_to(place) for place in BLANKS) and not item.get_closest_marker("drawn"):
        Figure.savefig = _blank
    try:
        return (yield)
    finally:
        Figure.savefig = SAVED


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[rich.console.Console]:
    with open(os.devnull, "w") as nowhere:
        screen = rich.console.Console(force_terminal=True, width=120, record=True, file=nowhere)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr(rich.console, "Console", lambda **_: screen)
        yield screen
