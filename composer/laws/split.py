"""Law 2: any split of a sequence into calls is the whole, down to one token at a time, with the state handed on; gradients, too."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from blocks.legend import Shape
from blocks.operation import State
from composer.graph.composition import HeadSpec
from composer.laws.cases import Inputs, build_head, inputs, once, pieces, run
from composer.model.head import Head

LENGTH = 70
ONE_BY_ONE = (*range(28), *range(60, LENGTH))
"""Until every window and cache has overflowed more than once, and across the border of a chunk; between them, in one call."""


@functools.lru_cache(maxsize=128)
def run_whole(spec: HeadSpec, shape: Shape, length: int, jumps: tuple[int, ...]) -> tuple[Head, Inputs, torch.Tensor, State]:
    """Return a head, its inputs, and its outputs and state for one call with all of them. jumps: tokens before which positions are
    left out."""
    head, data = build_head(spec, shape), inputs(shape, 2, length)
    if jumps:
        index = data.tokens.position
        data.tokens = replace(data.tokens, position=index + 101 * sum((index >= at).long() for at in jumps), index=index)
    return head, data, *run(head, data)


@once
def assert_split(spec: HeadSpec, shape: Shape, length: int, bounds: tuple[int, ...], jumps: tuple[int, ...] = ()) -> None:
    head, data, whole, final = run_whole(spec, shape, length, jumps)  # pyright: ignore[reportArgumentType]
    outputs, state = [], None
    for piece in pieces(length, bounds):
        output, state = run(head, data.cut(piece), state)
        outputs.append(output)
    scale = max(1.0, whole.abs().max().item())
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole, rtol=1e-9, atol=1e-11 * scale)
    assert state is not None
    for name, tensor in final.items():
        size = tensor[tensor.isfinite()].abs().max().item() if tensor.isfinite().any() else 0.0
        torch.testing.assert_close(state[name], tensor, rtol=1e-9, atol=1e-11 * max(1.0, size))


def follows_positions(spec: HeadSpec) -> bool:
    """Whether a window of the head evicts by chunks of positions, and not by tokens."""
    return any(getattr(memory, "shape", None) == "terraced" for memory in spec.memory)


def gradients(spec: HeadSpec, shape: Shape, length: int, bounds: tuple[int, ...]) -> list[torch.Tensor]:
    """By inputs and parameters, through the states between the calls."""
    head, call = build_head(spec, shape).requires_grad_(), inputs(shape, 2, length)
    leaves = [tensor.requires_grad_() for tensor in call.tensors]
    outputs, state = [], None
    for piece in pieces(length, bounds):
        output, state = run(head, call.cut(piece), state)
        outputs.append(output)
    torch.cat(outputs, dim=1).square().sum().backward()
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in (*leaves, *head.parameters())]


@once
def assert_same_gradients(spec: HeadSpec, shape: Shape, length: int, bounds: tuple[int, ...]) -> None:
    actual, wanted = (gradients(spec, shape, length, between) for between in (bounds, ()))
    for split, whole in zip(actual, wanted, strict=True):
        torch.testing.assert_close(split, whole, rtol=1e-7, atol=1e-9 * max(1.0, whole.abs().max().item()))
