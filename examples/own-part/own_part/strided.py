"""A memory of every n-th pair: a thin sample of the past, as far back as it reaches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

from pydantic import PositiveInt

from blocks.flow import Pairs, Partial
from blocks.kernels import TRITON_PACKAGE, Kernel, gpu_obstacle
from blocks.legend import Bool, Float, Int, Shape, Tensor, torch
from blocks.memories.stored_pairs import Holding, keep_present, pairs_of, state_of
from blocks.operation import REFERENCE, TRITON, Call, Form, Setting, Slot, State
from blocks.part import Parameters
from blocks.softmax import dense
from blocks.tensors import take

ATTEND = Kernel("own_part.kernel", "attend", TRITON_PACKAGE)


class Strided(Holding):
    """Softmax over the last ``size`` pairs whose position is a multiple of ``every``. The memory evicts all others at once.

    It evicts one pair at each token: the token's own pair, or the oldest that it holds if the token's own pair is kept.
    """

    equation: ClassVar[str] = "o_t = Σ_s softmax_s(q_t·k_s / √D) v_s, s ≤ t, every | s, of these the last size"
    source: ClassVar[str] = "examples/own-part"
    kind: Literal["own_part.strided"] = "own_part.strided"
    size: PositiveInt = 64
    """Pairs that it holds."""
    every: PositiveInt = 4
    """Positions from one pair that it holds to the next."""

    @property
    def declared_size(self) -> int:
        return self.size

    def state(self, shape: Shape) -> dict[str, Slot]:
        return self.slots(shape, self.size)

    def pairs_held(self, shape: Shape, tokens: int) -> float:
        return self.size

    def flops(self, shape: Shape, tokens: int) -> int:
        return 4 * self.size * shape.heads * shape.head_dim

    def forms(self, shape: Shape) -> tuple[Form, ...]:
        return (
            Form(
                TRITON,
                "each query against the pairs that it sees, in one pass",
                partial(self.compute_output, attend=attend_by_kernel),
                obstacle=obstacle,
                missing=ATTEND.missing,
                refuses=True,
            ),
            Form(REFERENCE, "the pairs that each query sees, gathered", partial(self.compute_output, attend=gather_and_attend)),
        )

    def compute_output(
        self, parameters: Parameters, call: Call, *, query: Float[Tensor, "B T H D"], pairs: Pairs, attend: Callable[..., Partial]
    ) -> tuple[tuple[Partial, Pairs], State]:
        tokens, size = call.tokens, self.size
        entries = pairs_of(call.state, self.rotation).append(pairs.to_storage(self.rotation))
        kept = pairs.present & (pairs.position % self.every == 0)
        # The pairs in the state count from 1 to size, also where there are fewer. Each that is kept counts one more.
        count = torch.cat((torch.ones_like(call.state["position"]), kept.long()), dim=1).cumsum(1)
        last, age = count[:, size:], torch.arange(size, device=count.device)
        held = torch.cat((entries.position[:, :size] >= 0, kept), dim=1)
        entry = torch.searchsorted(count, (last[..., None] - age).flatten(1))
        seen = take(held, entry)
        segment = tokens.extend_segment(size)
        if segment is not None:
            seen = seen & (take(segment, entry) == segment[:, size:].repeat_interleave(size, dim=1))
        shape = (*last.shape, size)
        result = attend(query, entries.key, entries.value, entry.view(shape), seen.view(shape), call.shape.softcap)

        oldest, column = torch.searchsorted(count, last - size), torch.arange(size, count.shape[1], device=count.device)
        evicted_entry = torch.where(kept, oldest, column)
        evicted = entries.map_tensors(lambda tensor: take(tensor, evicted_entry))
        present = evicted.present & pairs.present
        if segment is not None:
            present = present & (take(segment, evicted_entry) == segment[:, size:])
        evicted = keep_present(evicted, present)

        carried_entry = torch.searchsorted(count, count[:, -1:] - age.flip(0))
        carried = entries.map_tensors(lambda tensor: take(tensor, carried_entry))
        if segment is not None:
            carried = keep_present(carried, take(segment, carried_entry) == tokens.last_segment())
        return (result, evicted), state_of(carried, call.state)


def gather_and_attend(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K D"],
    entry: Int[Tensor, "B T n"],
    seen: Bool[Tensor, "B T n"],
    softcap: float | None = None,
) -> Partial:
    """Return the softmax of each query over its ``n`` entries, if they are visible."""
    batch, length, count = entry.shape
    keys, values = (take(states, entry.flatten(1)).view(batch * length, count, *states.shape[2:]) for states in (key, value))
    rows = dense(query.flatten(0, 1)[:, None], keys, values, seen.flatten(0, 1)[:, None], softcap)
    results = (rows.output, rows.lse, rows.maximum)
    output, lse, maximum = (tensor.view(batch, length, *tensor.shape[2:]) for tensor in results if tensor is not None)
    return Partial(output, lse, maximum=maximum)


def obstacle(setting: Setting) -> str | None:
    """Return why the kernel cannot run in a setting, or None."""
    reasons = {
        "it has no gradients": setting.gradients,
        "it returns no largest logit, and the read needs it": setting.needs_maximum,
        "it caps no logits": setting.capped,
    }
    return next((reason for reason, holds in reasons.items() if holds), None) or gpu_obstacle(setting)


def attend_by_kernel(
    query: Float[Tensor, "B T H D"],
    key: Float[Tensor, "B S K D"],
    value: Float[Tensor, "B S K D"],
    entry: Int[Tensor, "B T n"],
    seen: Bool[Tensor, "B T n"],
    softcap: float | None = None,
) -> Partial:
    """Compute ``gather_and_attend`` by this package's own kernel."""
    output, lse = ATTEND(query, key.to(query.dtype), value.to(query.dtype), entry, seen)
    return Partial(output, lse)
