"""Gates that mix the source's attention and other heads, one for each key head, and the stage that learns them.

A layer's ``composed`` is replaced by ``GatedHeads``, which runs both on the same queries, keys and values. The gates alone learn:
the mixture keeps the source's next-token distribution, with a penalty on open gates (after DuoAttention, arXiv:2410.10819).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from blocks.operation import State
from composer.data.packing import IGNORED, Batch, PackedRows
from composer.graph.program import HeadInputs
from composer.model.attention import ComposedAttention
from composer.model.heads import ComposedHeads
from composer.model.hosts import attentions_by_layer
from composer.model.modeling import ComposedForCausalLM
from composer.selection.head_choice import KeyHead
from composer.spec.recipe import Stage
from composer.tasks.base import Sample, Split, Task, rng_of
from composer.tasks.writer import Writer
from composer.training.finetune import divergence
from composer.training.unit import Losses, Unit, add_gradients

GATES = "gates"
"""The name of the stage, and of its folder."""
START = 0.5
"""The first value of every gate."""
RATE = 0.08
"""The learning rate of gates. A cosine ends it at 0."""
PENALTY, PENALTY_RATE = 0.3, 0.02
"""The weight of the penalty on the mean gate: its start, which is also the least, and its learning rate."""
LEARNED_TOKENS = 64
"""Tokens of the text in a row that are compared, beside those of the answer."""


class Gates:
    """The gates of a model by key head. values: N, the parameter. current: the gates that layers use now."""

    def __init__(self, heads: Sequence[KeyHead], device: torch.device) -> None:
        self.heads = tuple(heads)
        self.values = nn.Parameter(torch.full((len(heads),), START, device=device))
        self.current: Tensor = self.values

    @contextmanager
    def fixed(self, gates: Tensor) -> Iterator[None]:
        """For the block, layers use these gates, N, without gradients."""
        before, self.current = self.current, gates
        try:
            yield
        finally:
            self.current = before


class GatedHeads(nn.Module):
    """Replaces a layer's ``ComposedHeads``. A call has no cache."""

    _mixes = False

    def __init__(self, source: ComposedHeads, other: ComposedHeads, gates: Gates, layer: int, key_heads: int) -> None:
        super().__init__()
        self.source, self.other, self.gates, self.key_heads = source, other, gates, key_heads
        self._places = [place for place, (at, _) in enumerate(gates.heads) if at == layer]
        self._numbers = [number for at, number in gates.heads if at == layer]

    def empty_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Nothing: both run from an empty state."""
        return {}

    def forward(self, inputs: HeadInputs, state: State, backend: str, in_place: bool) -> tuple[Tensor, State]:
        """As ``ComposedHeads`` has it."""
        current = self.gates.current
        open_or_closed = None if current.requires_grad else {float(gate) for gate in current[self._places]}
        if open_or_closed == {1.0}:
            return self._run(self.source, inputs, backend), {}
        exact, other = (self._run(heads, inputs, backend) for heads in (self.source, self.other))
        # Key heads without a gate keep the source's attention.
        own = torch.ones(self.key_heads, device=exact.device).index_put((torch.tensor(self._numbers),), current[self._places])
        weight = own.repeat_interleave(exact.shape[2] // self.key_heads)[:, None].to(exact.dtype)
        return torch.lerp(other, exact, weight), {}

    @staticmethod
    def _run(heads: ComposedHeads, inputs: HeadInputs, backend: str) -> Tensor:
        empty = heads.empty_state(inputs.value.shape[0], inputs.value.dtype, inputs.value.device)
        return heads(inputs, empty, backend, False)[0]


def gate_layers(model: ComposedForCausalLM, other: Mapping[int, ComposedHeads], heads: Sequence[KeyHead]) -> Gates:
    """Put gated heads into the layers of the source's model, in place. other: by layer, the heads to mix in."""
    gates = Gates(heads, model.device)
    layers: Mapping[int, ComposedAttention] = attentions_by_layer(model)
    for index in dict.fromkeys(layer for layer, _ in heads):
        attention = layers[index]
        mixture = GatedHeads(attention.composed, other[index], gates, index, attention.facts.key_heads)
        attention.composed = cast("ComposedHeads", mixture)
    return gates


