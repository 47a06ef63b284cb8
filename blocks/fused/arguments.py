"""Arguments, beside tensors, of the kernels that compute whole heads.

Nothing here imports Triton, which may not be installed: arguments are built before the kernel is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from blocks.legend import Float, Int, Tensor


@dataclass(frozen=True)
class Evictions:
    """Which entries are in the state, and which in the window: the tables of ``blocks.fused.window_and_state``.

    past_length: number of entries before those of the call. reach: F ≤ t + reach, where F entries are evicted by token t. entries:
    the largest number of evicted entries.
    """

    past_length: int
    reach: int
    entries: int
    rows: Int[Tensor, "B 4"]
    evicted: Int[Tensor, "B T"] | None = None
    start: Int[Tensor, "B E"] | None = None


@dataclass(frozen=True)
class Cache:
    """The contents of a sparse cache at the beginning of a call: keys, values, features of the keys, and positions."""

    key: Float[Tensor, "B S H D"]
    value: Float[Tensor, "B S H D"]
    features: Float[Tensor, "B S M F"]
    position: Int[Tensor, "B S H"]


@dataclass(frozen=True)
class Chunks:
    """The start and number of chunks, and the starts of documents, as in ``blocks.fused.lola``. start: None if each row is
    one document."""

    size: int
    chunk_starts: Int[Tensor, "B T"]
    rows: Int[Tensor, "B 2"]
    start: Int[Tensor, "B E"] | None


@dataclass(frozen=True)
class Scores:
    """The scores of pairs.

    keep: the kind of a score that depends on the state or on the window; errors in the window are summed in ``worth``. ``pair``
    is a score that depends on neither; ``place`` is such a score without rounding errors. length: as in
    ``blocks.fused.lola``.
    """

    keep: str
    worth: Float[Tensor, "B H n"] | None = None
    resolution: Float[Tensor, "B H n"] | None = None
    length: Float[Tensor, "B T H"] | None = None

    @property
    def error(self) -> str:
        """The kind of a score that depends on the window; empty for other scores."""
        return "" if self.keep in ("self_recall", "relative_recall", "pair", "place") else self.keep
