"""Rows whose tokens several processes share: each computes consecutive tokens, and hands the states of every layer to the next.

In the forward pass a layer waits for its states from the previous process, and sends those after its own tokens to the next one. In
the backward pass the gradients of these states go the other way. Every process thus computes what one process would compute of
these tokens. While one computes a layer, the previous one computes the layer above it.

States are handed on through the processor's memory (gloo), on a GPU, too. A state of bounded size makes this cheap. A layer of
softmax attention hands on the keys and values of all tokens before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from blocks.operation import State
from composer.data.packing import Batch, RowPiece
from composer.errors import TrainingError
from composer.model.cache import ComposedCache, StateLayer
from composer.model.modeling import ComposedForCausalLM
from composer.spec.recipe import Finetune, Stage
from composer.training.options import TrainingOptions
from composer.training.processes import count, rank, row_processes

StateLayout = list[tuple[str, tuple[int, ...], torch.dtype]]
"""The name, shape and dtype of each tensor of a state."""


class HandedCache(ComposedCache):
    """The states of all layers after the tokens of the previous processes. They arrive when a layer needs them.

    start: the number of tokens of each row that the previous processes compute.
    """

    def __init__(self, layers: int, rows: int, start: int, device: torch.device) -> None:
        super().__init__(layers)
        # A result of a Function needs gradients only if one of its inputs does.
        self.anchor = torch.zeros((), device=device, requires_grad=True)
        self.ties: list[Tensor] = []
        """A zero of each transfer. The loss depends on them, so that the backward pass reaches every transfer."""
        self.layers = [HandedLayer(self) for _ in range(layers)]
        self._start = start
        self._seen = torch.full((rows,), start, device=device) if start else None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._start

    def count_tokens(self) -> Tensor | None:
        return self._seen

    def receive(self) -> State:
        """Receive a layer's states from the previous process; the first process of a row has none."""
        if rank() % row_processes() == 0:
            return {}
        described: list[Any] = [None]
        distributed.recv_object_list(described, src=rank() - 1)
        tie, *tensors = cast("tuple[Tensor, ...]", _Received.apply(self.anchor, described[0]))
        self.ties.append(tie)
        return {name: tensor for (name, _, _), tensor in zip(described[0], tensors, strict=True)}

    def send(self, state: State) -> None:
        """Send a layer's states to the next process; the last process of a row has no next one."""
        if (rank() + 1) % row_processes():
            self.ties.append(cast("Tensor", _Sent.apply(self.anchor, tuple(state), *state.values())))

    def tie(self, logits: Tensor) -> Tensor:
        """The logits, with every transfer of this call below them in the graph of gradients."""
        return cast("Tensor", _Tied.apply(logits, *self.ties)) if torch.is_grad_enabled() else logits


class HandedLayer(StateLayer):
    """The states of one layer, which are received when they are first read, and sent as soon as they are known."""

    def __init__(self, cache: HandedCache) -> None:
        super().__init__()
        self._cache = cache
        self._tensors: State | None = None

    @property
    def tensors(self) -> State:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._tensors is None:
            self._tensors = self._cache.receive()
        return self._tensors

    @tensors.setter
    def tensors(self, tensors: State) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._tensors = tensors

    def keep(self, state: State, columns: int, begun: Callable[[int], State] | None = None) -> None:
        self._cache.send(state)
        self._tensors = {}


class _Sent(torch.autograd.Function):
    """Sends tensors to the next process. The gradients come from there."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        ctx.tensors = [(tensor.shape, tensor.dtype) if tensor.is_floating_point() else None for tensor in tensors]
        described = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in zip(names, tensors, strict=True)]
        distributed.send_object_list([described], dst=rank() + 1)
        for tensor in tensors:
            _send(tensor, rank() + 1)
        return torch.zeros_like(anchor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, tie: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        likes: list[tuple[torch.Size, torch.dtype] | None] = ctx.tensors
        return None, None, *(None if like is None else _receive(like[0], like[1], rank() + 1, tie.device) for like in likes)


class _Received(torch.autograd.Function):
    """Receives tensors from the previous process. Their gradients go there."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, described: StateLayout) -> tuple[Tensor, ...]:
        tensors = [_receive(shape, dtype, rank() - 1, anchor.device) for _, shape, dtype in described]
        ctx.mark_non_differentiable(*(tensor for tensor in tensors if not tensor.is_floating_point()))
        ctx.differentiable = [tensor.is_floating_point() for tensor in tensors]
        return torch.zeros_like(anchor), *tensors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor, *gradients: Tensor) -> tuple[None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        for gradient, differentiable in zip(gradients, ctx.differentiable, strict=True):
            if differentiable:
                _send(gradient, rank() - 1)
        return None, None


class _Tied(torch.autograd.Function):
    """The first argument. Zero gradients reach the others."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, *ties: Tensor) -> Tensor:
        ctx.ties = len(ties)
        return logits.view_as(logits)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient, *(gradient.new_zeros((), dtype=torch.float32) for _ in range(ctx.ties))


def _send(tensor: Tensor, to: int) -> None:
    distributed.send(tensor.detach().cpu().contiguous(), dst=to)


def _receive(shape: tuple[int, ...], dtype: torch.dtype, source: int, device: torch.device) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    distributed.recv(tensor, src=source)
    return tensor.to(device)


def cache_of(model: nn.Module, batch: Batch) -> HandedCache | None:
    """The cache of a model's call on a piece of some rows; None for whole rows."""
    if not isinstance(batch, RowPiece):
        return None
    assert isinstance(model, ComposedForCausalLM), "teachers are composed, too"
    return HandedCache(model.config.get_text_config().num_hidden_layers, len(batch), batch.start, batch.ids.device)


def check_row_processes(stages: dict[str, Stage], options: TrainingOptions) -> None:
    """Raises TrainingError if a run cannot share the tokens of its rows among processes."""
    shared = options.row_processes
    if shared == 1:
        return
    if count() % shared:
        raise TrainingError(
            f"--row-processes {shared}: torchrun started {count()} processes, which is no multiple of {shared}. Start "
            f"torchrun --nproc-per-node {shared}."
        )
    if not all(isinstance(stage, Finetune) for stage in stages.values()):
        raise TrainingError(
            f"--row-processes {shared}: attention transfer compares layers on whole rows. Run --stage transfer without "
            "--row-processes, then --stage finetune with it."
        )
    if options.teacher_logits is not None:
        raise TrainingError(
            f"--row-processes {shared}: stored logits belong to whole rows. Leave out --teacher-logits or --row-processes."
        )
    if options.gradient_checkpointing:
        raise TrainingError(
            f"--row-processes {shared}: a layer that is computed twice would receive its states twice. Leave out "
            "--gradient-checkpointing, or use more processes."
        )


def check_model(model: ComposedForCausalLM, shared: int) -> None:
    """Raises TrainingError if a model's layers hand on no states."""
    if shared > 1 and (model.base.both_ways or model.base.has_mixers):
        reason = (
            "a bidirectional model reads whole rows" if model.base.both_ways else "the layers of its source have their own states"
        )
        raise TrainingError(f"--row-processes {shared}: {reason}. Leave out --row-processes.")
