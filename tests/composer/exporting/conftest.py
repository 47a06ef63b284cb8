"""Programs of heads are recorded once for all exports."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from composer.exporting import head_class


@pytest.fixture(autouse=True, scope="session")
def recorded_once() -> Iterator[None]:
    """Keep what is recorded by head, shape and place. Recording takes half of the time of an export, and families share heads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_class, "record", cache(head_class.record))
        yield
