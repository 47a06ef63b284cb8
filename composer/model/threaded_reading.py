"""Reads a long text in several threads.

A layer's state after a piece of a text depends on this layer's state before the piece, and on the layers below. So several pieces
can be read at once: a layer of a piece waits until the same layer of the piece before has its state. The states are those of
``read_in_pieces``, for every head. Threads spend their time in PyTorch's kernels, where Python does not hold them up. At most
as many pieces as threads are begun, so memory does not grow with the text.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import torch
from torch import Tensor

from blocks.operation import State
from composer.model.cache import SEEN, ArrivingLayer, ComposedCache
from composer.model.generation import PIECE, read_in_pieces
from composer.model.head import anatomy
from composer.model.heads import ComposedHeads


class PieceLayer(ArrivingLayer):
    """The states of one layer for a piece of a text, which are those of the piece before when they are first read.

    before: the same layer of the piece before, until its states are taken over.
    """

    def __init__(self, before: PieceLayer | None, columns: int) -> None:
        super().__init__()
        self.before, self.columns, self.is_kept, self.is_lost = before, columns, Event(), False

    def arrive(self) -> State:
        """Wait for the states of the piece before, and take them over. Raises RuntimeError if that piece has failed."""
        before, self.before = self.before, None
        if before is None:
            return {}
        before.is_kept.wait()
        if before.is_lost:
            raise RuntimeError("an earlier piece of the text was not read")
        states, before.tensors = before.tensors, {}
        return {name: tensor for name, tensor in states.items() if name != SEEN}

    def keep(self, state: State, columns: int, begun: Callable[[int], State] | None = None) -> None:
        super().keep(state, columns, begun)
        self.is_kept.set()

    def lose(self) -> None:
        """Mark the state as lost if the piece ended without it, and let the next piece continue."""
        self.is_lost = not self.is_kept.is_set()
        self.is_kept.set()


class PieceCache(ComposedCache):
    """The cache of one piece. columns: tokens before the piece."""

    def __init__(self, before: PieceCache | None, layers: int, columns: int) -> None:
        super().__init__(0)
        self.columns = columns
        self.layers = [PieceLayer(None if before is None else before.piece_layer(layer), columns) for layer in range(layers)]

    def piece_layer(self, layer: int) -> PieceLayer:
        held = self.layers[layer]
        assert isinstance(held, PieceLayer)
        return held

    def lose(self) -> None:
        """Mark the states of all layers that have none as lost, and let the next piece continue."""
        for layer in range(len(self.layers)):
            self.piece_layer(layer).lose()

    def count_tokens(self) -> Tensor | None:
        return torch.tensor([self.columns]) if self.columns else None


def parallel_obstacle(model: Any) -> str | None:
    """Return why several pieces of a text cannot be read at once, or None."""
    heads = (head for module in model.modules() if isinstance(module, ComposedHeads) for head in module.children())
    if any(memory.rotation.by_call for head in heads for _, memory in anatomy(head).graph.memories):  # pyright: ignore[reportArgumentType]
        return "the rotation of this model depends on the length of the text so far"
    return None


def read_in_parallel(
    model: Any, ids: Tensor, cache: ComposedCache, count: int, watch: Callable[[int, int], None] | None = None
) -> None:
    """Read tokens into an empty cache, ``count`` pieces at once, each in its own thread. PyTorch's threads are divided among them.

    ids, watch: as in ``read_in_pieces``. The model has no ``parallel_obstacle``.
    """
    length, layers, threads = ids.shape[1], len(cache.layers), torch.get_num_threads()
    count = min(count, math.ceil(length / PIECE))
    if count == 1:
        return read_in_pieces(model, ids, cache, watch)
    last, reading, read = None, deque[tuple[Future[None], PieceCache]](), 0
    torch.set_num_threads(max(1, threads // count))
    executor = ThreadPoolExecutor(count, "composer-read")

    def finish_first() -> None:
        nonlocal read
        future, _ = reading.popleft()
        future.result()
        read = min(read + PIECE, length)
        if watch is not None:
            watch(read, length)

    try:
        for start in range(0, length, PIECE):
            last = PieceCache(last, layers, start)
            reading.append((executor.submit(_read_piece, model, ids[:, start : start + PIECE], last), last))
            if len(reading) == count:
                finish_first()
        while reading:
            finish_first()
    finally:
        for future, piece in reading:
            if future.cancel():  # nothing else lets the next piece continue
                piece.lose()
        executor.shutdown()
        torch.set_num_threads(threads)
    assert last is not None, "the text has more than one piece"
    for layer in range(layers):
        held = cache.state(layer)
        held.tensors, held.columns, held.is_initialized = last.state(layer).tensors, length, True


def _read_piece(model: Any, piece: Tensor, cache: PieceCache) -> None:
    try:
        read_in_pieces(model, piece, cache)
    finally:
        cache.lose()
