"""The rows of each step. They depend on the seed and the step only, so that a continued run uses the same ones."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from composer.errors import DataError

OF_DOCUMENTS = 2**64 - 1
"""The random stream that shuffles documents before they are packed. Epochs have the numbers from 0, below it."""


@lru_cache(maxsize=4)
def permutation(count: int, seed: int, stream: int) -> np.ndarray:
    """``count`` int64, the numbers 0 … count - 1 in the order of this seed and stream; read-only."""
    # numpy keeps the bits of its bit generators from version to version, but not the numbers of a `Generator`.
    bits = np.random.Philox(key=np.array([seed % 2**64, stream], dtype=np.uint64)).random_raw(count)
    order = np.argsort(np.asarray(bits), kind="stable")
    order.setflags(write=False)
    return order


def rows_of_step(step: int, batch: int, count: int, seed: int) -> list[int]:
    """Return the ``batch`` rows, out of ``count``, of step ``step`` (from 0). Each epoch has its own permutation. If an epoch ends
    inside a batch, rows of the next one fill it: after any number of steps, two rows differ by at most one use. Raises DataError if
    ``count`` or ``batch`` is 0.
    """
    _needs(count, batch)
    rows, first = [], step * batch
    while len(rows) < batch:
        epoch, place = divmod(first + len(rows), count)
        rows += permutation(count, seed, epoch)[place : place + batch - len(rows)].tolist()
    return rows


def steps_of(epochs: float, count: int, batch: int) -> int:
    """Return the fewest steps of ``batch`` rows after which ``count`` rows have been seen ``epochs`` times. Raises DataError."""
    _needs(count, batch)
    # By the decimal digits of the float: 0.1 epochs of 30 rows are 3 rows, not a little more.
    return math.ceil(Fraction(str(epochs)) * count / batch)


def _needs(count: int, batch: int) -> None:
    if count < 1:
        raise DataError("the data are empty: there is no row")
    if batch < 1:
        raise DataError(f"a batch of {batch} rows; it needs at least 1")
