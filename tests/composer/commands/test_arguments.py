"""Numbers between commas are read as they are meant, or refused with the option that they stand in."""

from __future__ import annotations

import pytest

from composer.commands.arguments import read_numbers
from composer.errors import BenchError, EvaluationError

NONE = ["", "1q", "1,,2", "-1", "1.5k", "k", "1 k", "1kk", "٣", "1e3", "1,", "9" * 13, "9" * 5000]


def test_numbers() -> None:
    assert read_numbers(None, "--prefill", BenchError) == ()
    assert read_numbers("1k, 512,64K,100", "--prefill", BenchError) == (1024, 512, 65536, 100)
    assert read_numbers("0", "--prefill", BenchError) == (0,)
    assert read_numbers("3,1,3", "--seeds", BenchError, thousands=False) == (3, 1, 3)


@pytest.mark.parametrize("said", NONE)
def test_what_is_no_number(said: str) -> None:
    with pytest.raises(BenchError, match=r'^--decode: ".*is no number; expected such as 512,4k, where 4k is 4,096\.$'):
        read_numbers(said, "--decode", BenchError)


@pytest.mark.parametrize("said", [*NONE, "1k"])
def test_what_is_no_seed(said: str) -> None:
    with pytest.raises(EvaluationError, match=r'^--seeds: ".*is no number; expected such as 0,1,2\.$'):
        read_numbers(said, "--seeds", EvaluationError, thousands=False)
