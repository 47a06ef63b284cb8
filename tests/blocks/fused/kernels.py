"""Test kernels around device functions that no product kernel consists of alone."""

from __future__ import annotations

import triton
import triton.language as tl

from blocks.fused.lola_output import choose_kept


@triton.jit
def choose(score, resolution, kept, COUNT: tl.constexpr, S: tl.constexpr, EB: tl.constexpr):
    """For each row, return the places of the kept entries."""
    place = tl.arange(0, EB)
    contends, row = place < COUNT, tl.program_id(0)
    worth = tl.load(score + row * COUNT + place, mask=contends, other=0.0)
    within = tl.load(resolution + row * COUNT + place, mask=contends, other=0.0)
    stays, slot = choose_kept(worth, within, contends, S, EB)
    tl.store(kept + row * S + slot, place, mask=stays)
