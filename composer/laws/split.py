"""Law 2: any split of a sequence into calls is the whole, down to one token at a time, with the state handed on; gradients, too.

A text without gradients, in pieces, is the text with them, as a whole. Some forms run without gradients alone.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from blocks.legend import Shape
from blocks.operation import Call, State
from composer.graph.composition import HeadSpec
from composer.graph.pieces import run_in_pieces
from composer.laws.cases import SMALL, Inputs, build_head, inputs, once, pieces, run
from composer.model.head import Head, anatomy

LENGTH = 70
SHAPE, IN_PIECES = SMALL.shape(4), 21
"""Of the texts without gradients."""
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
    head, data, expected, final = run_whole(spec, shape, length, jumps)  # pyright: ignore[reportArgumentType]
    outputs, state = [], None
    for piece in pieces(length, bounds):
        output, state = run(head, data.cut(piece), state)
        outputs.append(output)
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, rtol=1e-9, atol=1e-11 * scale)
    assert state is not None
    for name, tensor in final.items():
        size = tensor[tensor.isfinite()].abs().max().item() if tensor.isfinite().any() else 0.0
        torch.testing.assert_close(state[name], tensor, rtol=1e-9, atol=1e-11 * max(1.0, size))


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
    for split, expected in zip(actual, wanted, strict=True):
        torch.testing.assert_close(split, expected, rtol=1e-7, atol=1e-9 * max(1.0, expected.abs().max().item()))


@once
def assert_same_in_pieces(
    spec: HeadSpec, *, documents: bool = False, value_is_final: bool = False, in_place: bool = False, sinks: bool = False
) -> None:
    """Compare the outputs and the state of pieces of 8 tokens with those of one call, after 6 other tokens.

    in_place: the pieces may overwrite the state. sinks: the layer has attention sinks.
    """
    shape = replace(SHAPE, sinks=sinks)
    head, data, before = build_head(spec, shape), inputs(shape, 2, IN_PIECES), inputs(shape, 2, 6, seed=1)
    if documents:
        position = torch.cat((torch.arange(9), torch.arange(12))).repeat(2, 1)
        valid = torch.arange(IN_PIECES) < torch.tensor([[IN_PIECES], [7]])
        data.tokens = replace(data.tokens, position=position, segment=(position == 0).cumsum(1), valid=valid)
    else:
        data.tokens = replace(data.tokens, position=data.tokens.position + 6)
    logits = torch.linspace(-1, 1, shape.heads, dtype=torch.float64) if sinks else None
    _, state = run(head, before, sinks=logits)
    head_inputs = replace(data.of_head(), value_is_final=value_is_final, sinks=logits)
    call = Call(data.tokens, state, shape)
    pieces_call = Call(
        data.tokens, {name: tensor.clone() for name, tensor in state.items()} if in_place else state, shape, in_place=in_place
    )
    expected, expected_state = head._functions(data.value, data.tokens, "auto").run(anatomy(head).parts, head_inputs, call)
    with torch.no_grad():
        functions = head._functions(data.value, data.tokens, "auto")
        output, carried = run_in_pieces(functions, 8, anatomy(head).parts, head_inputs, pieces_call)
    real = ... if data.tokens.valid is None else data.tokens.valid
    torch.testing.assert_close(output[real], expected[real], rtol=1e-9, atol=1e-10)
    assert carried.keys() == expected_state.keys()
    for name, tensor in expected_state.items():
        torch.testing.assert_close(carried[name], tensor, rtol=1e-9, atol=1e-10)
