"""Implicit attention: the weight of every token in a head's outputs at chosen queries, for any memories.

A memory's output is linear in the values, and all coordinates of a value count alike: o_t = Σ_s w_ts v_s. So the gradient of one
coordinate of the output by the same coordinate of each value is the row w_t: softmax weights of exact memories, and of others the
weights that their states imply. No part needs code for it. Several rows are computed at once, each by its own coordinate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad as forward

from blocks.operation import REFERENCE, TORCH
from blocks.tensors import repeat_heads
from composer.graph.graph import OUTPUT, READ_NODE
from composer.graph.program import HeadInputs
from composer.model.head import Head, anatomy
from composer.model.stepwise import Piece, ordinary, ordinary_inputs, pieces


@dataclass(frozen=True)
class ImplicitAttention:
    """queries: the columns whose weights were computed, in ascending order.

    memory_weights: for each memory, the weights of the tokens in its output, B Q H T. parts: for each memory, the factor of its
    output in the read's output, B Q H. output: B Q H V, the read's output, before positions of values are undone and before an
    output norm. entered: B T K V, the values that enter the memories. sunk: the share of attention sinks, B Q H; None where there
    are none. brought: B Q H V, the part of the output from values that belong to memories and to no token; None where no memory
    has any.
    """

    queries: tuple[int, ...]
    memory_weights: Mapping[str, Tensor]
    parts: Mapping[str, Tensor]
    output: Tensor
    entered: Tensor
    sunk: Tensor | None = None
    brought: Tensor | None = None

    def cpu(self) -> ImplicitAttention:
        """Return a copy in the memory of the CPU."""
        memory_weights, parts = (
            {name: tensor.cpu() for name, tensor in tensors.items()} for tensors in (self.memory_weights, self.parts)
        )
        sunk = None if self.sunk is None else self.sunk.cpu()
        brought = None if self.brought is None else self.brought.cpu()
        return ImplicitAttention(self.queries, memory_weights, parts, self.output.cpu(), self.entered.cpu(), sunk, brought)

    def weights(self) -> dict[str, Tensor]:
        """Return for each memory the weights of the tokens in the head's output: B Q H T."""
        return {name: weights * self.parts[name][..., None] for name, weights in self.memory_weights.items()}

    def total(self) -> Tensor:
        """Return the weights in the head's output: B Q H T."""
        return torch.stack(list(self.weights().values())).sum(0)

    def shares(self) -> dict[str, Tensor]:
        """For each memory, its share of the head's weight, B Q H. Shares add up to 1, or are all 0 where there is no weight.

        Raw weights may be negative, so absolute values are added up. Values that belong to memories have no share. Where the model
        has attention sinks, `sinks` has the rest.
        """
        sizes = {name: weights.abs().sum(-1) for name, weights in self.weights().items()}
        if self.sunk is not None:
            sizes["sinks"] = self.sunk
        total = torch.stack(list(sizes.values())).sum(0)
        return {name: size / total.masked_fill(total == 0, 1.0) for name, size in sizes.items()}

    def error(self) -> float:
        """Return the largest difference between the output and the weighed values, over the largest number of either: 0 but for
        rounding, unless a part does not treat all coordinates of a value alike, and then these are no weights."""
        if not self.queries:
            return 0.0
        total = self.total()
        weighed = torch.einsum("bqhs,bshd->bqhd", total, repeat_heads(self.entered, total.shape[2]).to(total.dtype))
        if self.brought is not None:
            weighed = weighed + self.brought.to(weighed.dtype)
        largest = max(1e-12, float(weighed.abs().max()), float(self.output.abs().max()))
        return float((weighed - self.output.to(weighed.dtype)).abs().max()) / largest


def implicit_attention(head: Head, inputs: HeadInputs, queries: Sequence[int], backend: str) -> ImplicitAttention:
    """Return the implicit weights of the outputs at these columns, from an empty state.

    Memory: that of a prefill in pieces, of the states' inputs, and of the weights. It grows with the tokens, never with their
    square. Inference mode has no gradients: it is disabled for the call, and the inputs are copied.
    """
    queries = tuple(sorted(set(queries)))
    with torch.inference_mode(mode=False), _at_rest(head):
        return _by_gradients(head, ordinary_inputs(inputs).detach(), queries, backend)


@contextmanager
def _at_rest(head: Head) -> Iterator[None]:
    """For the block, the head's parameters need no gradients, and none of them is a tensor of inference mode."""
    replacements = {
        (module, name): ordinary(parameter.detach())
        for module in head.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None
    }
    with _replace(replacements):
        yield


@contextmanager
def _replace(parameters: Mapping[tuple[torch.nn.Module, str], Tensor]) -> Iterator[None]:
    """For the block, modules have these tensors in their parameters' places."""
    before = {(module, name): module._parameters[name] for module, name in parameters}
    for (module, name), tensor in parameters.items():
        module._parameters[name] = cast("Any", tensor)
    try:
        yield
    finally:
        for (module, name), tensor in before.items():
            module._parameters[name] = tensor


