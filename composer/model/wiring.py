"""What a call has to know of its place in the graph, read once: where its inputs come from, and what is around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from blocks.feature_maps.base import FeatureMap, Scale
from blocks.flow import Pairs, Partial
from blocks.gates.base import Gate
from blocks.memories.base import Memory
from blocks.memories.delta import Delta
from blocks.memories.errors import Error
from blocks.memories.full import Full
from blocks.memories.latents import Latents
from blocks.memories.recurrent import Recurrent
from blocks.memories.sparse import Sparse
from blocks.memories.window import Window
from blocks.positions import NoPosition, Rope
from blocks.rates import Rate
from composer.graph.graph import UPWARDS, HeadGraph, asked, feed, is_plain
from composer.model.run import Run, Source

Position = Rope | NoPosition


@dataclass(frozen=True)
class Mapped:
    """A feature map as it stands above one state: its module, the turn before it, the scale of its answer, and its queries."""

    module: str
    position: Position
    scale: Scale
    queries: Source

    def query(self, run: Run) -> Tensor:
        """Features of the tokens' queries."""
        turned = self.position.rotate(run.values[self.queries], run.tokens.position)
        return run.compute(self.module, "map_query", turned, scale=self.scale)

    def key(self, run: Run, pairs: Pairs) -> Tensor:
        """Features of the pairs' keys."""
        turned = self.position.rotate(pairs.convolved, pairs.position)
        return run.compute(self.module, "map_key", turned, scale=self.scale)


@dataclass(frozen=True)
class Weigh:
    """Where a memory's weight in the read comes from: the weight of another, or its own function of the inputs."""

    same_as: Source | None
    inputs: Source

    def of(self, run: Run, module: str, partial: Partial) -> Partial:
        """The memory's answer with its weight."""
        if self.same_as is not None:
            return replace(partial, logit=run.values[self.same_as[0], "partial"].logit)
        return replace(partial, logit=run.compute(module, "logit", run.values[self.inputs], partial.output.shape[2]))


@dataclass(frozen=True)
class Below:
    """The state that a sparse cache feeds: its features, its node and module, its decay, and what travels with its pairs."""

    mapped: Mapped
    rate: str | None
    state: str
    module: str
    decay: Source | None
    weigh: Weigh | None


def wiring(graph: HeadGraph, node: str, place: tuple[int, int]) -> dict[str, Any]:
    """Where a part's inputs come from, by kind; of partials, all; and what the part has to know of its place."""
    part, kinds = graph.nodes[node]["part"], {data["kind"] for _, _, data in graph.in_edges(node, data=True)}
    wired: dict[str, Any] = {kind: feed(graph, node, kind) for kind in kinds - UPWARDS - {"weight"}}
    wired = {kind: sources if kind == "partial" else sources[0] for kind, sources in wired.items()}
    if isinstance(part, Memory):
        same = feed(graph, node, "weight")
        inputs = wired.pop("hidden", ("hidden", "hidden")) if part.reads != "inputs" else ("hidden", "hidden")
        wired["weigh"] = Weigh(same[0] if same else None, inputs) if part.weight is not None else None
    if isinstance(part, FeatureMap):
        wired = {"pairs": wired["pairs"], "mapped": _mapped(graph, node), "rate": _rate(graph, node)}
    if isinstance(part, Latents):
        wired["heads"] = graph.nodes[node]["shape"].heads
    if isinstance(part, (Gate, Rate, Recurrent)):
        wired["shape"] = graph.nodes[node]["shape"]
    if isinstance(part, Full):
        wired["plain"] = is_plain(graph, node)
    if isinstance(part, Window):
        wired["errors"] = _errors(graph, node)
    if isinstance(part, Sparse):
        wired |= {"place": place, "below": _below(graph, node)}
    return wired


def _mapped(graph: HeadGraph, node: str) -> Mapped:
    data, (state,) = graph.nodes[node], [end for _, end, kind in graph.out_edges(node, data="kind") if kind == "features"]
    memory = graph.nodes[state]["part"]
    scale = "unit" if memory.features_as == "unit" else "logarithm" if data["part"].exponential else "plain"
    return Mapped(data["module"], data["position"] or NoPosition(), scale, feed(graph, node, "query")[0])


def _rate(graph: HeadGraph, node: str) -> str | None:
    (state,) = [end for _, end, kind in graph.out_edges(node, data="kind") if kind == "features"]
    return f"{state}_rate" if isinstance(graph.nodes[state]["part"], Delta) else None


def _errors(graph: HeadGraph, node: str) -> dict[str, tuple[Error, Mapped]]:
    """The errors that the sparse caches below a window ask for, by the number that brings them."""
    asking = {sparse: features for sparse, (features, _) in asked(graph).items()}
    features = {start for start, _ in feed(graph, node, "error")}
    return {
        f"{sparse}_error": (graph.nodes[sparse]["part"].keep.error, _mapped(graph, start))
        for sparse, start in asking.items()
        if start in features
    }


def _below(graph: HeadGraph, node: str) -> Below | None:
    if node not in asked(graph):
        return None
    features, state = asked(graph)[node]
    decay = feed(graph, state, "decay")
    weigh = wiring(graph, state, (0, 0))["weigh"]
    return Below(
        _mapped(graph, features), _rate(graph, features), state, graph.nodes[state]["module"], decay[0] if decay else None, weigh
    )
