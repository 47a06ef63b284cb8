"""Lengths and batches are read as they are meant, or refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.benching.options import ordered, read_numbers
from composer.errors import BenchError


def test_numbers() -> None:
    assert read_numbers(None, "--prefill") == ()
    assert read_numbers("1k, 512,64K,100", "--prefill") == (1024, 512, 65536, 100)
    assert read_numbers("0", "--prefill") == (0,)


@pytest.mark.parametrize("said", ["", "1q", "1,,2", "-1", "1.5k", "k", "1 k", "1kk", "٣", "1e3", "1,", "9" * 13, "9" * 5000])
def test_what_is_no_number(said: str) -> None:
    with pytest.raises(BenchError, match=r'^--decode: ".*is no number; expected such as 512,4k, where 4k is 4,096\.$'):
        read_numbers(said, "--decode")


@given(st.lists(st.integers(1, 10**6), min_size=1))
def test_each_once_and_in_order(numbers: list[int]) -> None:
    kept = ordered(read_numbers(",".join(map(str, numbers)), "--batch"), "--batch", "row")
    assert set(kept) == set(numbers)
    assert all(one < other for one, other in pairwise(kept))


def test_what_no_machine_holds_is_refused() -> None:
    assert ordered((2**31,), "--prefill", "token") == (2**31,)
    with pytest.raises(BenchError, match="--prefill 2147483649: say at most 2,147,483,648 tokens"):
        ordered((2**31 + 1,), "--prefill", "token")


def test_nothing_is_refused() -> None:
    with pytest.raises(BenchError, match="--batch 0: say at least 1 row"):
        ordered((4, 0), "--batch", "row")
