"""Places boxes that feed each other in layers, top to bottom, and the lines between them.

A line leaves the foot of a box, and enters others at their heads. Where it passes layers, it has its own place among their
boxes, so that it never runs through one; all that leaves one output shares these places, and branches where it has to. Lines bend
only between layers; the last piece of each is straight, with its label beside it, above the box that it enters. So labels meet
neither boxes, nor lines, nor each other.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LABEL_SIZE = 11
STRIP = 24.0
"""Height of the straight pieces above boxes, with their labels."""
GAP, LANE = 22.0, 18.0
"""The gap between two boxes of a layer, and the width of a line that passes a layer."""
BEFORE_LABEL, AFTER_LABEL = 6.0, 12.0
SWEEPS, SETTLINGS = 12, 16
Key = tuple[str, str, int]
"""A box as ("", name, 0), or the place of a line in a layer that it passes: its box, its output, and the layer."""


@dataclass(frozen=True)
class Link:
    """From an output of a box to another box. label: beside its end. label_width: of that, in the picture's units."""

    start: str
    output: str
    end: str
    kind: str
    label: str
    label_width: float
    title: str = ""


@dataclass(frozen=True)
class Size:
    """The size of a box. Lines enter and leave it at least ``inset`` from its corners."""

    width: float
    height: float
    inset: float


@dataclass(frozen=True)
class Route:
    """A link, or a piece of several, as points: straight down where both have the same x, bent between layers otherwise."""

    link: Link
    points: tuple[tuple[float, float], ...]
    arrives: bool
    """Whether it ends at the head of a box, with an arrow and a label."""


@dataclass
class Placed:
    """The left upper corner of every box, and all lines."""

    width: float
    height: float
    boxes: dict[str, tuple[float, float]] = field(default_factory=dict)
    lines: list[Route] = field(default_factory=list)


def widen(size: Size, links: Sequence[Link]) -> Size:
    """Return the box, at least as wide as the labels above it."""
    needed = sum(BEFORE_LABEL + link.label_width + AFTER_LABEL for link in links) + 2 * size.inset
    return Size(max(size.width, needed), size.height, size.inset)


def place(sizes: Mapping[str, Size], links: Sequence[Link], top: frozenset[str]) -> Placed:
    """Return the layout. sizes: of every box, in the order of the flow. top: boxes of the first layer, if nothing feeds them."""
    return _Layout(sizes, links, top).finish()


