"""Law 1: the fast form of a head is its definition, gradients too.

The implicit weights of a head's memories, applied to the values, reproduce its output, and the memories' shares sum to 1. If a
memory weighs each coordinate of a value separately, the law only checks that later tokens have no weight.
"""
# Tensors of a call are unpacked into its inputs.
# pyright: reportCallIssue=false

from __future__ import annotations

import torch

from blocks.legend import Shape
from blocks.tensors import repeat_heads
from composer.graph.composition import HeadSpec
from composer.laws.cases import SHAPES, SMALL, Inputs, build_head, inputs, once, run
from composer.model.head import Head
from composer.model.implicit_attention import ImplicitAttention, implicit_attention

LENGTH = 70
"""More than a chunk, and many windows."""


def gradients(spec: HeadSpec, shape: Shape, call: Inputs, backend: str) -> list[torch.Tensor]:
    """Of a random functional of the output, by every input and parameter."""
    head = build_head(spec, shape).requires_grad_()
    leaves = [tensor.clone().requires_grad_() for tensor in call.tensors]
    hidden, query, key, value = leaves
    output, _ = run(head, Inputs(hidden, query, key, value, call.tokens), backend=backend)
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    (output * weight).sum().backward()
    wanted = [*leaves, *head.parameters()]
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in wanted]


@once
def assert_same(spec: HeadSpec, shape_name: str, length: int) -> None:
    shape = SHAPES[shape_name]
    head, data = build_head(spec, shape), inputs(shape, 2, length)
    expected, state = run(head, data, backend="reference")
    actual, fast_state = run(head, data)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)
    assert {name: tensor.shape for name, tensor in state.items()} == {name: tensor.shape for name, tensor in fast_state.items()}
    assert expected.abs().max() > 1e-3, "an output that is always zero proves nothing"


@once
def assert_same_gradients(spec: HeadSpec, shape_name: str = "grouped") -> None:
    shape = SHAPES[shape_name]
    data = inputs(shape, 2, LENGTH)
    for actual, expected in zip(gradients(spec, shape, data, "torch"), gradients(spec, shape, data, "reference"), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-9)


@once
def assert_close_in_float32(spec: HeadSpec) -> None:
    shape = SMALL.shape(4)
    head, data = build_head(spec, shape), inputs(shape, 2, LENGTH)
    expected, _ = run(head, data, backend="reference")
    actual, _ = run(head.float(), data.to(torch.float32))
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


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
    expected, _ = run(head, data)
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(implied.output, expected[:, list(implied.queries)], rtol=1e-8, atol=1e-9 * scale)
