"""Test helper for a rule: it rejects its case with the place and the remedy, and accepts the nearest valid case."""

from __future__ import annotations

from typing import Any

import pytest

from composer.errors import GraphError, SpecError
from composer.model.head import Head
from composer.spec.dimensions import Dimensions
from tests.composer.graph.heads import SIZE, resolved

Case = tuple[dict[str, Any], str | tuple[str | int, ...], str, dict[str, Any]]
"""The bad head; where its mistake is, in the head or, from a number on, in its memories; part of the advice; the good head."""


def refused(head: dict[str, Any], size: Dimensions = SIZE) -> GraphError:
    with pytest.raises(GraphError) as caught:
        resolved(head, size)
    return caught.value


def assert_refused(case: Case) -> None:
    bad, where, advice, good = case
    error = refused(bad)
    steps = (where,) if isinstance(where, str) else where
    assert error.path == ("head", *(("memory",) if isinstance(steps[0], int) else ()), *steps)
    assert advice in str(error)
    assert isinstance(error, SpecError)
    Head(resolved(good).heads["head"], SIZE.shape(4))
