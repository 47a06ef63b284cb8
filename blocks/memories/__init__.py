"""Memories: they store past pairs. A new one is added to the catalogue in one line below."""

from __future__ import annotations

from typing import Annotated

from blocks.memories.base import Memory
from blocks.memories.block_means import BlockMeans
from blocks.memories.compressed import Compressed
from blocks.memories.delta import Delta
from blocks.memories.first import First
from blocks.memories.full import Full
from blocks.memories.gdn2 import Gdn2
from blocks.memories.latents import Latents
from blocks.memories.log_linear import LogLinear
from blocks.memories.lola import LOLA
from blocks.memories.mesa import Mesa
from blocks.memories.meta import Meta
from blocks.memories.rwkv7 import Rwkv7
from blocks.memories.selected_blocks import SelectedBlocks
from blocks.memories.sparse import Sparse
from blocks.memories.sparse_above_state import SPARSE_ABOVE_STATE
from blocks.memories.state import StateMemory
from blocks.memories.trapezoid import Trapezoid
from blocks.memories.window import Window
from blocks.memories.window_above_state import WINDOW_ABOVE_STATE
from blocks.registry import Role

MEMORIES = Role(
    "memory", Memory, Full, First, Meta, Window, Sparse, StateMemory, Delta, Latents, Rwkv7, Gdn2, Mesa, LogLinear, Compressed,
    Trapezoid, SelectedBlocks, BlockMeans,
)  # fmt: skip
MemoryConfig = Annotated[Memory, MEMORIES]
PATTERNS = (LOLA, WINDOW_ABOVE_STATE, SPARSE_ABOVE_STATE)
"""Patterns of memories that one form computes together. Those that cover the most memories are first."""
