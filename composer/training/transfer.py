"""Stage 1, attention transfer: each layer's fresh parameters learn the output of the teacher's attention on the same hidden states.

The layers do not depend on each other; ``ModelTransferCourse`` trains them together. As soon as a layer of the teacher has run,
the student's layer is compared with it and its gradients are computed, so that no more than one layer's graph is alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from blocks.flow import Tokens
from composer.data.packing import Batch
from composer.graph.program import HeadInputs
from composer.model.attention import ComposedAttention, LayerCall, ModelCall
from composer.model.configuration import Composition
from composer.model.head import Head, anatomy
from composer.model.hosts import attentions, attentions_by_layer, layers_of
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Transfer
from composer.training.finetune import MODEL
from composer.training.processes import add_over_processes, count, own_rows, within
from composer.training.unit import Course, Losses, Unit, WholeCourse, add_gradients
from converters.adapter import OTHERS
from converters.trunk import is_composed

UNRELATED = frozenset(
    {*Composition.__annotations__, "_name_or_path", "architectures", "dtype", "transformers_version", "use_cache"}
)
"""Settings of a config that no attention of a host depends on."""
AS_EQUAL = 1e-4
"""The difference, relative to the largest number, up to which two computations of a layer's output count as the same."""


@dataclass(frozen=True)
class AttentionTarget:
    """One layer of the teacher on one batch: the inputs of its attention, hidden states B T C and the host's other arguments, and
    its outputs."""

    hidden: Tensor
    tokens: Tokens
    options: Mapping[str, Any]
    heads: Tensor
    """The output of the heads, B T H D, before the output projection."""
    attended: Tensor
    """The output of the layer's attention, B T C, after that projection."""
    inputs: HeadInputs | None = None
    """The inputs of the teacher's heads. Heads whose host projects as the teacher's does can have them, too."""


class TransferCourse(Course):
    """All layers of a student, in one pass of the teacher over each batch."""

    def __init__(self, student: ComposedForCausalLM, teacher: ComposedForCausalLM, stage: Transfer) -> None:
        self._layers = dict(layer_units(student, stage))
        self.units = list(self._layers.values())
        self._attentions = attentions_by_layer(student)
        self._student, self._teacher, self._stage = student, teacher, stage
        self._alike = layers_alike(self._attentions, attentions_by_layer(teacher))

    def count(self, batch: Batch) -> int:
        return int(batch.valid.sum())

    def compute_gradients(self, batch: Batch, total: float) -> Losses:
        losses: Losses = {}

        def add_layer_gradients(index: int, teacher: ComposedAttention, target: AttentionTarget) -> None:
            unit = self._layers.get(index)
            if unit is not None and not unit.progress.stopped:
                with torch.enable_grad():
                    loss = self._loss(index, teacher, target, total)
                    add_gradients(loss)
                losses[unit.name] = loss.detach()

        run_teacher(self._teacher, batch, add_layer_gradients)
        return losses

    def compute_losses(self, batch: Batch, total: float) -> Losses:
        losses: Losses = {}

        def add_layer_loss(index: int, teacher: ComposedAttention, target: AttentionTarget) -> None:
            if index in self._layers:
                losses[self._layers[index].name] = self._loss(index, teacher, target, total)

        run_teacher(self._teacher, batch, add_layer_loss)
        return losses

    def _loss(self, index: int, teacher: ComposedAttention, target: AttentionTarget, total: float) -> Tensor:
        if index not in self._alike:
            target = replace(target, inputs=None)
        backend = self._student.base.backend
        return within(self._attentions[index], transfer_loss, teacher, target, self._stage, total, backend)


def layers_alike(ours: Mapping[int, ComposedAttention], theirs: Mapping[int, ComposedAttention]) -> frozenset[int]:
    """Return the layers in which two models' hosts compute the same queries, keys and values from the same hidden states."""
    # In several processes each compares its own shards, and all have to find them equal.
    differ = add_over_processes({str(index): float(not _alike(ours[index], theirs[index])) for index in ours})
    return frozenset(index for index in ours if not differ[str(index)])


def _alike(attention: ComposedAttention, other: ComposedAttention) -> bool:
    """True if neither layer mixes its inputs, and their hosts are of one class, with equal settings and equal weights.

    An adapter on a projection is a weight that the other layer lacks.
    """
    if type(attention) is not type(other) or attention.facts != other.facts or attention.mixes_inputs or other.mixes_inputs:
        return False
    (settings, weights), (other_settings, other_weights) = (_host_of(attention) for attention in (attention, other))
    if settings != other_settings or weights.keys() != other_weights.keys():
        return False
    return all(_equal(weight, other_weights[name]) for name, weight in weights.items())


def _equal(tensor: Tensor, other: Tensor) -> bool:
    return tensor is other or (tensor.dtype == other.dtype and torch.equal(own_rows(tensor)[0], own_rows(other)[0]))


