"""Visits every head of a model before it runs, and computes transformers' `output_attentions` from its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from composer.graph.program import HeadInputs
from composer.model.head import Head, anatomy
from composer.model.hosts import attentions
from composer.model.implicit_attention import implicit_attention
from composer.model.rows import Rows

VisitHead = Callable[[int, str, Head, HeadInputs], None]
"""A callback. Its arguments are the layer, the name of a head, the head, and the inputs of the next call of the head."""


@contextmanager
def visiting_heads(model: nn.Module, visit: VisitHead) -> Iterator[None]:
    """For the block, ``visit`` is called before each head runs. No tensor is kept."""
    hooks = [
        head.register_forward_pre_hook(partial(_before, attention.layer, name, visit))
        for _, attention in attentions(model)
        for name, head in attention.composed.named_children()
        if isinstance(head, Head)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _before(layer: int, name: str, visit: VisitHead, head: nn.Module, arguments: tuple[Any, ...]) -> None:
    assert isinstance(head, Head)
    inputs, *_ = arguments
    visit(layer, name, head, inputs)


class Attentions:
    """The weights of all heads of a model, as transformers has them: B H T T a layer, without gradients."""

    def __init__(self, backend: str) -> None:
        self._layers: dict[int, dict[int, Tensor]] = {}
        """By layer and number of the query head."""
        self._backend = backend

    def collect(self, layer: int, name: str, head: Head, inputs: HeadInputs) -> None:
        """A ``VisitHead``. Raises ValueError for heads whose outputs are no means of values."""
        if not anatomy(head).graph.read.is_mean:
            raise ValueError(
                f"output_attentions: layer {layer}, head {name}: its read adds up outputs by weights that do not add up to 1"
            )
        for node, memory in anatomy(head).graph.memories:
            if not memory.weighs_values:
                raise ValueError(
                    f"output_attentions: layer {layer}, head {name}: the `{node.name}` memory returns a sum that nothing "
                    "divides, so its weights do not add up to 1 and are no attention; composer.inspect shows them for what they are"
                )
        implied = implicit_attention(head, inputs, range(inputs.length), self._backend)
        by_head = zip(anatomy(head).numbers, implied.total().unbind(2), strict=True)
        self._layers.setdefault(layer, {}).update(by_head)

    def by_layer(self, rows: Rows) -> tuple[Tensor, ...]:
        """Return the weights of each layer, rows and columns in the order of the call."""
        layer_weights = (
            torch.stack([weights for _, weights in sorted(heads.items())], dim=1) for _, heads in sorted(self._layers.items())
        )
        return tuple(_outward(weights, rows) for weights in layer_weights)


def _outward(weights: Tensor, rows: Rows) -> Tensor:
    if not rows.is_reordered:
        return weights
    queries = rows.outward(weights.transpose(1, 2))
    return rows.outward(queries.permute(0, 3, 2, 1)).permute(0, 2, 3, 1)
