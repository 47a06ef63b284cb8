"""The order depends on the seed and the step alone, uses every row equally often, and is the same on every machine."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.data.packing import permutation, rows_of_step, steps_of
from composer.errors import DataError


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 9), st.integers(1, 30))
def test_row_counts_differ_by_at_most_one(count: int, batch: int, seed: int, steps: int) -> None:
    taken = [row for step in range(steps) for row in rows_of_step(step, batch, count, seed)]
    assert len(taken) == steps * batch
    seen = Counter(taken)
    assert set(seen) <= set(range(count))
    assert max(seen.values()) - min(seen[row] for row in range(count)) <= 1
    for epoch in range(len(taken) // count):
        assert sorted(taken[epoch * count : (epoch + 1) * count]) == list(range(count))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 9), st.permutations(range(10)))
def test_rows_of_a_step_do_not_depend_on_earlier_steps(count: int, batch: int, seed: int, order: list[int]) -> None:
    through = [rows_of_step(step, batch, count, seed) for step in range(10)]
    permutation.cache_clear()
    assert all(rows_of_step(step, batch, count, seed) == through[step] for step in order)


def test_the_order_is_pinned() -> None:
    """The order is fixed, so that a run continues on another day, machine or numpy version."""
    assert [rows_of_step(step, 3, 7, 5) for step in range(4)] == [[2, 4, 3], [1, 5, 0], [6, 4, 5], [1, 6, 0]]
    assert rows_of_step(0, 7, 7, -1) == rows_of_step(0, 7, 7, 2**64 - 1)


def test_epochs_and_seeds_have_different_orders() -> None:
    orders = {tuple(rows_of_step(step, 30, 30, seed)) for step in range(3) for seed in range(3)}
    assert len(orders) == 9


@pytest.mark.parametrize(
    ("epochs", "count", "batch", "steps"),
    [(1, 10, 5, 2), (1, 11, 5, 3), (2, 11, 5, 5), (0.1, 30, 3, 1), (0.5, 7, 2, 2), (3, 1, 8, 1)],
)
def test_steps_cover_the_requested_epochs(epochs: float, count: int, batch: int, steps: int) -> None:
    assert steps_of(epochs, count, batch) == steps
    seen = Counter(row for step in range(steps) for row in rows_of_step(step, batch, count, 0))
    assert min(seen[row] for row in range(count)) >= int(epochs)


def test_no_rows_and_empty_batches_are_refused() -> None:
    with pytest.raises(DataError, match="no row"):
        rows_of_step(0, 4, 0, 0)
    with pytest.raises(DataError, match="batch of 0"):
        steps_of(1, 4, 0)
