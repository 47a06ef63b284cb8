"""The names and declarations of a resolved spec's fresh parameters, before anything is built."""

from __future__ import annotations

from collections.abc import Iterator

from blocks.legend import Shape
from blocks.part import Fresh, Part
from composer.graph.composition import HeadSpec
from composer.graph.graph import HeadGraph
from composer.graph.wiring import build_graph
from composer.spec.resolve import Resolved


def prefix(resolved: Resolved, layer: int, head: str) -> str:
    """Return the prefix of the names of a head's fresh parameters: ``model.layers.0.self_attn.composed.<head>.``."""
    return f"{resolved.dimensions.attention.format(layer=layer)}.composed.{head}."


def modules(head: HeadSpec, shape: Shape) -> Iterator[tuple[str, Part, Shape]]:
    """Yield the parts of a head that have parameters, each once: module name, part, shape."""
    seen = set()
    for node in build_graph(head, shape).parts:
        if node.part is not None and node.module not in seen and node.part.parameters(node.shape):
            yield node.module, node.part, node.shape
        seen.add(node.module)


def head_parameters(head: HeadSpec, shape: Shape) -> dict[str, Fresh]:
    """Return the fresh parameters of one group of heads, called ``<module>.<tensor>``."""
    return {f"{module}.{name}": fresh for module, part, own in modules(head, shape) for name, fresh in part.parameters(own).items()}


def fresh_parameters(resolved: Resolved) -> dict[str, Fresh]:
    """Return all fresh parameters, by their full names: ``model.layers.0.self_attn.composed.<head>.<module>.<tensor>``."""
    return {
        prefix(resolved, layer, group.head) + name: fresh
        for layer, group, head, shape in resolved.groups()
        for name, fresh in head_parameters(head, shape).items()
    }


def graphs_of(*models: Resolved) -> Iterator[HeadGraph]:
    """Return the graph of every head of some models, as often as layers have it."""
    return (build_graph(head, shape) for resolved in models for _, _, head, shape in resolved.groups())