def _host_of(attention: ComposedAttention) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the settings of a layer's host, and its weights: the parameters and buffers outside of the heads."""
    config: Any = attention.config
    settings = {name: value for name, value in config.to_dict().items() if name not in UNRELATED}
    tensors = (*attention.named_parameters(), *attention.named_buffers())
    return settings, {name: tensor for name, tensor in tensors if not name.startswith("composed.")}


def computing_alone(model: ComposedForCausalLM) -> Iterator[nn.Module]:
    """Yield the modules that are called by themselves in a transfer: each layer's attention, and the rest of the layer."""
    layers = layers_of(model.base)[1]
    for _, attention in attentions(model):
        yield attention
        yield layers[attention.layer]


def layer_units(model: ComposedForCausalLM, stage: Transfer) -> Iterator[tuple[int, Unit]]:
    """Yield a unit for each layer that has fresh parameters; all others are frozen."""
    model.requires_grad_(False)
    for name, attention in attentions(model):
        unit = layer_unit(attention.layer, name, attention, stage)
        if unit is not None:
            yield attention.layer, unit


def layer_unit(index: int, name: str, attention: ComposedAttention, stage: Transfer) -> Unit | None:
    """Return the fresh parameters of one layer, whose attention has this full name; None where it has none."""
    fresh = {f"{name}.composed.{parameter_name}": parameter for parameter_name, parameter in attention.composed.named_parameters()}
    for parameter in fresh.values():
        parameter.requires_grad_()
    return Unit(f"layer {index}", stage, [(stage.lr, fresh)]) if fresh else None


class StopForward(Exception):
    """Stops the forward of a teacher, or of one of its layers, after the last attention. The MLP that follows is not needed.

    A listener cannot stop the host's own forward in another way. ``run_teacher`` and ``LayerCourse`` raise the exception in their
    listeners, and catch it around the forward that they call. Neither call has a cache, so there is no state to restore.
    """


VisitLayer = Callable[[int, ComposedAttention, AttentionTarget], None]
"""A callback. Its arguments are a layer's index, the teacher's attention there, and that attention's inputs and output."""


@torch.no_grad()
def run_teacher(teacher: ComposedForCausalLM, batch: Batch, visit: VisitLayer) -> None:
    """Run the teacher on a batch, and call ``visit`` for each layer as soon as its attention has run.

    In one process the forward ends with the last layer's attention. Sharded parameters need all of it, for FSDP's hooks at its end.
    """
    listened = [attention for _, attention in attentions(teacher)]
    for attention in listened:
        attention.listener = partial(_on_call, attention, visit, attention is listened[-1] and count() == 1)
    try:
        with suppress(StopForward):
            within(teacher, _run, batch)
    finally:
        for attention in listened:
            attention.listener = None


def _run(teacher: ComposedForCausalLM, batch: Batch) -> None:
    teacher.base(**batch.inputs(mask=True), use_cache=False)


def _on_call(
    teacher: ComposedAttention, visit: VisitLayer, is_last: bool, call: LayerCall, options: Mapping[str, Any], attended: Tensor
) -> None:
    visit(teacher.layer, teacher, target_of(call, options, attended))
    if is_last:
        raise StopForward


def target_of(call: LayerCall, options: Mapping[str, Any], attended: Tensor) -> AttentionTarget:
    """Return the inputs and the output of a layer's attention."""
    assert call.heads is not None, "the host has called its heads"
    return AttentionTarget(call.hidden, call.model_call.tokens, options, call.heads, attended, call.inputs)


def heads_output(
    attention: ComposedAttention,
    target: AttentionTarget,
    backend: str,
    memory_values: Tensor | None = None,
    inputs: HeadInputs | None = None,
) -> Tensor:
    """Return the output of an attention's heads on the inputs of a target, B T H D. memory_values, inputs: as in
    ``ComposedAttention.heads_output``."""
    return attention.heads_output(target.hidden, ModelCall(target.tokens, backend), target.options, memory_values, inputs)


def transfer_loss(
    attention: ComposedAttention, teacher: ComposedAttention, target: AttentionTarget, stage: Transfer, total: float, backend: str
) -> Tensor:
    """Return the weighed loss of one layer, summed over valid tokens and divided by ``total``.

    The heads receive the target's inputs as they are: these must be None where the layer's host projects otherwise.
    """
    loss = target.hidden.new_zeros((), dtype=torch.float32)
    if stage.mse:
        if stage.at == "output":
            wanted, results = target.attended, _outputs(attention, target, backend)
        else:
            wanted, results = target.heads, heads_output(attention, target, backend, inputs=target.inputs)
        error = (results.float() - wanted.float()).square().flatten(2).mean(-1)
        loss = loss + stage.mse * _over_tokens(error, target.tokens) / total
    if stage.cross_entropy:
        entropy = _cross_entropy(attention, teacher, target, backend)
        loss = loss + stage.cross_entropy * _over_tokens(entropy, target.tokens) / total
    return loss


def _outputs(attention: ComposedAttention, target: AttentionTarget, backend: str) -> Tensor:
    """Return the output of a layer's attention on the inputs of a target, B T C. If the layer has the teacher's projections, its
    host only computes what follows the heads.
    """
    projection = None if target.inputs is None else _only_projection(attention, target)
    if projection is None:
        return attention.attention_output(target.hidden, ModelCall(target.tokens, backend), target.options)
    return projection(heads_output(attention, target, backend, inputs=target.inputs).flatten(2))


