"""Laws for bidirectional heads: the fast form is the definition, documents and padding are separate, and the order counts only
through positions.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from blocks.catalogue import CATALOGUE
from blocks.flow import Tokens
from blocks.memories.base import Memory
from composer.errors import GraphError
from composer.graph.composition import HeadSpec
from composer.graph.rules import check_graph
from composer.spec.explain import state_size
from tests.laws.cases import SMALL, Inputs, around, build_head, complete, every_head, inputs, run

SHAPE = replace(SMALL.shape(4), both_ways=True)


def every_encoder() -> dict[str, HeadSpec]:
    """Return the heads of every bidirectional spec, and a head for each bidirectional memory with each bidirectional mixer."""
    heads = every_head("bidirectional")
    for kind in CATALOGUE["memory"]:
        spec = complete(around("memory", kind))
        if not any(memory.problem_both_ways() for memory in spec.memory) and len(spec.memory) == 1:
            heads[f"memory: {kind}"] = spec
    beside = {"feature_map": "exp", "memory": ["full", "state"], "flow": "parallel"}
    return heads | {"side by side": complete(beside)}


HEADS = every_encoder()


def gradients(spec: HeadSpec, data: Inputs, backend: str) -> list[torch.Tensor]:
    head = build_head(spec, SHAPE).requires_grad_()
    leaves = [tensor.clone().requires_grad_() for tensor in data.tensors]
    output, _ = run(head, Inputs(*leaves, data.tokens), backend=backend)
    (output * torch.randn(output.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)).sum().backward()
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in (*leaves, *head.parameters())]


def test_at_least_four_heads_are_bidirectional() -> None:
    assert len(HEADS) >= 4


@pytest.mark.parametrize("name", HEADS)
def test_the_fast_form_matches_the_definition(name: str) -> None:
    data = inputs(SHAPE, 2, 70)
    expected, state = run(build_head(HEADS[name], SHAPE), data, backend="reference")
    actual, _ = run(build_head(HEADS[name], SHAPE), data)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)
    assert expected.abs().max() > 1e-3
    assert state == {}
    assert state_size(check_graph(HEADS[name], SHAPE, ()), 70) == {}
    for first, other in zip(gradients(HEADS[name], data, "torch"), gradients(HEADS[name], data, "reference"), strict=True):
        torch.testing.assert_close(first, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", HEADS)
def test_the_first_token_sees_the_last(name: str) -> None:
    data = inputs(SHAPE, 1, 4)
    data.value.requires_grad_()
    run(build_head(HEADS[name], SHAPE), data)[0][:, 0].sum().backward()
    assert data.value.grad is not None
    assert data.value.grad[:, -1].abs().max() > 0


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("name", HEADS)
def test_documents_are_separate_and_padding_changes_nothing(name: str, backend: str) -> None:
    head, data = build_head(HEADS[name], SHAPE), inputs(SHAPE, 2, 60)
    lengths = ((20, 1, 30), (3, 40))
    position, segment, valid = torch.zeros(2, 60, dtype=torch.int64), torch.zeros(2, 60, dtype=torch.int64), torch.zeros(2, 60) > 0
    for row, documents in enumerate(lengths):
        start = 0
        for number, length in enumerate(documents):
            position[row, start : start + length] = torch.arange(length)
            segment[row, start:] = number
            valid[row, start : start + length] = True
            start += length
    packed, _ = run(head, replace(data, tokens=Tokens(position, segment, valid)), backend=backend)
    assert packed.isfinite().all()
    for row, documents in enumerate(lengths):
        start = 0
        for length in documents:
            columns = slice(start, start + length)
            own = Inputs(*(tensor[row : row + 1, columns] for tensor in data.tensors), Tokens(torch.arange(length)[None]))
            torch.testing.assert_close(packed[row : row + 1, columns], run(head, own, backend=backend)[0], rtol=1e-9, atol=1e-10)
            start += length


@pytest.mark.parametrize("kind", CATALOGUE["memory"])
def test_causal_memories_are_refused_in_bidirectional_specs(kind: str) -> None:
    part = CATALOGUE["memory"][kind]
    assert issubclass(part, Memory)
    spec = complete(around("memory", kind))
    if f"memory: {kind}" not in HEADS:
        with pytest.raises(GraphError, match="memory is causal|flow: parallel"):
            check_graph(spec, SHAPE, ())
