"""Connected ports fit in kind and size, in the graph and for real tensors, and a graph is built once."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import networkx
import pytest
import torch
from hypothesis import given
from torch import Tensor

from blocks.flow import Pairs, Partial
from blocks.legend import Shape
from blocks.operation import Call, Kind, Port
from composer.graph.composition import HeadSpec
from composer.graph.graph import HeadGraph
from composer.graph.lowering import compile_head, lower
from composer.graph.program import CoveredOperation, HeadFunctions
from composer.graph.source import write_source
from composer.graph.wiring import build_graph
from composer.model.head import Head
from tests.composer.graph.heads import SIZE, shipped
from tests.covers import in_turns
from tests.laws.cases import SHAPES, build_head, every_head, inputs, once
from tests.laws.draw import random_heads
from tests.shipped import FEW

HEADS = every_head()
LENGTH = 9


def assert_fits(graph: HeadGraph) -> None:
    """Check that every edge connects an output to an input of its kind and sizes, and that required inputs are connected."""
    for edge in graph.edges:
        (gives,) = [port for port in graph.nodes[edge.start].operation.gives if port.name == edge.output]
        (reads,) = [port for port in graph.nodes[edge.end].operation.reads if port.name == edge.input]
        assert (edge.kind, edge.heads, edge.dim) == (gives.kind, gives.heads, gives.dim)
        assert reads.kind is edge.kind
        assert reads.heads in {None, edge.heads}
        assert reads.dim in {None, edge.dim}
        assert None not in {gives.heads, gives.dim}, "what flows has a size"
    for node in graph.nodes.values():
        for port in node.operation.reads:
            edges = graph.into(node.name, port.name)
            assert edges or not port.needed
            if port.many:
                labels = [edge.label for edge in edges]
                assert None not in labels
                assert len(set(labels)) == len(labels)
            else:
                assert len(edges) <= 1
        for ports in (node.operation.reads, node.operation.gives):
            assert len({port.name for port in ports}) == len(ports)


@pytest.mark.parametrize("name", FEW)
def test_the_edges_of_shipped_specs_fit_their_ports(name: str) -> None:
    spec = shipped(name)
    for head in spec.heads.values():
        assert_fits(build_graph(head, spec.shape(4)))


@given(drawn=random_heads())
def test_the_edges_of_random_heads_fit_their_ports(drawn: tuple[HeadSpec, Shape]) -> None:
    assert_fits(build_graph(*drawn))


def sizes(port: Port, value: Any, shape: Shape) -> None:
    """Return the sizes of a port. A port of pairs has the size of keys, and its part's shape has the size of values."""
    heads, dim = port.heads, port.dim
    tensors: dict[type, tuple[str, ...]] = {Pairs: ("key",), Partial: ("output",)}
    assert isinstance(value, {Kind.PAIRS: Pairs, Kind.PARTIAL: Partial}.get(port.kind, Tensor))
    if isinstance(value, Pairs):
        assert value.value.shape[2:] == (heads, shape.value_dim)
    for tensor in [getattr(value, name) for name in tensors[type(value)]] if type(value) in tensors else [value]:
        if port.kind is Kind.HIDDEN:
            assert tensor.shape[2:] == (dim,)
        elif port.kind is Kind.NUMBERS:
            assert tensor.shape[2:] == (heads,)
        elif port.kind is Kind.WEIGHT:
            assert tensor.shape[-1] == heads
        elif port.kind is Kind.DECAY:
            assert tensor.shape[2:] in {(heads,), (heads, dim)}
        else:
            assert tensor.shape[2:] == (heads, dim)


@once
def assert_flows(spec: HeadSpec, shape: Shape) -> None:
    """Run the program step by step, and check kinds and sizes of all outputs and of every state."""
    head, data = build_head(spec, shape), inputs(shape, 2, LENGTH)
    modules: Any = head._modules
    program, start = lower(build_graph(spec, shape)), head.empty_state(2, torch.float64, torch.device("cpu"))
    call = Call(data.tokens, start, shape)

    def watch(covered: CoveredOperation, _: Call, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        for port, value in zip(covered.node.operation.gives, outputs, strict=True):
            if port.name in ("evicted", "keys") and value is None:
                continue  # it has nowhere to go, or the memory maps its keys itself
            sizes(port, value, covered.node.shape)
        return outputs

    carried: dict[str, Tensor] = {}
    if program.before:
        carried |= write_source(program, mixing=True, watched=True).compile("before")(modules, call, data.hidden, watch)[1]
    output, new_state = HeadFunctions(program).watched_head(modules, call, *data.of_head().tensors, watch)
    assert (carried | new_state).keys() == start.keys()
    assert output.shape == (*data.query.shape[:3], shape.value_dim)


@pytest.mark.parametrize(("name", "shape"), in_turns(HEADS, SHAPES))
def test_values_on_edges_match_the_kinds_of_their_ports(name: str, shape: str) -> None:
    assert_flows(HEADS[name], SHAPES[shape])


@given(drawn=random_heads())
def test_values_on_edges_of_random_heads_match_the_kinds_of_their_ports(drawn: tuple[HeadSpec, Shape]) -> None:
    assert_flows(*drawn)


def test_graphs_are_cached_by_head_and_shape() -> None:
    """An equal head and shape in another layer has the same graph object."""
    for kept in (build_graph, compile_head):
        cast("Any", kept).cache_clear()  # what other tests have made may push out one of the two
    spec, again = shipped("lolcats").heads["head"], shipped("lolcats").heads["head"]
    graph = build_graph(spec, SIZE.shape(4))
    assert build_graph(again, SIZE.shape(4)) is graph
    assert build_graph(spec, SIZE.shape(2)) is not graph
    assert cast("Any", build_graph).__wrapped__(spec, SIZE.shape(4)).edges == graph.edges
    first, second = (Head(spec, SIZE.shape(4), (layer, 0)) for layer in (0, 1))
    assert first._compiled is second._compiled
    assert first._compiled.graph is graph


def test_graphs_are_immutable() -> None:
    graph: Any = build_graph(shipped("lolcats").heads["head"], SIZE.shape(4))
    node, edge = graph.nodes["state"], graph.edges[0]
    for thing, field in ((graph, "edges"), (node, "part"), (node.operation, "forms"), (edge, "kind"), (node.shape, "heads")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, field, None)
    for mapping in (graph.nodes, node.options, graph.nodes["state_features"].options):
        with pytest.raises(TypeError):
            mapping["more"] = None
    for change in (lambda: graph.network.add_node("more"), lambda: graph.network.remove_node("state")):
        with pytest.raises(networkx.NetworkXError):
            change()
