"""Law 1: the fast form of a head is its definition, gradients too."""
# Tensors of a call are unpacked into its inputs.
# pyright: reportCallIssue=false

from __future__ import annotations

import torch

from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.laws.cases import SHAPES, SMALL, Inputs, build_head, inputs, once, run

LENGTH = 70
"""More than a chunk, and many windows."""


def gradients(spec: HeadSpec, shape: Shape, call: Inputs, backend: str) -> list[torch.Tensor]:
    """Of a random functional of the output, by every input and parameter."""
    head = build_head(spec, shape).requires_grad_()
    leaves = [tensor.clone().requires_grad_() for tensor in call.tensors]
    output, _ = run(head, Inputs(*leaves, call.tokens), backend=backend)
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
