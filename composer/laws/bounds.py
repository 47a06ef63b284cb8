"""Laws 5 and 6: a state has the declared size for any length of the sequence; large numbers and long sequences remain in range.

Late in a text, what bfloat16 makes of a head's parameters costs no more, at 4,096 tokens, than at the start.
"""
# Tensors of a call are unpacked into its inputs.
# pyright: reportCallIssue=false

from __future__ import annotations

import copy
from functools import cache

import torch

from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.graph.wiring import build_graph
from composer.laws.cases import SHAPES, SMALL, Inputs, build_head, inputs, once, run
from composer.model.head import Head
from composer.spec.explain import state_bytes, state_size

LONG = 131_072
DTYPES = ("bfloat16", "float32", "float64")
CALLS = {shape: tuple(zip((1, 20, 90), DTYPES[turn:] + DTYPES[:turn], strict=True)) for turn, shape in enumerate(SHAPES)}
"""By shape: every shape meets every length and every dtype, and every length every dtype; any three meet in random heads."""
LENGTH, EARLY = 4096, slice(0, 64)
LATE = slice(LENGTH - 1024, LENGTH)
TINY = Shape(hidden_size=6, heads=1, key_heads=1, head_dim=4)


@cache
def endless_inputs() -> tuple[Inputs, Inputs]:
    """Return the inputs of all heads, in float64 and in float32. Heads only read them, so they are computed once."""
    data = inputs(TINY, 1, LONG + 8)
    return data, data.to(torch.float32)


def measure_state(head: Head, shape: Shape, length: int, dtype: torch.dtype) -> int:
    """Bytes of what one row hands on."""
    _, state = run(head, inputs(shape, 2, length).to(dtype))
    return sum(tensor.nbytes for tensor in state.values()) // 2


@once
def assert_size(spec: HeadSpec, shape: Shape, calls: tuple[tuple[int, str], ...]) -> None:
    graph, head = build_graph(spec, shape), build_head(spec, shape)
    for length, name in calls:
        dtype = getattr(torch, name)
        assert measure_state(head.to(dtype), shape, length, dtype) == state_bytes(state_size(graph, length), name), (length, name)
    if not any(memory.grows for memory in spec.memory):
        assert state_size(graph, 90) == state_size(graph, 10**9)


@once
def assert_in_range(spec: HeadSpec) -> None:
    shape = SMALL.shape(4)
    head, data = build_head(spec, shape, noise=0.0), inputs(shape, 2, 70)
    query, key = (tensor * (50 / tensor.abs().max()) for tensor in (data.query, data.key))
    exact = Inputs(data.hidden, query / 2, key / 2, data.value, data.tokens)
    for call in (Inputs(data.hidden, query, key, data.value, data.tokens), exact):
        expected, _ = run(head.double(), call, backend="reference")
        leaves = [tensor.float().requires_grad_() for tensor in call.tensors]
        actual, _ = run(head.float(), Inputs(*leaves, call.tokens))
        torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=1e-3 * max(1.0, expected.abs().max().item()))
        actual.sum().backward()
        assert all(leaf.grad is None or leaf.grad.isfinite().all() for leaf in leaves)


@once
def assert_close_in_bfloat16(spec: HeadSpec) -> None:
    shape = SMALL.shape(4)
    head = build_head(spec, shape).bfloat16()
    data = inputs(shape, 2, 70).to(torch.bfloat16)
    actual, _ = run(head, data)
    expected, _ = run(head.double(), data.to(torch.float64), backend="reference")
    assert actual.dtype == torch.bfloat16
    assert (actual.double() - expected).norm() <= 0.03 * expected.norm()


def assert_long(spec: HeadSpec) -> None:
    """float32 is close to float64 at the end of 131,072 tokens, and in some steps of decode after them."""
    head, (data, rounded) = build_head(spec, TINY), endless_inputs()
    with torch.no_grad():
        expected, wide = run(head, data.cut(slice(0, LONG)))
        decoded = []
        for t in range(LONG, LONG + 8):
            output, wide = run(head, data.cut(slice(t, t + 1)), wide)
            decoded.append(output)
        narrow = head.float()
        actual, state = run(narrow, rounded.cut(slice(0, LONG)))
        steps = []
        for t in range(LONG, LONG + 8):
            output, state = run(narrow, rounded.cut(slice(t, t + 1)), state)
            steps.append(output)
    for narrow_output, wide_output in ((actual[:, -4096:], expected[:, -4096:]), (torch.cat(steps, 1), torch.cat(decoded, 1))):
        assert narrow_output.isfinite().all()
        # The angles of rope are float32 in both, as in the source's own code, so they add no difference.
        assert (narrow_output.double() - wide_output).abs().max() <= 2e-3 * max(1.0, wide_output.abs().max().item())


def errors(head: Head, narrow: Head, shape: Shape) -> tuple[float, float]:
    """Return how far off the heads of ``narrow`` are, relative to what they answer: the median over early tokens, and over late
    ones. Outputs of 0 are left out."""
    data = inputs(shape, 1, LENGTH).to(torch.bfloat16)
    with torch.no_grad():
        actual, _ = run(narrow, data)
        expected, _ = run(head, data.to(torch.float64))
    wrong = (actual.double() - expected).flatten(2).norm(dim=-1) / expected.flatten(2).norm(dim=-1)
    return wrong[:, EARLY].nanmedian().item(), wrong[:, LATE].nanmedian().item()


@once
def assert_errors_do_not_grow(spec: HeadSpec, shape: Shape) -> None:
    head = build_head(spec, shape)
    early, late = errors(head, copy.deepcopy(head).bfloat16(), shape)
    assert late <= 2 * early + 0.005
