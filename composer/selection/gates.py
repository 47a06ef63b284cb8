"""Gates that mix the source's attention and other heads, one for each key head, and the stage that learns them.

A layer's ``composed`` is replaced by ``GatedHeads``, which runs both on the same queries, keys and values. The gates alone learn:
the mixture keeps the source's next-token distribution, with a penalty on open gates (after DuoAttention, arXiv:2410.10819).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from blocks.operation import State
from composer.data.packing import Batch, PackedRows
from composer.graph.program import HeadInputs
from composer.model.attention import ComposedAttention
from composer.model.heads import ComposedHeads
from composer.model.hosts import attentions_by_layer
from composer.model.modeling import ComposedForCausalLM
from composer.selection.choice import KeyHead
from composer.selection.judged_rows import compare, logits_at
from composer.spec.recipe import Stage
from composer.training.transfer import AttentionTarget, run_teacher
from composer.training.unit import Course, Losses, Unit, add_gradients

GATES = "gates"
"""The name of the stage, and of its folder."""
START = 0.5
"""The first value of every gate."""
RATE = 0.08
"""The learning rate of gates. A cosine ends it at 0."""
PENALTY, PENALTY_RATE = 0.3, 0.02
"""The weight of the penalty on the mean gate: its start, which is also the least, and its learning rate."""


class Gates:
    """The gates of a model by key head.

    - values: N, the parameter. current: the gates that layers use now.
    - key_heads: the number of key heads by layer, of all layers with attention.
    - ablates: closed gates set the output of a key head to 0, in place of another head's.
    - recorded: if not None, each layer stores the output of the source's heads here, B T H D.
    - replayed: if not None, the output of each layer's heads, B T H D. Nothing is computed from queries, keys and values.
    """

    def __init__(self, heads: Sequence[KeyHead], device: torch.device) -> None:
        self.heads = tuple(heads)
        self.values = nn.Parameter(torch.full((len(heads),), START, device=device))
        self.current: Tensor = self.values
        self.key_heads: dict[int, int] = {}
        self.ablates = False
        self.recorded: dict[int, Tensor] | None = None
        self.replayed: Mapping[int, Tensor] | None = None

    @contextmanager
    def fixed(self, gates: Tensor, *, ablates: bool = False) -> Iterator[None]:
        """For the block, layers use these gates, N, without gradients."""
        before, (self.current, self.ablates) = (self.current, self.ablates), (gates, ablates)
        try:
            yield
        finally:
            self.current, self.ablates = before

    def record(self, run: Callable[[], Tensor]) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the result of a call of the source's model, and the output of each layer's heads."""
        recorded: dict[int, Tensor] = {}
        self.recorded = recorded
        try:
            with self.fixed(torch.ones_like(self.values)):
                return run(), recorded
        finally:
            self.recorded = None

    @contextmanager
    def replaying(self, heads: Mapping[int, Tensor]) -> Iterator[None]:
        """For the block, each layer's heads return these outputs."""
        self.replayed = heads
        try:
            yield
        finally:
            self.replayed = None


class GatedHeads(nn.Module):
    """Replaces a layer's ``ComposedHeads``. A call has no cache."""

    _mixes = False

    def __init__(self, source: ComposedHeads, other: ComposedHeads, gates: Gates, layer: int) -> None:
        super().__init__()
        self.source, self.other, self.gates, self.layer = source, other, gates, layer
        self._places = [place for place, (at, _) in enumerate(gates.heads) if at == layer]
        self._numbers = [number for at, number in gates.heads if at == layer]

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Nothing: both run from an empty state."""
        return {}

    def forward(self, inputs: HeadInputs, state: State, backend: str, in_place: bool) -> tuple[Tensor, State]:
        """As ``ComposedHeads`` has it."""
        if self.gates.replayed is not None:
            return self.gates.replayed[self.layer], {}
        current = self.gates.current
        exact = self._run(self.source, inputs, backend)
        if not self._places or (not current.requires_grad and bool((current[self._places] == 1.0).all())):
            if self.gates.recorded is not None:
                self.gates.recorded[self.layer] = exact
            return exact, {}
        other = torch.zeros_like(exact) if self.gates.ablates else self._run(self.other, inputs, backend)
        # Key heads without a gate keep the source's attention.
        key_heads = self.gates.key_heads[self.layer]
        head_gates = torch.ones(key_heads, device=exact.device).index_put((torch.tensor(self._numbers),), current[self._places])
        weight = head_gates.repeat_interleave(exact.shape[2] // key_heads)[:, None].to(exact.dtype)
        return torch.lerp(other, exact, weight), {}

    def run_other(self, inputs: HeadInputs, backend: str) -> Tensor:
        """Return the output of the other heads alone, B T H D."""
        return self._run(self.other, inputs, backend)

    @staticmethod
    def _run(heads: ComposedHeads, inputs: HeadInputs, backend: str) -> Tensor:
        empty = heads.empty_state(inputs.value.shape[0], inputs.value.dtype, inputs.value.device)
        return heads(inputs, empty, backend, False)[0]


def gate_layers(model: ComposedForCausalLM, other: Mapping[int, ComposedHeads], heads: Sequence[KeyHead]) -> Gates:
    """Put gated heads into the layers of the source's model, in place. other: by layer, the heads to mix in."""
    gates = Gates(heads, model.device)
    layers: Mapping[int, ComposedAttention] = attentions_by_layer(model)
    for index, attention in layers.items():
        gates.key_heads[index] = attention.facts.key_heads
        mixture = GatedHeads(attention.composed, other[index], gates, index)
        attention.composed = cast("ComposedHeads", mixture)
    return gates


