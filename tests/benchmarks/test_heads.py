"""The heads of ``benchmarks/heads.py`` run forward, backward and token by token."""

from __future__ import annotations

import pytest

from benchmarks.heads import CONTESTANTS, SPECS, WAYS, decode, time_in_turn


@pytest.mark.parametrize("way", WAYS)
def test_every_head_is_timed_once_per_round(way: str) -> None:
    seconds = time_in_turn(tuple(CONTESTANTS), 128, 1, way)
    assert all(len(taken) == 1 and taken[0] > 0 for taken in seconds.values())


def test_every_head_decodes() -> None:
    taken = decode([name for name in SPECS if name != "latte-macchiato"], 128, steps=2)
    assert min(taken.values()) > 0
