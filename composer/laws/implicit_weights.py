"""A law: the implicit weights of a head's memories, applied to the values, reproduce its output, and the memories' shares sum to 1.
If a memory weighs each coordinate of a value separately, the law only checks that later tokens have no weight."""

from __future__ import annotations

import torch

from blocks.legend import Shape
from blocks.tensors import repeat_heads
from composer.graph.composition import HeadSpec
from composer.laws.cases import Inputs, build_head, inputs, once, run
from composer.model.head import Head
from composer.model.implicit_attention import ImplicitAttention, implicit_attention

LENGTH = 70


@once
def assert_implied(spec: HeadSpec, shape: Shape, length: int, queries: tuple[int, ...]) -> None:
    head, data = build_head(spec, shape), inputs(shape, 2, length)
    implied = implicit_attention(head, data.of_head(), queries, "auto")
    total = implied.total()
    if not shape.both_ways:
        for row, query in enumerate(implied.queries):
            assert not total[:, row, :, query + 1 :].any()
    if any(memory.by_coordinate for memory in spec.memory):
        return
    values = repeat_heads(implied.entered, shape.heads)
    weighed = torch.einsum("bqhs,bshd->bqhd", total, values)
    if any(memory.brings_values for memory in spec.memory):
        assert implied.brought is not None
        weighed = weighed + implied.brought
    scale = max(1.0, float(implied.output.abs().max()))
    torch.testing.assert_close(weighed, implied.output, rtol=0, atol=1e-5 * scale)
    assert implied.error() < 1e-5
    shares = torch.stack(list(implied.shares().values())).sum(0)
    nothing = total.abs().sum(-1) == 0
    torch.testing.assert_close(shares, (~nothing).to(shares.dtype), rtol=0, atol=1e-9)
    assert_it_is_the_heads_answer(spec, head, data, implied)


def assert_it_is_the_heads_answer(spec: HeadSpec, head: Head, data: Inputs, implied: ImplicitAttention) -> None:
    if spec.output is not None or spec.value_position is not None or head._mixes:
        return
    whole, _ = run(head, data)
    scale = max(1.0, float(whole.abs().max()))
    torch.testing.assert_close(implied.output, whole[:, list(implied.queries)], rtol=1e-8, atol=1e-9 * scale)
