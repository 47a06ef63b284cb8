"""A law: a text without gradients, in pieces, is the text with them, as a whole. Some forms run without gradients alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from composer.graph.composition import HeadSpec
from composer.graph.pieces import run_in_pieces
from composer.graph.program import CallContext
from composer.laws.cases import SMALL, built, inputs, once, run
from composer.model.head import anatomy

SHAPE = SMALL.shape(4)
LENGTH = 21


@once
def assert_same(spec: HeadSpec, *, documents: bool = False, entering: bool = False, in_place: bool = False) -> None:
    """Run in pieces of 8 tokens and in one call, after 6 other tokens. Return outputs and state. in_place: the pieces may overwrite
    the state."""
    head, data, before = built(spec, SHAPE), inputs(SHAPE, 2, LENGTH), inputs(SHAPE, 2, 6, seed=1)
    if documents:
        position = torch.cat((torch.arange(9), torch.arange(12))).repeat(2, 1)
        valid = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7]])
        data.tokens = replace(data.tokens, position=position, segment=(position == 0).cumsum(1), valid=valid)
    else:
        data.tokens = replace(data.tokens, position=data.tokens.position + 6)
    _, state = run(head, before)
    of_names = {"hidden": data.hidden, "query": data.query, "key": data.key, "value": data.value}
    context = CallContext(data.tokens, state, (0, 0), in_place=False)
    own = CallContext(data.tokens, {name: of.clone() for name, of in state.items()} if in_place else state, (0, 0), in_place)
    further: dict[str, Any] = {"entering": data.value if entering else None}
    whole, left = head._program(data.value, data.tokens, "auto").run(anatomy(head).parts, of_names, context, **further)
    with torch.no_grad():
        program = head._program(data.value, data.tokens, "auto")
        output, carried = run_in_pieces(program, 8, anatomy(head).parts, of_names, own, **further)
    real = ... if data.tokens.valid is None else data.tokens.valid
    torch.testing.assert_close(output[real], whole[real], rtol=1e-9, atol=1e-10)
    assert carried.keys() == left.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(carried[name], tensor, rtol=1e-9, atol=1e-10)