def _by_gradients(head: Head, inputs: HeadInputs, queries: tuple[int, ...], backend: str) -> ImplicitAttention:
    (batch, length), heads = inputs.query.shape[:2], inputs.query.shape[2]
    memories = anatomy(head).graph.memories
    names, apart = [node.name for node, _ in memories], any(memory.joins_values for _, memory in memories)
    memory_weights = {name: inputs.value.new_zeros(batch, len(queries), heads, length) for name in names}
    parts = {name: inputs.value.new_zeros(batch, len(queries), heads) for name in names}
    outputs, entered = [], []
    for piece in pieces(head, inputs, backend, gradients=True):
        entered.append(piece.memory_values)
        chosen = [index for index, query in enumerate(queries) if piece.columns.start <= query < piece.columns.stop]
        if not chosen:
            continue
        local = [queries[index] - piece.columns.start for index in chosen]
        read = piece.values[READ_NODE, OUTPUT]
        outputs.append(read.detach()[:, local])
        for name, part in _parts(piece, read, names).items():
            parts[name][:, chosen] = part[:, local].to(part.dtype)
        _rows(piece, entered, chosen, local, memory_weights, apart=apart)
    output = torch.cat(outputs, dim=1) if outputs else inputs.value.new_zeros(batch, 0, heads, inputs.value.shape[-1])
    values = torch.cat([leaf.detach() for leaf in entered], dim=1)
    sunk = None
    if inputs.sinks is not None:
        total = torch.stack([(memory_weights[name] * parts[name][..., None]).sum(-1) for name in names]).sum(0)
        sunk = (1 - total).clamp(min=0)
    return ImplicitAttention(queries, memory_weights, parts, output, values, sunk, _own_value_part(head, inputs, queries, backend))


def _own_value_part(head: Head, inputs: HeadInputs, queries: tuple[int, ...], backend: str) -> Tensor | None:
    """B Q H V, the part of the outputs from values that belong to memories; None where no memory has any.

    These values are linear in parameters. The output is linear in these and in the tokens' values, as long as caches keep the same
    pairs, so its derivative along the parameters is their part. Forms without a forward derivative are left out.
    """
    parameters = [
        (anatomy(head).parts[node.module], name) for node, memory in anatomy(head).graph.memories for name in memory.brings_values
    ]
    if not queries or not parameters:
        return None
    derivatives = []
    with forward.dual_level(), _replace({(module, name): _along_itself(module._parameters[name]) for module, name in parameters}):
        for piece in pieces(head, inputs, REFERENCE if backend == REFERENCE else TORCH, gradients=False):
            local = [query - piece.columns.start for query in queries if piece.columns.start <= query < piece.columns.stop]
            output, derivative = forward.unpack_dual(piece.values[READ_NODE, OUTPUT][:, local])
            derivatives.append(torch.zeros_like(output) if derivative is None else derivative)
    return torch.cat(derivatives, dim=1)


def _along_itself(parameter: Tensor | None) -> Tensor:
    assert parameter is not None, "parts have what they declare"
    return forward.make_dual(parameter, parameter.clone())


def _parts(piece: Piece, read: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the factor of each memory's output in the read's output: the read treats all coordinates alike, and each token by
    itself."""
    leaves = [piece.values[name, "partial"].output for name in names]
    gradients = torch.autograd.grad(read[..., 0].sum(), leaves, retain_graph=True, allow_unused=True)
    return {
        name: torch.zeros_like(leaf[..., 0]) if gradient is None else gradient[..., 0]
        for name, leaf, gradient in zip(names, leaves, gradients, strict=True)
    }


def _rows(
    piece: Piece,
    entered: Sequence[Tensor],
    chosen: Sequence[int],
    local: Sequence[int],
    memory_weights: Mapping[str, Tensor],
    *,
    apart: bool,
) -> None:
    """Compute the rows of some queries, as many at a time as a value has coordinates: heads that share their values use one
    each. apart: one head and one query at a time."""
    heads, key_heads, size = next(iter(memory_weights.values())).shape[2], entered[0].shape[2], entered[0].shape[3]
    group = heads // key_heads
    turns = torch.arange(heads).unflatten(0, (1, heads) if apart else (key_heads, group)).T
    wanted = [
        (name, index, place, turn)
        for name, output in piece.memory_outputs.items()
        if output.requires_grad
        for index, place in zip(chosen, local, strict=True)
        for turn in turns
    ]
    size = 1 if apart else size
    for start in range(0, len(wanted), size):
        some = wanted[start : start + size]
        grad_outputs = {name: torch.zeros_like(piece.memory_outputs[name]) for name in dict.fromkeys(entry[0] for entry in some)}
        for coordinate, (name, _, place, turn) in enumerate(some):
            grad_outputs[name][:, place, turn, coordinate] = 1.0
        outputs = [piece.memory_outputs[name] for name in grad_outputs]
        gradients = torch.autograd.grad(outputs, list(entered), list(grad_outputs.values()), retain_graph=True, allow_unused=True)
        column = 0
        for leaf, gradient in zip(entered, gradients, strict=True):
            if gradient is not None:
                for coordinate, (name, index, _, turn) in enumerate(some):
                    rows = gradient[:, :, turn // group, coordinate].mT
                    memory_weights[name][:, index, turn, column : column + leaf.shape[1]] = rows
            column += leaf.shape[1]
