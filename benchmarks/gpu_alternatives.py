"""Functions of PyTorch and fla with the arguments and results of this project's kernels: what a kernel is compared with.

Each builder returns a function for one bench. Masks of FlexAttention are made once for each length, outside what is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from benchmarks.gpu_rows import Bench
from blocks.fused.arguments import Evictions
from blocks.tensors import repeat_heads

BLOCK = 128
"""Tokens of a block of FlexAttention's mask."""
COLUMNS = 8
"""Columns of values are padded to a multiple of this for fla."""


class Flex:
    """FlexAttention with its mass, of query ``B T H D`` over entries ``B E K D``; the last entries are those of the queries."""

    def __init__(self, bench: Bench) -> None:
        self._attend = bench.compile(flex_attention)
        self._masks: dict[tuple[int, int], BlockMask] = {}

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, first: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """first: the first entry that each query sees, ``B T``; present: which entries are pairs, ``B E``. Return output, lse."""
        length, entries = query.shape[1], key.shape[1]
        if (length, entries) not in self._masks:
            self._masks[length, entries] = _build_mask(first, present, entries - length)
        rows = [states.transpose(1, 2) for states in (query, key, value)]
        options = {"enable_gqa": True, "return_aux": AuxRequest(lse=True)}
        output, kept = self._attend(*rows, block_mask=self._masks[length, entries], **options)
        return output.transpose(1, 2), kept.lse.transpose(1, 2)


def _build_mask(first: Tensor, present: Tensor, held: int) -> BlockMask:
    batch, length = first.shape

    def is_visible(b: Tensor, h: Tensor, token: Tensor, entry: Tensor) -> Tensor:
        return present[b, entry] & (entry >= first[b, token]) & (entry <= held + token)

    return create_block_mask(is_visible, batch, None, length, present.shape[1], device=str(first.device), BLOCK_SIZE=BLOCK)


def build_window(bench: Bench) -> Callable[..., Any]:
    """Return what ``with_mass`` of ``blocks.fused.window`` returns, by FlexAttention."""
    attend = Flex(bench)

    def with_mass(query: Tensor, key: Tensor, value: Tensor, position: Tensor, first: Tensor, reach: int) -> Any:
        return attend(query, key, value, first, position >= 0)

    return with_mass


def build_joint(bench: Bench) -> Callable[..., Any]:
    """Return what ``attend_jointly`` of ``blocks.fused.joint`` returns for a sliding window and a state without decay, by
    FlexAttention, fla's ``chunk_simple_gla`` and their masses.
    """
    attend, join = Flex(bench), bench.compile(_join)

    def attend_jointly(
        query: Tensor, key: Tensor, value: Tensor, query_features: Tensor, key_features: Tensor,
        log_decay: None, weight: Tensor | None, state: Tensor, evictions: Evictions, *, row_max: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        operation: Any = importlib.import_module("fla.ops.simple_gla").chunk_simple_gla

        length, heads, dim = query.shape[1:]
        token = torch.arange(length, device=query.device)
        absent = evictions.rows[:, :1]
        present = torch.arange(key.shape[1], device=query.device) >= absent
        exact = attend(query, key, value, (token + 1).expand(query.shape[0], -1), present)
        filled = torch.nn.functional.pad(value[:, :length], (0, 1), value=1.0) * present[:, :length, None, None]
        filled = torch.nn.functional.pad(filled, (0, -(dim + 1) % COLUMNS)).to(query.dtype)
        features = query_features.to(query.dtype), repeat_heads(key_features.to(query.dtype), heads)
        sums, last = operation(*features, repeat_heads(filled, heads), scale=1.0, output_final_state=True)
        return join(*exact, sums, weight, dim), last

    return attend_jointly


def _join(exact: Tensor, lse: Tensor, sums: Tensor, weight: Tensor | None, dim: int) -> Tensor:
    """Return the two under one denominator: an output with its lse, and numerators ``B T H V`` with their mass behind them."""
    mass = sums[..., dim].float().clamp(min=0)
    lse = lse if weight is None else lse + weight
    largest = torch.maximum(lse, mass.log())
    near, far = (lse - largest).exp(), (-largest).exp()
    output = exact * near[..., None] + sums[..., :dim].float() * far[..., None]
    return (output / (near + mass * far)[..., None]).to(exact.dtype)


def build_map(bench: Bench) -> Callable[..., Any]:
    """Return what ``shares`` of ``blocks.fused.hedgehog`` returns, by PyTorch's compiler."""

    def shares(x: Tensor, weight: Tensor, bias: Tensor | None, *, skip: bool, sides: int, floor: float) -> Tensor:
        heads = max(x.shape[2], weight.shape[0])
        inputs = repeat_heads(x, heads)
        mapped = torch.einsum("bthd,hdc->bthc", inputs, repeat_heads(weight, heads, dim=0)).float()
        mapped = mapped + inputs if skip else mapped
        mapped = mapped if bias is None else mapped + bias
        return torch.cat([side.softmax(-1).clamp(min=floor) for side in (mapped, -mapped)[:sides]], dim=-1)

    return bench.compile(shares)


__all__ = ["build_joint", "build_map", "build_window"]
