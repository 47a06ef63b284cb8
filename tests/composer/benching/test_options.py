"""Lengths and batch sizes are sorted without duplicates, or rejected."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.benching.options import order
from composer.errors import BenchError


@given(st.lists(st.integers(1, 10**6), min_size=1))
def test_values_are_unique_and_sorted(numbers: list[int]) -> None:
    kept = order(numbers, "--batch")
    assert set(kept) == set(numbers)
    assert all(option < other for option, other in pairwise(kept))


def test_impossible_sizes_are_refused() -> None:
    assert order((2**31,), "--prefill") == (2**31,)
    with pytest.raises(BenchError, match="--prefill: expected a whole number of at most 2,147,483,648, got 2147483649"):
        order((2**31 + 1,), "--prefill")


def test_sizes_below_1_are_refused() -> None:
    with pytest.raises(BenchError, match=r"--batch: expected a whole number of at least 1, got 0"):
        order((4, 0), "--batch")
