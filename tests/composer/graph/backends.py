"""A test backend with one more form of the additive recurrence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from blocks.operation import Form, Setting, no_obstacle
from blocks.recurrences import additive
from composer.graph.lowering import compile_head
from composer.graph.wiring import build_graph

NAME = "own"
SAYS = "the loop of the test"


def forget() -> None:
    """Clear compiled programs with other forms."""
    for made in (build_graph, compile_head):
        made.cache_clear()  # pyright: ignore[reportFunctionMemberAccess]


@contextmanager
def own_backend(
    monkeypatch: pytest.MonkeyPatch, obstacle: Callable[[Setting], str | None] = no_obstacle
) -> Iterator[list[tuple[int, ...]]]:
    """Register the form for the block. Yields the shapes of the queries that it was called with."""
    calls: list[tuple[int, ...]] = []

    def loop(query: Any, *rest: Any) -> Any:
        calls.append(tuple(query.shape))
        return additive.naive(query, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(additive, "FORMS", (*additive.FORMS, Form(NAME, SAYS, loop, obstacle)))
        forget()
        try:
            yield calls
        finally:
            forget()