class GateCourse(Course):
    """The course of the gates. share: of the gates that are to be open at the end.

    The loss of a step is KL(source ‖ mixture), the mean over the answer's tokens plus the mean over those of the text. Beside it,
    the mean gate has a penalty, whose weight rises as long as the mean is above ``share``. It is a parameter of the same optimiser,
    so that a checkpoint has it.
    """

    def __init__(self, model: ComposedForCausalLM, gates: Gates, stage: Stage, share: float) -> None:
        self._model, self._gates, self._share = model.requires_grad_(False).eval(), gates, share
        gates.values.requires_grad_()
        self._penalty = nn.Parameter(torch.full((1,), PENALTY, device=gates.values.device))
        groups = [(stage.lr, {"gates": gates.values}), (PENALTY_RATE, {"penalty": self._penalty})]
        self.units = [Unit(GATES, stage, groups, may_rise=True)]

    def count(self, batch: Batch) -> int:
        return len(batch)

    def compute_gradients(self, batch: Batch, total: float) -> Losses:
        self.clamp()
        answer, text = divergences(self._model, self._gates, batch)
        mean = self._gates.values.mean()
        add_gradients((answer + text + float(self._penalty.detach()) * mean) * (len(batch) / total))
        self._penalty.grad = (self._share - mean.detach()).reshape(1)
        return {GATES: (answer + text).detach()}

    def compute_losses(self, batch: Batch, total: float) -> Losses:
        return {}

    @torch.no_grad()
    def clamp(self) -> None:
        """Move the gates into 0 to 1, and the penalty to its least value or above."""
        self._gates.values.clamp_(0.0, 1.0)
        self._penalty.clamp_(min=PENALTY)


def divergences(model: ComposedForCausalLM, gates: Gates, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return KL(source ‖ mixture) in nats per token: the mean over answers, and over the text."""
    with torch.no_grad(), gates.fixed(torch.ones_like(gates.values)):
        wanted = logits_at(model, batch)
    compared = compare(logits_at(model, batch), wanted, batch)
    answer, text = (apart.mean() if len(apart) else apart.new_zeros(()) for apart in (compared.answer, compared.text))
    return answer, text


def logits_with(model: ComposedForCausalLM, gates: Gates, current: Tensor, *, ablates: bool = False) -> Callable[[Batch], Tensor]:
    """Return the function that computes the logits of ``logits_at`` with these gates, N. ablates: as in ``Gates``."""

    def logits(batch: Batch) -> Tensor:
        with gates.fixed(current, ablates=ablates):
            return logits_at(model, batch)

    return logits


def head_errors(model: ComposedForCausalLM, gates: Gates, rows: PackedRows) -> list[float]:
    """Return, for each key head, ‖other heads - source's heads‖² / ‖source's heads‖² on the source's hidden states."""
    squares: dict[KeyHead, list[Tensor]] = {head: [] for head in gates.heads}

    def compare_layer(index: int, attention: ComposedAttention, target: AttentionTarget) -> None:
        mixture: Any = attention.composed
        if isinstance(mixture, GatedHeads):
            assert target.inputs is not None, "the source's attention has run"
            differing = mixture.run_other(target.inputs, model.base.backend) - target.heads
            sums = [_squares_of(states, target, gates.key_heads[index]) for states in (differing, target.heads)]
            for layer, number in gates.heads:
                if layer == index:
                    squares[layer, number].append(torch.stack([head_sums[number] for head_sums in sums]))

    with gates.fixed(torch.ones_like(gates.values)):
        for part in rows.in_order(1):
            run_teacher(model, part.to(model.device), compare_layer)
    totals = (torch.stack(head_sums).sum(0) for head_sums in squares.values())
    return [float(wrong / total.clamp(min=torch.finfo(torch.float32).tiny)) for wrong, total in totals]


def _squares_of(states: Tensor, target: AttentionTarget, key_heads: int) -> Tensor:
    """Return the sum of squares of heads B T H D at real tokens, by key head."""
    valid = target.tokens.valid
    squares = states.float().square().sum(-1)
    squares = squares if valid is None else squares.masked_fill(~valid[..., None], 0.0)
    return squares.sum((0, 1)).unflatten(0, (key_heads, -1)).sum(1)
