"""The start of attention transfer: parts compute their first values from the teacher, and the sizes of outputs are compared.

The teacher processes a few rows once. As soon as a layer of the teacher has run, the student's layer is calibrated and the
measurements are dropped, so that memory holds the attention weights of one layer and some tokens only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from blocks.calibration import Attended, OutputSizes, States
from blocks.memories.base import Memory
from blocks.operation import Kind
from blocks.positions import NoPosition
from blocks.tensors import repeat_heads
from composer.data.packing import PackedRows, rows_of_step
from composer.graph.graph import Node, takers_of
from composer.graph.program import HeadInputs
from composer.model.attention import ComposedAttention
from composer.model.head import Anatomy, Head, anatomy
from composer.model.head_visits import visiting_heads
from composer.model.hosts import attentions
from composer.model.implicit_attention import ImplicitAttention, implicit_attention
from composer.model.modeling import ComposedForCausalLM
from composer.model.stepwise import pieces
from composer.reporting.words import plural
from composer.spec.recipe import Transfer
from composer.training.transfer import AttentionTarget, heads_output, run_teacher
from composer.weights.record import Start

FAR = 4.0
"""The ratio of the student's size to the teacher's, or its inverse, above which a start is reported."""


class LayerSizes(NamedTuple):
    """The sizes of the outputs of a layer's heads."""

    layer: int
    student: float
    teacher: float

    @property
    def distance(self) -> float:
        """The ratio of the larger size to the smaller one."""
        smaller, larger = sorted((self.student, self.teacher))
        return larger / smaller if smaller else math.inf if larger else 1.0


@torch.no_grad()
def scale_layer(
    name: str, student: ComposedAttention, target: AttentionTarget, backend: str, untrained: Collection[str]
) -> tuple[list[str], LayerSizes]:
    """Scale the parts of one layer to the teacher's output. Return the names of the scaled parts, and the sizes after that.

    name: the full name of the layer's attention. untrained: the full names of the parameters that may be scaled.
    """
    teacher, results, scaled = _mean_squares(target.heads, target), _measure(student, target, backend), list[str]()
    for head_name, head in student.composed.named_children():
        assert isinstance(head, Head), "a layer's heads are its groups"
        here = list(anatomy(head).numbers)
        part = _rescale(head, OutputSizes(results[here], teacher[here]), f"{name}.composed.{head_name}", untrained)
        scaled += [] if part is None else [f"{name}.composed.{head_name}.{part}"]
    if scaled:
        results = _measure(student, target, backend)
    return scaled, LayerSizes(student.layer, *OutputSizes(results, teacher).roots)


def _rescale(head: Head, sizes: OutputSizes, place: str, untrained: Collection[str]) -> str | None:
    """Scale the last part of a head that can scale its output; its name, or None if there is none."""
    parts = anatomy(head)
    for node in reversed(parts.graph.parts):
        assert node.part is not None, "inputs and output of the head are no parts"
        module = parts.parts[node.module]
        if all(f"{place}.{node.module}.{parameter}" in untrained for parameter, _ in module.named_parameters()):
            values = module(node.part.rescale, sizes, node.shape)
            for parameter, value in values.items():
                module.get_parameter(parameter).copy_(value)
            if values:
                return node.module
    return None


def _measure(student: ComposedAttention, target: AttentionTarget, backend: str) -> Tensor:
    return _mean_squares(heads_output(student, target, backend), target)


def _mean_squares(output: Tensor, target: AttentionTarget) -> Tensor:
    """Return the mean squares of an output B T H V over tokens that are no padding, H V. Squares of raw numerators need float64."""
    valid = target.tokens.valid
    return (output.flatten(0, 1) if valid is None else output[valid]).double().square().mean(0)


