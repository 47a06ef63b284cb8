"""Every form on a kernel, fla's or Triton's, is the definition: outputs and gradients, in calls that begin with a state, with heads
that share keys, of odd lengths, of single tokens, of several documents, and of rows that end early."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch

from blocks.flow import Tokens
from blocks.legend import Shape
from blocks.operation import FLA, TRITON, Setting
from composer.graph.composition import HeadSpec
from composer.graph.graph import Node
from composer.graph.lowering import lower
from composer.graph.program import matches
from composer.graph.wiring import build_graph
from composer.laws.cases import SMALL, Inputs, build_head, inputs, pieces, run, steady
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


SHAPE = SMALL.shape(2)
KERNELS = (FLA, TRITON)
CallPlace = tuple[bool, bool, bool]
"""Whether rows have several documents, whether the call has one token, and whether gradients are needed."""


class KernelForm(NamedTuple):
    """A form: its backend, the parts that it computes, its description, and the kinds of these parts."""

    backend: str
    computes: str
    description: str
    kinds: tuple[str, ...]


def runs_of(heads: Iterable[HeadSpec]) -> dict[KernelForm, dict[CallPlace, HeadSpec]]:
    """For each form that runs in one of the heads, the settings in which it does, and a head for each with the fewest other kernels
    and steps."""
    least: dict[KernelForm, dict[CallPlace, tuple[int, int, HeadSpec]]] = defaultdict(dict)
    settings = [(documents, *call) for documents in (False, True) for call in ((False, False), (False, True), (True, False))]
    graphs = ((spec, build_graph(spec, SHAPE)) for spec in heads)
    for (spec, graph), backend, place in product(graphs, KERNELS, settings):
        documents, one_token, gradients = place
        setting = Setting(documents=documents, one_token=one_token, gradients=gradients)
        steps = lower(graph, backend, setting).steps
        on_kernels = [step for step in steps if step.form.backend == backend and step.covers[0].node.path is not None]
        for step in on_kernels:
            form = _form(backend, step.form.description, (covered.node for covered in step.covers))
            size = len(on_kernels), len(steps)
            if place not in least[form] or least[form][place][:2] > size:
                least[form][place] = *size, spec
    return {form: {place: spec for place, (_, _, spec) in places.items()} for form, places in least.items()}


def list_forms_in(heads: Iterable[HeadSpec]) -> set[KernelForm]:
    """Return the forms that the parts and patterns of the heads have."""
    return {form for spec in heads for form in _list_registered_forms(spec)}


def _list_registered_forms(spec: HeadSpec) -> Iterator[KernelForm]:
    graph = build_graph(spec, SHAPE)
    for node in (node for node in graph.parts if node.path is not None):
        yield from (_form(form.backend, form.description, (node,)) for form in node.operation.forms if form.backend in KERNELS)
    for pattern, names in matches(graph):
        nodes = [graph.nodes[name] for name in names.values()]
        parts = {node: part for node, name in names.items() if (part := graph.nodes[name].part) is not None}
        yield from (_form(form.backend, form.description, nodes) for form in pattern.forms(parts) if form.backend in KERNELS)


def _form(backend: str, description: str, nodes: Iterable[Node]) -> KernelForm:
    """nodes: those that the form computes. Maps of keys are named by their maps of queries, and pairs by no part of a spec."""
    kinds = tuple(node.kind for node in nodes if node.path is not None)
    return KernelForm(backend, ", ".join(kinds), description, kinds)


def cases_of(runs: Mapping[KernelForm, Mapping[CallPlace, HeadSpec]]) -> dict[str, tuple[KernelForm, str, CallPlace]]:
    """Return the cases of each form: with gradients if it has them, of one token if it is for one alone."""
    cases = {}
    for form, places in sorted(runs.items()):
        for tokens, documents in (("calls", False), ("documents", True), ("padding", False)):
            possible = [place for place in places if place[0] is documents]
            if possible:
                name = f"{tokens}, {form.computes}: {form.description}"
                cases[name] = form, tokens, max(possible, key=lambda place: (not place[1], place[2]))
    return cases


TOKENS: Mapping[str, Callable[[], Tokens]] = {"calls": plain, "documents": packed_tokens, "padding": padded_tokens}
"""A text in several calls, the second of which begins with a state; several documents a row; a row that ends early, in one call."""


def assert_is_definition(spec: HeadSpec, form: KernelForm, tokens: str, place: CallPlace) -> None:
    _, one_token, gradients = place
    split = (17, 18, 19, 20) if one_token else () if tokens == "padding" else (9, 20)
    assert_on_kernels(steady(spec), SHAPE, form.backend, TOKENS[tokens](), split=split, gradients=gradients, cancelled=CANCELLED)
