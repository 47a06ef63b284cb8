"""What kernels of whole heads are handed beside tensors. Nothing here takes Triton: it is made before the kernel is looked for,
which may not be there.
"""

from __future__ import annotations

from dataclasses import dataclass

from blocks.legend import Float, Int, Tensor


@dataclass(frozen=True)
class Fall:
    """Which entries are in the state, and which in the window: the tables of ``blocks.fused.window_and_state``.

    held: entries before those of the call. reach: F ≤ t + reach, F of the entries being fallen with token t. entries: at most so
    many fall.
    """

    held: int
    reach: int
    entries: int
    rows: Int[Tensor, "B 4"]
    fallen: Int[Tensor, "B T"] | None = None
    start: Int[Tensor, "B E"] | None = None


@dataclass(frozen=True)
class Cache:
    """What a sparse cache holds as a call begins: keys, values, features of the keys, and positions."""

    key: Float[Tensor, "B S H D"]
    value: Float[Tensor, "B S H D"]
    features: Float[Tensor, "B S M F"]
    position: Int[Tensor, "B S H"]


@dataclass(frozen=True)
class Chunks:
    """Where they begin, how many, and where documents do, as ``blocks.fused.cascade`` says. start: None where a row is
    one document."""

    size: int
    pieces: Int[Tensor, "B T"]
    rows: Int[Tensor, "B 2"]
    start: Int[Tensor, "B E"] | None


@dataclass(frozen=True)
class Scores:
    """What a pair is worth. keep: the kind of a score that looks at the state, or at the window, which worth then sums up; or
    ``pair``, a score that looks at neither, and ``place``, one of them that is not rounded. length: as
    ``blocks.fused.cascade`` says."""

    keep: str
    worth: Float[Tensor, "B H n"] | None = None
    resolution: Float[Tensor, "B H n"] | None = None
    length: Float[Tensor, "B T H"] | None = None

    @property
    def error(self) -> str:
        """The kind of a score that looks at the window."""
        return "" if self.keep in ("self_recall", "relative_recall", "pair", "place") else self.keep
