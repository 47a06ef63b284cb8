"""A law: a text without gradients, in pieces, is the text with them, as a whole. Some forms run without gradients alone."""

from __future__ import annotations

from dataclasses import replace

import torch

from blocks.operation import Call
from composer.graph.composition import HeadSpec
from composer.graph.pieces import run_in_pieces
from composer.laws.cases import SMALL, build_head, inputs, once, run
from composer.model.head import anatomy

SHAPE = SMALL.shape(4)
LENGTH = 21


@once
def assert_same(
    spec: HeadSpec, *, documents: bool = False, value_is_final: bool = False, in_place: bool = False, sinks: bool = False
) -> None:
    """Compare the outputs and the state of pieces of 8 tokens with those of one call, after 6 other tokens.

    in_place: the pieces may overwrite the state. sinks: the layer has attention sinks.
    """
    shape = replace(SHAPE, sinks=sinks)
    head, data, before = build_head(spec, shape), inputs(shape, 2, LENGTH), inputs(shape, 2, 6, seed=1)
    if documents:
        position = torch.cat((torch.arange(9), torch.arange(12))).repeat(2, 1)
        valid = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7]])
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
    whole, left = head._functions(data.value, data.tokens, "auto").run(anatomy(head).parts, head_inputs, call)
    with torch.no_grad():
        functions = head._functions(data.value, data.tokens, "auto")
        output, carried = run_in_pieces(functions, 8, anatomy(head).parts, head_inputs, pieces_call)
    real = ... if data.tokens.valid is None else data.tokens.valid
    torch.testing.assert_close(output[real], whole[real], rtol=1e-9, atol=1e-10)
    assert carried.keys() == left.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(carried[name], tensor, rtol=1e-9, atol=1e-10)