class GateCourse:
    """A ``Course`` of the gates. share: of the gates that are to be open at the end.

    The loss of a step is KL(source ‖ mixture), the mean over the answer's tokens plus the mean over those of the text. Beside it,
    the mean gate has a penalty, whose weight rises as long as the mean is above ``share``. It is a parameter of the same optimiser,
    so that a checkpoint has it.
    """

    def __init__(self, model: ComposedForCausalLM, gates: Gates, stage: Stage, share: float) -> None:
        self._model, self._gates, self._share = model.requires_grad_(False).eval(), gates, share
        gates.values.requires_grad_()
        self._penalty = nn.Parameter(torch.full((1,), PENALTY, device=gates.values.device))
        groups = [(stage.lr, {"gates": gates.values}), (PENALTY_RATE, {"penalty": self._penalty})]
        self.units = [Unit(GATES, stage, groups)]

    def count(self, batch: Batch) -> int:
        return len(batch)

    def learn(self, batch: Batch, total: float) -> Losses:
        self.clamp()
        answer, text = divergences(self._model, self._gates, batch)
        mean = self._gates.values.mean()
        add_gradients((answer + text + float(self._penalty.detach()) * mean) * (len(batch) / total))
        self._penalty.grad = (self._share - mean.detach()).reshape(1)
        return {GATES: (answer + text).detach()}

    def judge(self, batch: Batch, total: float) -> Losses:
        return {}

    def warn_at_start(self, losses: Mapping[str, float]) -> Iterable[str]:
        return ()

    @torch.no_grad()
    def clamp(self) -> None:
        """Move the gates into 0 to 1, and the penalty to its least value or above."""
        self._gates.values.clamp_(0.0, 1.0)
        self._penalty.clamp_(min=PENALTY)


def divergences(model: ComposedForCausalLM, gates: Gates, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return KL(source ‖ mixture) in nats per token: the mean over answers, and over the text."""
    with torch.no_grad(), gates.fixed(torch.ones_like(gates.values)):
        wanted = logits_at(model, batch)
    apart = divergence(logits_at(model, batch).float(), wanted.float(), 1.0)
    is_answer = answers_in(batch)[:, 1:][batch.predicted]
    answer, text = (apart[some].mean() if bool(some.any()) else apart.new_zeros(()) for some in (is_answer, ~is_answer))
    return answer, text


def logits_at(model: ComposedForCausalLM, batch: Batch) -> Tensor:
    """Return the logits of the tokens that are compared, N V. Those of all others are not computed."""
    hidden = model.base(**batch.inputs(mask=True), use_cache=False).last_hidden_state
    return model.logits_of(hidden[:, :-1][batch.predicted][None])[0]


def answers_in(batch: Batch) -> Tensor:
    """The tokens of each row's first document, which has the needle, B T bool."""
    return (batch.position == 0).cumsum(1) == 1


def write_rows(rows: PackedRows, tasks: Sequence[Task], writer: Writer, split: Split, seed: int, count: int) -> PackedRows:
    """Return ``count`` rows, each of a sample of a task and the beginning of a row of texts. A label marks a token to compare.

    A sample has between a half and seven eighths of the row. Raises TaskError if a task has no sample of such a length.
    """
    length, made = rows.sequence, rows.take(np.arange(count) % len(rows))
    for row in range(count):
        rng = rng_of(seed, split, row)
        sample = tasks[row % len(tasks)].sample(rng, writer, rng.randint(length // 2, length * 7 // 8), split)
        _put(made, row, sample, np.random.default_rng(rng.getrandbits(64)))
    return made


def _put(rows: PackedRows, row: int, sample: Sample, numbers: np.random.Generator) -> None:
    """Put a sample before the text of a row, in place, and mark the tokens to compare."""
    ids, labels, position, valid = (array[row] for array in (rows.ids, rows.labels, rows.position, rows.valid))
    taken = len(sample.ids)
    left = len(ids) - taken
    for array in (ids, labels, position, valid):
        array[taken:] = array[:left].copy()
    ids[:taken], position[:taken], valid[:taken] = sample.ids, np.arange(taken), True
    labels[:taken] = np.where(sample.answer, sample.ids, IGNORED)
    learned = taken + np.flatnonzero(labels[taken:] != IGNORED)
    left_out = numbers.permutation(learned)[LEARNED_TOKENS:]
    labels[left_out] = IGNORED
    labels[0] = IGNORED
