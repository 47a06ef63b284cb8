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