def warn_of_sizes(sizes: Sequence[LayerSizes], stage: Transfer) -> Iterator[str]:
    """Yield the warning for layers whose outputs start far from the teacher's."""
    far = [layer for layer in sizes if layer.distance > FAR]
    if far:
        worst = max(far, key=lambda layer: layer.distance)
        remedy = "Add `output: norm` to the head, whose weights start at the teacher's size."
        if stage.start == "parts":
            remedy = f"Leave recipe.transfer.start out, so that norms and gates start at the teacher's size. {remedy}"
        yield (
            f"In {len(far):,} of {plural(len(sizes), 'layer')} the heads' outputs start more than {FAR:g} times larger or smaller "
            f"than the teacher's: in layer {worst.layer} their root mean square is {worst.student:.3g}, and the teacher's is "
            f"{worst.teacher:.3g}. {remedy}"
        )


ROWS = 32
"""The most rows that calibration reads: the first of the stage."""
SOLVED_TOKENS, CALIBRATED_TOKENS, SCALED_TOKENS = 8192, 4096, 2048
"""The most tokens that are read to solve projections, to calibrate parts, and to measure the sizes of outputs."""
QUERIES = 32
"""Query tokens of each row whose attention is read, evenly spaced."""


class Beginning(NamedTuple):
    """The start of a transfer. start: None where every part keeps its own values. sizes: of the outputs of each layer's heads."""

    start: Start | None
    sizes: tuple[LayerSizes, ...]


def rows_to_begin(stage: Transfer, rows: PackedRows, seed: int) -> list[int]:
    """Return the indices of the rows that parts start from, the same in memory and streamed."""
    return first_rows(rows, CALIBRATED_TOKENS if stage.is_calibrated else SCALED_TOKENS, seed)