class _Layout:
    def __init__(self, sizes: Mapping[str, Size], links: Sequence[Link], top: frozenset[str]) -> None:
        into: dict[str, list[Link]] = defaultdict(list)
        for link in links:
            into[link.end].append(link)
        self.into = into
        self.sizes = {name: widen(size, into[name]) for name, size in sizes.items()}
        self.links = links
        self.layer = _layers(sizes, links, top)
        self.rows: list[list[Key]] = [[] for _ in range(max(self.layer.values(), default=-1) + 1)]
        for name in sizes:
            self.rows[self.layer[name]].append(("", name, 0))
        self.pieces: list[tuple[Key, Key, Link]] = []
        self._cut_into_pieces()
        self.above: dict[Key, list[tuple[Key, Link]]] = defaultdict(list)
        self.below: dict[Key, list[tuple[Key, Link]]] = defaultdict(list)
        for start, end, link in self.pieces:
            self.above[end].append((start, link))
            self.below[start].append((end, link))
        self._order()
        self.heads, self.feet = self._ports()
        self.x = self._settle()

    def _cut_into_pieces(self) -> None:
        """Cut links into pieces from layer to layer, with a place in each layer between; links of one output share their places."""
        passes: set[Key] = set()
        pieces: dict[tuple[Key, Key, str], Link] = {}
        for link in self.links:
            here: Key = ("", link.start, 0)
            for layer in range(self.layer[link.start] + 1, self.layer[link.end]):
                waypoint: Key = (f"{link.start}.{link.output}", link.output, layer)
                if waypoint not in passes:
                    passes.add(waypoint)
                    self.rows[layer].append(waypoint)
                pieces.setdefault((here, waypoint, link.output), link)
                here = waypoint
            pieces[here, ("", link.end, 0), f"{link.output}→{link.label}"] = link
        self.pieces = [(start, end, link) for (start, end, _), link in pieces.items()]

    def _order(self) -> None:
        """Order each layer: the best result of several sweeps down and up, by the number of crossings."""
        best, fewest = [list(row) for row in self.rows], self._crossings()
        for sweep in range(SWEEPS):
            if fewest == 0:
                break
            down = sweep % 2 == 0
            neighbours = self.above if down else self.below
            places = range(1, len(self.rows)) if down else range(len(self.rows) - 2, -1, -1)
            for index in places:
                beside = {key: place for place, key in enumerate(self.rows[index - 1 if down else index + 1])}
                row = self.rows[index]
                wish = {key: _mean([beside[other] for other, _ in neighbours[key]], place) for place, key in enumerate(row)}
                self.rows[index] = sorted(row, key=wish.__getitem__)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
        self.rows = best

    def _crossings(self) -> int:
        count = 0
        place = {key: index for row in self.rows for index, key in enumerate(row)}
        for row in self.rows:
            seen: list[int] = []
            for start in row:
                ends = sorted(place[end] for end, _ in self.below[start])
                count += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return count

    def _ports(self) -> tuple[dict[tuple[str, Link], float], dict[tuple[str, str], float]]:
        """Where lines enter and leave boxes, from the boxes' left sides, in the order of the boxes at their other ends."""
        place = {key: index for row in self.rows for index, key in enumerate(row)}
        heads: dict[tuple[str, Link], float] = {}
        feet: dict[tuple[str, str], float] = {}
        for name, size in self.sizes.items():
            key: Key = ("", name, 0)
            entering = sorted(self.above[key], key=lambda piece: place[piece[0]])
            slots = [BEFORE_LABEL + link.label_width + AFTER_LABEL for _, link in entering]
            x = (size.width - sum(slots)) / 2 + BEFORE_LABEL
            if len(entering) == 1:
                # A line in the middle of a box looks better than one with its label in the middle.
                x = min(size.width / 2, size.width - size.inset - slots[0] + BEFORE_LABEL)
            for (_, link), slot in zip(entering, slots, strict=True):
                heads[name, link] = x
                x += slot
            leaving: dict[str, list[int]] = defaultdict(list)
            for end, link in self.below[key]:
                leaving[link.output].append(place[end])
            outputs = sorted(leaving, key=lambda output: _mean(leaving[output], 0))
            room = (size.width - 2 * size.inset) / len(outputs) if outputs else 0
            for index, output in enumerate(outputs):
                feet[name, output] = size.inset + room * (index + 0.5)
        return heads, feet

    def _width(self, key: Key) -> float:
        return LANE if key[0] else self.sizes[key[1]].width

    def _foot(self, start: Key, link: Link) -> float:
        return LANE / 2 if start[0] else self.feet[start[1], link.output]

    def _head(self, end: Key, link: Link) -> float:
        return LANE / 2 if end[0] else self.heads[end[1], link]

    def _settle(self) -> dict[Key, float]:
        """Return the left sides of boxes and places: each as near as its layer allows to the position at which its lines are
        straight."""
        x: dict[Key, float] = {}
        for row in self.rows:
            at = 0.0
            for key in row:
                x[key] = at
                at += self._width(key) + GAP
        for round_ in range(SETTLINGS):
            down = round_ % 2 == 0
            for row in self.rows if down else reversed(self.rows):
                self._settle_row(row, x, down, both=round_ >= SETTLINGS - 2)
        left = min(x.values(), default=0.0)
        return {key: at - left for key, at in x.items()}

    def _settle_row(self, row: Sequence[Key], x: dict[Key, float], down: bool, *, both: bool) -> None:
        wishes, weights, offsets = [], [], []
        at = 0.0
        for key in row:
            wish, weight = x[key] * 0.01, 0.01
            for other, link in self.above[key] if down or both else ():
                pull = _pull(key, other)
                wish, weight = wish + pull * (x[other] + self._foot(other, link) - self._head(key, link)), weight + pull
            for other, link in self.below[key] if not down or both else ():
                pull = _pull(key, other)
                wish, weight = wish + pull * (x[other] + self._head(other, link) - self._foot(key, link)), weight + pull
            wishes.append(wish / weight - at)
            weights.append(weight)
            offsets.append(at)
            at += self._width(key) + GAP
        for key, place, offset in zip(row, _rising(wishes, weights), offsets, strict=True):
            x[key] = place + offset

    def finish(self) -> Placed:
        right = max((self.x[key] + self._width(key) for key in self.x), default=0.0)
        result, y = Placed(right, 0.0), 0.0
        tops: list[float] = []
        bottoms: list[float] = []
        for index, row in enumerate(self.rows):
            if index:
                y += self._channel(index - 1) + STRIP
            tops.append(y)
            y += max((self.sizes[key[1]].height for key in row if not key[0]), default=0.0)
            bottoms.append(y)
        result.height = y
        for name, layer in self.layer.items():
            result.boxes[name] = (self.x["", name, 0], tops[layer])
        level = {key: index for index, row in enumerate(self.rows) for key in row}
        for start, end, link in self.pieces:
            first, last = self.x[start] + self._foot(start, link), self.x[end] + self._head(end, link)
            above, below = level[start], level[end]
            begins = tops[above] if start[0] else tops[above] + self.sizes[start[1]].height
            points = [(first, begins), (first, bottoms[above]), (last, tops[below] - STRIP), (last, tops[below])]
            result.lines.append(Route(link, tuple(points), not end[0]))
        return result

    def _channel(self, index: int) -> float:
        """Height between two layers: the farther lines run to the side, the more."""
        across = [
            abs(self.x[start] + self._foot(start, link) - self.x[end] - self._head(end, link))
            for start in self.rows[index]
            for end, link in self.below[start]
        ]
        return min(56.0, 12.0 + max(across, default=0.0) / 9)


