"""States in an engine: each request has a page of bytes for a layer, with the tensors of its state one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from blocks.operation import Slot, State
from blocks.tensors import slot_dtypes
from composer.vllm.step import EngineCall

ALIGNED = 64
"""Pages have a multiple of so many bytes."""


@dataclass(frozen=True)
class Field:
    """One tensor in a page. every: tokens per row of a tensor that grows; 0 for a tensor of fixed size. A growing tensor has rows
    for the longest text. Rows without tokens are ``empty``."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    empty: float
    every: int
    offset: int = 0

    @property
    def bytes(self) -> int:
        """The number of its bytes in a page."""
        return prod(self.shape) * self.dtype.itemsize


def layout(slots: Mapping[str, Slot], dtype: torch.dtype, longest: int) -> tuple[tuple[Field, ...], int]:
    """Return the fields of a page with these tensors, and its bytes. The widest numbers are first, so that all are aligned.

    dtype: of the model's keys and values. longest: tokens of the longest text.
    """
    dtypes = slot_dtypes(dtype)
    fields = [
        Field(name, (longest // slot.every, *slot.shape[1:]), dtypes[slot.dtype], slot.empty, slot.every)
        if slot.grows
        else Field(name, slot.shape, dtypes[slot.dtype], slot.empty, 0)
        for name, slot in slots.items()
    ]
    placed, offset = [], 0
    for field in sorted(fields, key=lambda other: -other.dtype.itemsize):
        placed.append(replace(field, offset=offset))
        offset += field.bytes
    return tuple(placed), -(-offset // ALIGNED) * ALIGNED


class Pages:
    """The fields of all pages of a layer, as views of the engine's memory."""

    def __init__(self, fields: tuple[Field, ...], memory: Tensor) -> None:
        """memory: ``pages bytes`` int8, with at least the bytes of the fields."""
        self.fields = fields
        self._views = {
            field.name: memory[:, field.offset : field.offset + field.bytes].view(field.dtype).unflatten(1, field.shape or (1,))
            for field in fields
        }

    def read(self, call: EngineCall, pages: Tensor) -> State:
        """Return the states of a call's requests, copied. pages: of all requests of the step.

        A page is handed on as its last request left it, so a request that begins has the fields' ``empty``.
        """
        at, state = pages[call.rows], {}
        for field in self.fields:
            view = self._views[field.name]
            # ``index_select`` copies whole rows: several times as fast as ``view[at]`` on a CPU.
            if field.every:
                rows = call.most_seen // field.every
                states = view[:, :rows].index_select(0, at)
                is_empty = torch.arange(rows, device=at.device) >= (call.seen // field.every)[:, None]
            else:
                states, is_empty = view.index_select(0, at).view(-1, *field.shape), call.is_new
            state[field.name] = states if is_empty is None else states.masked_fill_(_over(is_empty, states), field.empty)
        return state

    def write(self, call: EngineCall, pages: Tensor, state: State) -> None:
        """Keep the new states of a call's requests, those that are in ``state``."""
        at = pages[call.rows]
        for field in self.fields:
            new = state.get(field.name)
            if new is None:
                continue
            view = self._views[field.name]
            if not field.every:
                view.index_copy_(0, at, new.reshape(-1, *view.shape[1:]).to(field.dtype))
                continue
            if field.every > 1:  # rows of a request follow each other; later ones are masked when they are read
                rows = min(new.shape[1], view.shape[1])
                view[at, :rows] = new[:, :rows].to(field.dtype)
                continue
            earlier = 0 if call.all_new else call.most_seen
            entry = torch.arange(new.shape[1], device=at.device).expand(len(at), -1)
            later = entry - earlier
            is_token = torch.where(later < 0, entry < call.seen[:, None], later < call.length[:, None])
            row = torch.where(later < 0, entry, later + call.seen[:, None])
            view[at[:, None].expand_as(entry)[is_token], row[is_token]] = new[is_token].to(field.dtype)


def _over(rows: Tensor, states: Tensor) -> Tensor:
    """Return the rows with as many axes as ``states``."""
    return rows.view(*rows.shape, *[1] * (states.dim() - rows.dim()))
