"""Bounded softmax: exact attention over pairs that are held as they are, returned with its log-sum-exp.

    query  B T H D      key  B S K D      value  B S K D      output  B T H D, lse  B T H

Logits are q·k / √D and are computed in the accumulating dtype. A query that sees nothing gets output 0 and lse -inf.
"""

from __future__ import annotations

from blocks.softmax.dense import dense, mask_bias, single
from blocks.softmax.native import native, native_obstacle, native_step, native_step_obstacle
from blocks.softmax.windowed import windowed

__all__ = ["dense", "mask_bias", "native", "native_obstacle", "native_step", "native_step_obstacle", "single", "windowed"]
