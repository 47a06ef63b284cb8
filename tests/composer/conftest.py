"""A terminal that records its screen. Pictures are drawn only in tests that are marked so. In other tests a blank picture is
written.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rich.console

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError:  # on a GPU machine without a package registry, which draws nothing
    Figure = None

HERE = Path(__file__).parent
BLANKS = (HERE, HERE.parent / "evidence", HERE.parent / "test_python_page.py")
BLANK = b"\x89PNG\r\n\x1a\n"
"""How a PNG begins."""
SAVED = None if Figure is None else Figure.savefig


def _blank(self: Any, fname: Any, **_: Any) -> None:
    """Write a blank picture. fname: a path or a binary stream."""
    if isinstance(fname, BytesIO):
        fname.write(BLANK)
    else:
        Path(fname).write_bytes(BLANK)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Set the mark while fixtures are made, too, since fixtures are shared. pytest calls this for all tests."""
    if Figure is None:
        return (yield)
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


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the figures by the names of their files, still open."""
    from tests.composer.legible import kept_open

    return kept_open(monkeypatch)


@pytest.fixture
def quick_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports are compared in a fork of a process without this package that has imported torch and transformers once."""
    from composer.exporting import comparison
    from tests.composer.programs import load_behind_libraries

    monkeypatch.setattr(comparison, "subprocess", SimpleNamespace(run=load_behind_libraries, DEVNULL=None))


@pytest.fixture
def without_comparison() -> Iterator[None]:
    """Exports are written without the process that loads them. ``tests/composer/exporting`` compares them."""
    from tests.composer.exporting.models import uncompared

    with uncompared():
        yield
