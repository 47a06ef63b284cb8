"""Arguments of the kernels of whole heads, beside tensors. Nothing here imports Triton, which may not be installed: arguments are
made before the kernel is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from blocks.legend import Float, Int, Tensor


@dataclass(frozen=True)
class Fall:
    """The entries in the state, and those in the window: the tables of ``blocks.fused.window_and_state``.

    held: entries before those of the call. reach: F ≤ t + reach, where F entries have fallen by token t. entries: most that fall.
    """

    held: int
    reach: int
    entries: int
    rows: Int[Tensor, "B 4"]
    fallen: Int[Tensor, "B T"] | None = None
    start: Int[Tensor, "B E"] | None = None


@dataclass(frozen=True)
class Cache:
    """The contents of a sparse cache as a call begins: keys, values, features of the keys, and positions."""

    key: Float[Tensor, "B S H D"]
    value: Float[Tensor, "B S H D"]
    features: Float[Tensor, "B S M F"]
    position: Int[Tensor, "B S H"]


@dataclass(frozen=True)
class Chunks:
    """The beginnings and number of chunks, and the beginnings of documents, as in ``blocks.fused.cascade``. start: None where a row
    is one document."""

    size: int
    pieces: Int[Tensor, "B T"]
    rows: Int[Tensor, "B 2"]
    start: Int[Tensor, "B E"] | None


@dataclass(frozen=True)
class Scores:
    """The scores of pairs. keep: the kind of a score that depends on the state, or on the window, which ``worth`` then sums up; or
    ``pair``, a score that depends on neither; or ``place``, such a score that is not rounded. length: as in
    ``blocks.fused.cascade``."""

    keep: str
    worth: Float[Tensor, "B H n"] | None = None
    resolution: Float[Tensor, "B H n"] | None = None
    length: Float[Tensor, "B T H"] | None = None

    @property
    def error(self) -> str:
        """The kind of a score that looks at the window."""
        return "" if self.keep in ("self_recall", "relative_recall", "pair", "place") else self.keep