def output_projection(attention: ComposedAttention) -> nn.Module | None:
    """Return the module that projects the heads' outputs; None where a host has none of a known name."""
    return None if (name := output_projection_name(attention)) is None else getattr(attention, name)


def output_projection_name(attention: ComposedAttention) -> str | None:
    """Return the name of the module that projects the heads' outputs; None where a host has none of a known name."""
    return next((name for name in ("o_proj", *OTHERS["o"]) if hasattr(attention, name)), None)


@torch.no_grad()
def _only_projection(attention: ComposedAttention, target: AttentionTarget) -> nn.Module | None:
    """Return the output projection of a layer whose host computes nothing else after the heads, such as a gate; None if it does.

    The layer must have the weights of the target's teacher. It is compared with the teacher's output once.
    """
    projection = output_projection(attention)
    if attention.ends_in_projection is None:
        attention.ends_in_projection = projection is not None and torch.allclose(
            projection(target.heads.flatten(2)).float(), target.attended.float(), rtol=0, atol=AS_EQUAL * _largest(target.attended)
        )
    return projection if attention.ends_in_projection else None


def _largest(states: Tensor) -> float:
    return float(states.abs().max())


def _cross_entropy(attention: ComposedAttention, teacher: ComposedAttention, target: AttentionTarget, backend: str) -> Tensor:
    """-Σ_s a_ts log â_ts of each token, a mean over heads: LoLCATs (workshop), eq. 7. B T."""
    with torch.no_grad():
        wanted = within(teacher, attention_weights, target, backend, target.inputs)
    results = attention_weights(attention, target, backend, target.inputs)
    return -(wanted * results.clamp(min=torch.finfo(results.dtype).tiny).log()).sum(-1).mean(-1)


def attention_weights(
    attention: ComposedAttention, target: AttentionTarget, backend: str, inputs: HeadInputs | None = None
) -> Tensor:
    """Return the weight of every token s in the output at every token t, B T H T. inputs: as in ``heads_output``.

    Outputs are linear in the values of tokens and in the values that belong to memories. With unit vectors as the tokens' values,
    and without the memories' part, the outputs are the weights: of as many tokens at a time as a value has numbers.
    """
    (batch, length), hidden = target.hidden.shape[:2], target.hidden
    width, heads = attention.facts.value_dim, attention.facts.key_heads
    unit, results = torch.eye(length, dtype=hidden.dtype, device=hidden.device), []
    nothing = hidden.new_zeros(batch, length, heads, width)
    brought = heads_output(attention, target, backend, nothing, inputs) if _brings(attention) else None
    for start in range(0, length, width):
        columns = nn.functional.pad(unit[:, start : start + width], (0, max(0, start + width - length)))
        value = columns[None, :, None].expand(batch, length, heads, width)
        weights = heads_output(attention, target, backend, value, inputs)
        weights = weights if brought is None else weights - brought
        results.append(weights[..., : length - start].float())
    return torch.cat(results, dim=-1)


def _brings(attention: ComposedAttention) -> bool:
    """Whether a memory of a layer has further values beside those of tokens."""
    heads = (head for head in attention.composed.children() if isinstance(head, Head))
    return any(memory.brings_values for head in heads for _, memory in anatomy(head).graph.memories)


def _over_tokens(losses: Tensor, tokens: Tokens) -> Tensor:
    return losses.sum() if tokens.valid is None else losses.masked_fill(~tokens.valid, 0.0).sum()


class ModelTransferCourse(WholeCourse):
    """The fresh parameters of all layers are one unit; everything else is frozen."""

    def __init__(self, student: ComposedForCausalLM, teacher: ComposedForCausalLM, stage: Transfer) -> None:
        super().__init__(student, _unit(student, stage))
        self._model, self._teacher, self._stage = student, teacher, stage

    def count(self, batch: Batch) -> int:
        return int(batch.valid.sum())

    def _loss(self, batch: Batch, total: float) -> Tensor:
        """mse · Σ over real tokens of |h - h'|² / C, divided by ``total``."""
        with torch.no_grad():
            wanted = within(self._teacher, last_hidden, batch)
        error = (within(self._model, last_hidden, batch).float() - wanted.float()).square().mean(-1)
        return self._stage.mse * error.masked_fill(~batch.valid, 0.0).sum() / total


def last_hidden(model: ComposedForCausalLM, batch: Batch) -> Tensor:
    """Return the hidden states after a model's last norm, from which logits are computed, B T C."""
    return model.base(**batch.inputs(mask=True), use_cache=False).last_hidden_state


def _unit(student: ComposedForCausalLM, stage: Transfer) -> Unit:
    student.requires_grad_(False)
    fresh = {name: parameter for name, parameter in student.named_parameters() if is_composed(name)}
    for parameter in fresh.values():
        parameter.requires_grad_()
    return Unit(MODEL, stage, [(stage.lr, fresh)])