def _layers(names: Mapping[str, Size], links: Sequence[Link], top: frozenset[str]) -> dict[str, int]:
    """Return the layer of each box: below all that feed it and, except for ``top``, as near as possible to the first box that it
    feeds."""
    import networkx

    graph: networkx.DiGraph = networkx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from((link.start, link.end) for link in links)
    layer: dict[str, int] = {}
    for generation, members in enumerate(networkx.topological_generations(graph)):
        layer |= dict.fromkeys(members, generation)
    for name in reversed(list(networkx.topological_sort(graph))):
        fed = [layer[other] for other in graph.successors(name)]
        if fed and name not in top:
            layer[name] = min(fed) - 1
    used = {old: new for new, old in enumerate(sorted(set(layer.values())))}
    return {name: used[layer[name]] for name in names}


def _pull(first: Key, second: Key) -> float:
    """Return the weight of a line in the layout, by which it is kept straight: largest where it passes layers."""
    return 8.0 if first[0] and second[0] else 2.0 if first[0] or second[0] else 1.0


def _mean(places: Sequence[int], otherwise: int) -> float:
    return sum(places) / len(places) if places else otherwise


def _rising(wishes: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Isotonic regression: the non-decreasing values nearest to the wishes in weighted squares, by pooling adjacent violators."""
    pools: list[list[float]] = []
    for wish, weight in zip(wishes, weights, strict=True):
        pools.append([wish, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            value, mass, count = pools.pop()
            before = pools[-1]
            before[0] = (before[0] * before[1] + value * mass) / (before[1] + mass)
            before[1] += mass
            before[2] += count
    return [value for value, _, count in pools for _ in range(int(count))]
