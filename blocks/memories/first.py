"""The first pairs of a document, kept unchanged: attention sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import PositiveInt

from blocks.flow import Pairs, Partial, Tokens
from blocks.legend import Float, Shape, Tensor, torch
from blocks.memories.base import Memory, Misplaced
from blocks.memories.stored_pairs import Holding, keep_present, pairs_of, state_of
from blocks.operation import EVERY, Call, Form, Slot, State
from blocks.part import Parameters
from blocks.softmax import dense
from blocks.tensors import has_numbers


class First(Holding):
    """Softmax over the first ``size`` pairs of the document. All other pairs are evicted at once.

    Above a window that discards, ``memory: [first, {kind: window, evict: drop}]``, this is StreamingLLM's window with sinks.
    Keys are rotated by their position in the text. StreamingLLM rotates them by their place in the cache, and so never beyond
    its size.
    """

    equation: ClassVar[str] = "o_t = Σ_s softmax_s(q_t·k_s / √D) v_s, s ≤ t, s < size"
    source: ClassVar[str] = "Xiao et al. 2023, arXiv:2309.17453"
    sifts: ClassVar[bool] = True
    kind: Literal["first"] = "first"
    size: PositiveInt = 4
    """Number of pairs."""

    @property
    def declared_size(self) -> int:
        return self.size

    def state(self, shape: Shape) -> dict[str, Slot]:
        return self.slots(shape, self.size, "first")

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        return self.size

    def flops(self, shape: Shape, tokens: int) -> int:
        return 2 * self.size * shape.heads * (shape.head_dim + shape.value_dim)

    def problem_between(self, above: Sequence[Memory], below: Mapping[str, Memory], *, edges: bool) -> Iterator[Misplaced]:
        size_above = max((memory.size for memory in above if isinstance(memory, First)), default=0)
        if size_above >= self.size:
            yield (
                f"the first {size_above} pairs are kept by another memory above, so this one is always empty; set `size` to more, "
                "or remove it",
                ("size",),
            )

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        return (Form(EVERY, "the first pairs, masked", self.compute_output),)

    def compute_output(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs
    ) -> tuple[tuple[Partial, Pairs], State]:
        """Compute the partial attention. Pairs that are not kept are evicted at their own tokens."""
        tokens, size = call.tokens, self.size
        entries = pairs_of(call.state, self.rotation).append(pairs.to_storage(self.rotation))
        is_first = pairs.present & (pairs.position < size)
        present = torch.cat((call.state["position"] >= 0, is_first), dim=1)
        entry, segment = torch.arange(present.shape[1], device=present.device), tokens.extend_segment(size)
        # Tokens see the kept pairs of their own document. Those of all documents in the row are laid side by side.
        max_kept = size if segment is None else self._count_kept(present, pairs, tokens)
        order = _first_indices(present, entry, max_kept)
        kept_pairs, is_kept = entries.map_tensors(lambda tensor: _pick(tensor, order)), _pick(present, order)
        visible = is_kept[:, None] & (order[:, None] <= entry[size:, None])
        if segment is not None:
            visible = visible & (segment[:, size:, None] == _pick(segment, order)[:, None])
            # The new state has the pairs of the document at the end of the row.
            in_last_document = present & (segment == tokens.last_segment())
            order = _first_indices(in_last_document, entry, size)
            is_kept = _pick(in_last_document, order)
        partial = dense(query, kept_pairs.key, kept_pairs.value, visible, call.shape.softcap)
        carried = kept_pairs if segment is None else entries.map_tensors(lambda tensor: _pick(tensor, order))
        carried = keep_present(
            carried.map_tensors(lambda tensor: tensor * is_kept.view(*is_kept.shape, *[1] * (tensor.dim() - 2))), is_kept
        )
        # The evicted pairs are the call's own; kept pairs are marked as absent for the memories below.
        evicted = replace(pairs, position=pairs.position.masked_fill(is_first, -1), known_present=False, tokens=None)
        return (partial, evicted), state_of(carried, call.state)

    def _count_kept(self, present: Tensor, pairs: Pairs, tokens: Tokens) -> int:
        """Return the most entries that a row keeps of all its documents, or all entries where Python cannot read numbers."""
        if not has_numbers(present):
            return present.shape[1]

        def count() -> int:
            return max(int(present.sum(1).max()), 1)

        # The call's own pairs are the same in all layers, so a GPU is waited for once.
        return tokens.once(("kept", self.size), count) if pairs.tokens is tokens else count()


def _first_indices(is_kept: Tensor, entry: Tensor, count: int) -> Tensor:
    """Return the indices of each row's first ``count`` kept entries, followed by entries that are not kept."""
    return torch.where(is_kept, entry, entry + is_kept.shape[1]).argsort(1)[:, :count]


def _pick(entries: Tensor, order: Tensor) -> Tensor:
    index = order.view(*order.shape, *[1] * (entries.dim() - 2)).expand(-1, -1, *entries.shape[2:])
    return entries.gather(1, index)
