"""Heads on a backend of kernels, in float32 and in the interpreter, beside their definition in float64."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from blocks.flow import Tokens
from blocks.legend import Shape
from composer.graph.composition import HeadSpec
from composer.laws.cases import Inputs, build_head, inputs, pieces, run
from composer.laws.interpreter import nothing_refused
from composer.model.head import Head

LENGTH = 21
DOCUMENTS = ((0, 7, 15), (3, 10))
"""The starts of documents in two rows; the second row continues a state."""
REAL = (LENGTH, 4)
"""Tokens of two rows, the others being padding."""
CANCELLED = 1 / 3
"""A gradient is a sum over tokens. Where it cancels to less than this part of the head's largest, it is measured by that.

fla's chunked kernels compute decays, and the gradients of decays, as sums over a chunk. Their rounding errors are relatively large
for steep decays, whose gate has a small gradient: about 3e-5 of it in mamba2 and kda, and 1e-6 in PyTorch's form.
"""


def packed_tokens() -> Tokens:
    """Two rows of documents."""
    position, segment = torch.zeros(2, LENGTH, dtype=torch.int64), torch.zeros(2, LENGTH, dtype=torch.int64)
    for row, starts in enumerate(DOCUMENTS):
        position[row] = torch.arange(LENGTH)
        for start in starts:
            position[row, start:] = torch.arange(LENGTH - start)
            segment[row, start:] += 1
    return Tokens(position, segment)


def padded_tokens() -> Tokens:
    """Two rows, the second shorter."""
    return Tokens(torch.arange(LENGTH).repeat(2, 1), None, torch.arange(LENGTH) < torch.tensor(REAL)[:, None])


def plain() -> Tokens:
    """Two rows of one document."""
    return Tokens(torch.arange(LENGTH).repeat(2, 1))


def assert_on_kernels(
    spec: HeadSpec,
    shape: Shape,
    backend: str,
    tokens: Tokens,
    *,
    split: tuple[int, ...] = (),
    gradients: bool = False,
    cancelled: float = 0.0,
) -> None:
    """What real tokens are answered on the backend, and all gradients, are the reference's, but for 1e-5 of the largest number
    of each. Nothing may be refused on the way.

    cancelled: the part of the head's largest gradient that smaller gradients are measured by.
    """
    batch, length = tokens.position.shape
    head, data = build_head(spec, shape), replace(inputs(shape, batch, length), tokens=tokens)
    wanted = _compute(head, data, "reference", (), gradients)
    with nothing_refused():
        actual = _compute(copy.deepcopy(head).float(), data.to(torch.float32), backend, split, gradients)
    assert wanted[0].abs().max() > 1e-3
    least = max((cancelled * gradient.abs().max().item() for gradient in wanted[1:]), default=0.0)
    for place, (result, reference) in enumerate(zip(actual, wanted, strict=True)):
        largest = max(reference.abs().max().item(), least if place else 0.0, 1e-6)
        torch.testing.assert_close(result.double(), reference, rtol=0, atol=1e-5 * largest)


def _compute(head: Head, data: Inputs, backend: str, split: tuple[int, ...], gradients: bool) -> list[torch.Tensor]:
    leaves = [tensor.clone().requires_grad_(gradients) for tensor in data.tensors]
    hidden, query, key, value = leaves
    data_on_leaves, state, outputs = Inputs(hidden, query, key, value, data.tokens), None, []
    head.requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        for piece in pieces(data.tokens.position.shape[1], split):
            output, state = run(head, data_on_leaves.cut(piece), state, backend)
            outputs.append(output)
        output = torch.cat(outputs, dim=1)
        if data.tokens.valid is not None:
            output = output * data.tokens.valid[..., None, None]
    if gradients:
        weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
        (output * weights.to(output.dtype)).sum().backward()
    every = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in (*leaves, *head.parameters())]
    return [output.detach(), *(every if gradients else [])]
