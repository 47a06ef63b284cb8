"""Sizes and times are written in readable units."""

from __future__ import annotations

import pytest

from composer.reporting.words import plural, size


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (70 * 2**20, "70.0 MiB"), (2**41, "2.0 TiB")]
)
def test_sizes_have_binary_units(value: int, text: str) -> None:
    assert size(value) == text


def test_nouns_are_plural_unless_the_count_is_1() -> None:
    assert [plural(count, "thread") for count in (0, 1, 1000)] == ["0 threads", "1 thread", "1,000 threads"]