def first_rows(rows: PackedRows, tokens: int, seed: int) -> list[int]:
    """Return the indices of the first rows of a stage, with at most so many tokens, but one row at least."""
    count = min(ROWS, max(1, tokens // rows.sequence), len(rows))
    return rows_of_step(0, count, len(rows), seed)


def begin_transfer(
    student: ComposedForCausalLM,
    teacher: ComposedForCausalLM,
    stage: Transfer,
    rows: PackedRows,
    seed: int,
    untrained: Collection[str],
    advance: Callable[[], None] = lambda: None,
) -> Beginning:
    """Set the first values of the parts of all layers, in place. Both models are whole, on one device.

    untrained: the names of the parameters that may change. advance: called after each layer.
    """
    batch = rows.batch(rows_to_begin(stage, rows, seed)).to(next(teacher.parameters()).device)
    learners = {attention.layer: (name, attention) for name, attention in attentions(student)}
    layers = list[Beginning]()

    def visit(index: int, attention: ComposedAttention, target: AttentionTarget) -> None:
        name, learner = learners[index]
        layers.append(begin_layer(name, learner, attention, target, stage, student.base.backend, untrained))
        advance()

    run_teacher(teacher, batch, visit)
    return Beginning(join_starts([layer.start for layer in layers if layer.start]), sum((layer.sizes for layer in layers), ()))


def join_starts(starts: Sequence[Start]) -> Start | None:
    """Return the calibrations of several layers as one; None where no layer was calibrated."""
    if not starts:
        return None
    calibrated = tuple(name for start in starts for name in start.calibrated)
    kept_parts = tuple(name for start in starts for name in start.kept)
    return Start(calibrated=calibrated, kept=kept_parts, seconds=sum(start.seconds for start in starts))


@torch.no_grad()
def begin_layer(
    name: str,
    student: ComposedAttention,
    teacher: ComposedAttention,
    target: AttentionTarget,
    stage: Transfer,
    backend: str,
    untrained: Collection[str],
) -> Beginning:
    """Set the first values of one layer on one batch. The name is the full one of its attention."""
    began, calibrated, kept_parts = time.monotonic(), list[str](), list[str]()
    if stage.is_calibrated:
        calibrated, kept_parts = _calibrate_layer(name, student, teacher, target, backend, untrained)
    scaled, sizes = scale_layer(name, student, target, backend, () if stage.start == "parts" else untrained)
    start = None
    if scaled or stage.is_calibrated:
        start = Start(
            calibrated=(*calibrated, *scaled),
            kept=tuple(part for part in kept_parts if part not in scaled),
            seconds=time.monotonic() - began,
        )
    return Beginning(start, (sizes,))


def _calibrate_layer(
    name: str,
    student: ComposedAttention,
    teacher: ComposedAttention,
    target: AttentionTarget,
    backend: str,
    untrained: Collection[str],
) -> tuple[list[str], list[str]]:
    """Calibrate one layer on the teacher's attention weights. Return the names of the parts that were calibrated, and of those
    that were not."""
    length = target.hidden.shape[1]
    queries = sorted({(2 * index + 1) * length // (2 * QUERIES) for index in range(QUERIES)})

    @cache
    def weigh() -> Tensor:
        """Return the teacher's attention weights, which not every part needs."""
        by_head: dict[int, Tensor] = {}
        for _, head, inputs in _groups(teacher, target, backend):
            total = implicit_attention(head, inputs, queries, backend).total().clamp(min=0)
            by_head.update(zip(anatomy(head).numbers, total.unbind(2), strict=True))
        weights = torch.stack([weights for _, weights in sorted(by_head.items())], dim=2)
        valid = target.tokens.valid
        return weights if valid is None else weights * valid[:, queries, None, None]

    calibrated, kept_parts = list[str](), list[str]()
    for head_name, head, inputs in _groups(student, target, backend):
        trained = {
            part
            for part, module in head.named_children()
            if any(f"{name}.composed.{head_name}.{part}.{parameter}" not in untrained for parameter, _ in module.named_parameters())
        }
        done = _Calibration(head, inputs, queries, weigh, backend, trained).run()
        for part, module in head.named_children():
            if next(module.parameters(), None) is not None and part not in trained:
                (calibrated if part in done else kept_parts).append(f"{name}.composed.{head_name}.{part}")
    return calibrated, kept_parts


def _groups(attention: ComposedAttention, target: AttentionTarget, backend: str) -> list[tuple[str, Head, HeadInputs]]:
    """Return name, head and inputs of each group of heads, as the target's inputs reach them through the layer."""
    results = list[tuple[str, Head, HeadInputs]]()

    def collect(_: int, name: str, head: Head, inputs: HeadInputs) -> None:
        results.append((name, head, inputs))

    with visiting_heads(attention, collect):
        heads_output(attention, target, backend)
    return results


class _Calibration:
    """Calibrate one group of heads. Gates are calibrated first, as the values of maps depend on them; then maps; then the weights
    of memories, which depend on both.

    weigh: returns the attention weights of the teacher's layer at some queries, B Q H T. trained: the parts that keep their values.
    """

    def __init__(
        self,
        head: Head,
        inputs: HeadInputs,
        queries: Sequence[int],
        weigh: Callable[[], Tensor],
        backend: str,
        trained: Collection[str],
    ) -> None:
        self._head, self._inputs, self._queries, self._weigh, self._backend = head, inputs, queries, weigh, backend
        self._anatomy: Anatomy = anatomy(head)
        self._done, self._trained = set[str](), trained

    def run(self) -> set[str]:
        """Calibrate all parts that can be; their names."""
        graph = self._anatomy.graph
        for memory, _ in graph.memories:
            for edge in graph.into(memory.name, "decay"):
                self._calibrate(graph.nodes[edge.start], memory)
        mapped = [(memory, part.has_mass()) for memory, part in graph.memories if part.reads is Kind.FEATURES]
        if len(mapped) == 1 and mapped[0][1]:  # a map above several memories would have to serve them all
            (memory, _), *_ = mapped
            for edge in graph.into(memory.name, "features"):
                self._calibrate(graph.nodes[edge.start], memory, maps=True)
        for memory, part in graph.memories:
            if part.joins_values and memory.module not in self._trained:
                self._begin(memory, part)
            if part.weight == "learned" or not part.joins_values:
                self._calibrate(memory, memory)
        return self._done

    def _begin(self, node: Node, memory: Memory) -> None:
        """Set the parameters of a memory from the queries and pairs that enter the head."""
        (edge,), valid = self._anatomy.graph.into(node.name, "query"), self._inputs.tokens.valid
        states = list[tuple[Tensor, Tensor, Tensor]]()
        for piece in pieces(self._head, self._inputs, self._backend):
            pairs = piece.values["pairs", "pairs"]
            states.append((piece.values[edge.start, edge.output], pairs.rotate(NoPosition()), pairs.value))
        joined = (torch.cat(tensors, dim=1) for tensors in zip(*states, strict=True))
        query, key, value = (tensor.flatten(0, 1) if valid is None else tensor[valid] for tensor in joined)
        module = self._anatomy.parts[node.module]
        for name, values in memory.begin(States(query, key, value, self._inputs.length), node.shape).items():
            module.get_parameter(name).copy_(values)
        self._done.add(node.module)

    def _calibrate(self, node: Node, memory: Node, *, maps: bool = False) -> None:
        """Set the parameters of a part from the measurements of the memory that it serves."""
        assert node.part is not None
        module = self._anatomy.parts[node.module]
        if next(module.parameters(), None) is None or node.module in self._trained:
            return
        attended = self._measure_attention(memory)
        if not bool(attended.in_memory.any()):
            return  # the rows are too short for this memory to hold a pair
        if maps:
            query, key, decay = self._map_inputs(node, memory)
            attended = replace(attended, query=query, key=key, decay=decay)
        results = module(node.part.calibrate, attended, node.shape)
        for name, values in results.items():
            module.get_parameter(name).copy_(values)
        if results:
            self._done.add(node.module)

    def _measure_attention(self, memory: Node) -> Attended:
        """Return the measurements of a memory, with all parts as they are now."""
        implied: ImplicitAttention = implicit_attention(self._head, self._inputs, self._queries, self._backend)
        tokens, wanted = self._inputs.tokens, self._weigh()[:, :, list(self._anatomy.numbers)]
        in_memory = implied.memory_weights[memory.name] != 0
        distance = (tokens.position[:, list(self._queries), None] - tokens.position[:, None]).abs()[:, :, None].expand_as(in_memory)
        nearest = distance.masked_fill(~in_memory, int(distance.max())).amin(-1, keepdim=True)
        weights = wanted * in_memory
        return Attended(
            in_memory=in_memory,
            weights=weights,
            outside=(wanted.sum(-1) - weights.sum(-1)).clamp(min=0),
            age=(distance - nearest).clamp(min=0).to(wanted.dtype),
            share=implied.parts[memory.name],
            balanced=self._is_balanced(memory),
        )

    def _is_balanced(self, memory: Node) -> bool | None:
        memories = self._anatomy.graph.memories
        apart = any(taker.leaves_masses_out for taker in takers_of(self._anatomy.graph, memory.name))
        if len(memories) == 1 or apart or not all(memory.has_mass() for _, memory in memories):
            return None
        return any(memory.weight == "learned" for _, memory in memories)

    def _map_inputs(self, features: Node, memory: Node) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the queries and keys that enter a feature map, and the mean decay per token of its memory."""
        graph, position = self._anatomy.graph, features.rotation
        assert position is not None, "the map serves this memory"
        (edge,) = graph.into(features.name, "query")
        queries, keys, decays = [], [], []
        for piece in pieces(self._head, self._inputs, self._backend):
            queries.append(position.rotate_tokens(piece.values[edge.start, edge.output], piece.tokens))
            keys.append(piece.values["pairs", "pairs"].mappable(position))
            decays += [piece.values[edge.start, edge.output] for edge in graph.into(memory.name, "decay")]
        query, key, decay = torch.cat(queries, dim=1)[:, list(self._queries)], torch.cat(keys, dim=1), None
        if decays:
            valid, decay = self._inputs.tokens.valid, torch.cat(decays, dim=1)
            decay = decay.mean(-1) if decay.dim() == 4 else decay
            decay = (decay.mean((0, 1)) if valid is None else decay[valid].mean(0)).to(query.dtype)
            decay = repeat_heads(decay, query.shape[2], dim=0)
        return query, key, decay
