"""Softmax attention over the means of blocks: a coarse view of the whole past."""

from __future__ import annotations

from typing import ClassVar, Literal

from blocks.flow import Pairs, Partial
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.blocks import Blocks, average_blocks, find_blocks_in_window, locate_blocks, sum_earlier_blocks
from blocks.memories.full import find_window
from blocks.operation import EVERY, Call, Form, Slot, State
from blocks.part import Parameters
from blocks.softmax import dense


class BlockMeans(Blocks):
    """Softmax over the means of the keys and values of whole blocks, each of ``size`` pairs that follow each other.

    Blocks begin at the first pair of a document, and queries see a block from its last pair on. Before the first block ends, the
    output is 0. A sliding window of the model hides blocks whose last pair is before it. The state has a mean per block, the sum of
    the newest block, and a position per token. NSA's blocks overlap, and it replaces the mean by a learned function with a code for
    each place in a block.
    """

    equation: ClassVar[str] = "o_t = Σ_b softmax_b(q_t·k′_b / √D) v′_b, k′_b and v′_b the means of a block of `size` pairs up to t"
    source: ClassVar[str] = "Yuan et al. 2025, arXiv:2502.11089 (NSA), section 3.3.1, with means as in flash-linear-attention"
    kind: Literal["block_means"] = "block_means"

    def state_after(self, shape: Shape, tokens: int) -> dict[str, Slot]:
        """Return the state after this many tokens. Keys are rotated."""
        slots = {"position": Slot((tokens,), "int64", -1, order="first")}
        for name, dim in (("key", shape.head_dim), ("value", shape.value_dim)):
            slots[name] = Slot((tokens // self.size, shape.key_heads, dim), "pairs", every=self.size)
            slots[f"{name}_sum"] = Slot((shape.key_heads, dim), "state")
        return slots

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        return tokens // self.size

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        return (Form(EVERY, "means of blocks, masked", self.compute_output),)

    def flops(self, shape: Shape, tokens: int) -> int:
        """The products with the means, and the sums of the newest block."""
        sizes = shape.head_dim + shape.value_dim
        return sizes * (2 * shape.heads * ((tokens + 1) // self.size) + shape.key_heads)

    def prefill_flops(self, shape: Shape, tokens: int) -> int:
        """Return the mean over the tokens."""
        sizes, blocks = shape.head_dim + shape.value_dim, sum_earlier_blocks(tokens + 1, self.size)
        return sizes * (2 * shape.heads * blocks // max(1, tokens) + shape.key_heads)

    def compute_output(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs
    ) -> tuple[tuple[Partial], State]:
        """Compute the partial attention."""
        past_state, length, means = call.state, query.shape[1], {}
        position, segment, last, new_position = self.enter(call, pairs)
        ends, block, _, first, _ = locate_blocks(position, segment, self.size)
        state = {"position": new_position}
        for name, new in (("key", pairs.rotate(self.rotation)), ("value", pairs.value)):
            means[name], state[name], state[f"{name}_sum"] = average_blocks(
                past_state[name], past_state[f"{name}_sum"], new, position, ends, block, first, last, self.size
            )
        column = torch.arange(position.shape[1], device=query.device)[-length:, None]
        visible = (ends[:, None] <= column) & (ends[:, None] >= first[:, -length:, None])
        place, limit = find_window(position, pairs, call)
        if place is not None and limit is not None:
            visible = visible & find_blocks_in_window(ends, place, limit)
        # One block that no query sees, as there may be none.
        key, value = (torch.nn.functional.pad(means[name], (0, 0, 0, 0, 0, 1)) for name in ("key", "value"))
        visible = torch.nn.functional.pad(visible, (0, 1))
        result = dense(query, key, value, visible, call.shape.softcap)
        return (Partial(result.output, result.lse),), state
