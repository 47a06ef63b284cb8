"""A head's graph as boxes and SVG elements. Boxes follow from each part's declarations, so that new parts need no code here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from blocks.memories.base import Memory
from blocks.operation import EVICTED, Kind, Slot
from blocks.part import Part
from composer.drawing.layered import BEFORE_LABEL, LABEL_SIZE, Link, Route, Size, place, widen
from composer.drawing.style import element, escape_svg, fit_text, lines_of, number, width
from composer.graph.graph import Edge, HeadGraph, Node
from composer.reporting.words import plural, size
from composer.spec.explain import state_bytes, state_size

TITLE, DETAIL = 13, 11
WIDEST = 210.0
"""The widest line in a box."""
LEADING = {TITLE: 17.0, DETAIL: 15.0}
PADDING, INSET = 7.0, 10.0
WORDS = {
    Kind.HIDDEN: "hidden states",
    Kind.QUERY: "queries",
    Kind.KEY: "keys",
    Kind.VALUE: "values",
    Kind.NUMBERS: "rates",
    Kind.PAIRS: "pairs",
    Kind.FEATURES: "features",
    Kind.KEYS: "features",
    Kind.DECAY: "decay",
    Kind.WEIGHT: "weight",
    Kind.PARTIAL: "partial",
    Kind.SINKS: "sinks",
    Kind.OUTPUT: "output",
}
"""The labels of edges, by kind."""
LOOKS = {
    Kind.PARTIAL: "memory",
    Kind.FEATURES: "features",
    **dict.fromkeys((Kind.DECAY, Kind.NUMBERS, Kind.WEIGHT, Kind.SINKS), "control"),
    Kind.PAIRS: "pairs",
    Kind.OUTPUT: "after",
}
"""The look of a part by the kind of its output; any other part looks like one that mixes tokens."""
ENOUGH = 40
"""The most characters of a value that is shown in full."""


@dataclass(frozen=True)
class Text:
    """One line in a box. style: caption, title, detail or state."""

    text: str
    size: int
    style: str


@dataclass(frozen=True)
class Box:
    """One node as it is drawn. look: the name of its shape and colour. title: the text of its tooltip."""

    name: str
    look: str
    lines: tuple[Text, ...]
    title: str

    @property
    def size(self) -> Size:
        wide = max(width(line.text, line.size, bold=line.style in ("title", "state")) for line in self.lines)
        height = sum(LEADING[line.size] for line in self.lines) + 2 * PADDING
        return Size(max(wide + 2 * (PADDING + INSET), 84.0), height, INSET)


def boxes_and_links(graph: HeadGraph, tokens: int, dtype: str) -> tuple[dict[str, Box], list[Link]]:
    """Return the boxes and links of a head's graph, in the order of the flow, without nodes that nothing flows through.

    tokens: at which a growing state is counted. dtype: that the model computes in.
    """
    passed = {node.name: edge for node in graph.parts if (edge := _passes(graph, node))}
    joined: dict[tuple[str, str, str, str], list[Edge]] = {}
    maps = {node.name for node in graph.parts if Kind.KEYS in (port.kind for port in node.operation.gives)}
    for edge in graph.edges:
        if edge.end in passed or maps & {edge.start, edge.end}:  # one box for a feature map: that of its queries
            continue
        start = edge
        while start.start in passed:
            start = passed[start.start]
        joined.setdefault((start.start, start.output, edge.end, edge.input), []).append(
            replace(start, end=edge.end, input=edge.input)
        )
    links = [_link(edges[0], len(edges)) for edges in joined.values()]
    drawn = {name for link in links for name in (link.start, link.end)}
    sizes = _state_bytes(graph, tokens, dtype)
    nodes = [node for node in graph.order if node.name in drawn]
    return {node.name: _box(node, graph, sizes.get(node.name, 0), tokens) for node in nodes}, links


def _passes(graph: HeadGraph, node: Node) -> Edge | None:
    """Return the only input of a node that is drawn as a line: no spec names it, and it has one input, one output and no state."""
    entering = graph.into(node.name)
    is_line = node.path is None and node.main and len(entering) == 1 and len(graph.out_of(node.name)) == 1
    return entering[0] if is_line and not node.operation.slots else None


def _link(edge: Edge, count: int) -> Link:
    word = WORDS[edge.kind]
    if evicts := edge.output == EVICTED:
        word = "evicted pairs"
    elif edge.kind in (Kind.KEY, Kind.QUERY, Kind.VALUE) and edge.input != edge.kind:
        word = f"{edge.input} {word}"
    kind = edge.output if evicts else str(edge.kind)
    label = fit_text(word, WIDEST, LABEL_SIZE)
    sizes = " × ".join(f"{count:,}" for count in (edge.heads, edge.dim) if count)
    title = f"{word}, from {edge.start} to {edge.end}" + (f": {sizes} a token" if sizes and edge.kind is not Kind.WEIGHT else "")
    return Link(edge.start, edge.output, edge.end, kind, label, width(label, LABEL_SIZE), title)


def _state_bytes(graph: HeadGraph, tokens: int, dtype: str) -> dict[str, int]:
    """Return the bytes of each node's state, for one row of a batch."""
    by_node: dict[str, dict[str, Slot]] = {}
    for name, slot in state_size(graph, tokens).items():
        node, _, tensor = name.rpartition(".")
        by_node.setdefault(node, {})[tensor] = slot
    return {node: state_bytes(slots, dtype) for node, slots in by_node.items()}


def _box(node: Node, graph: HeadGraph, state_bytes: int, tokens: int) -> Box:
    caption, title, details = _words(node)
    lines = [Text(fit_text(caption, WIDEST, DETAIL), DETAIL, "caption")] if caption else []
    lines.append(Text(fit_text(title, WIDEST, TITLE, bold=True), TITLE, "title"))
    shown = {id(other.part) for other in graph.parts if other is not node}
    if node.part is not None and node.main:
        details = [*details, *_fields_in_words(node.part, shown)]
    lines += [Text(line, DETAIL, "detail") for line in lines_of(details, WIDEST, DETAIL)]
    if state_bytes:
        grows = isinstance(node.part, Memory) and node.part.grows
        lines.append(Text(f"state {size(state_bytes)}", DETAIL, "state"))
        if grows:
            lines.append(Text(f"at {tokens:,} tokens; it grows", DETAIL, "detail"))
    equation = f"\n{node.part.equation}\n({node.part.source})" if node.part is not None and hasattr(node.part, "equation") else ""
    return Box(node.name, _look(node), tuple(lines), f"{node.name}{equation}")


def _words(node: Node) -> tuple[str, str, list[str]]:
    """Caption, title and first details."""
    shape, gives = node.shape, [port.kind for port in node.operation.gives]
    if node.part is None:
        if not gives:
            return "", "output", [f"{plural(shape.heads, 'head')} × {shape.value_dim:,}"]
        word = WORDS[gives[0]]
        heads = shape.heads if gives[0] is Kind.QUERY else shape.key_heads
        sizes = {Kind.HIDDEN: f"{shape.hidden_size:,} a token", Kind.SINKS: plural(shape.heads, "head")}.get(gives[0])
        width = shape.value_dim if gives[0] is Kind.VALUE else shape.head_dim
        return "", word, [sizes or f"{plural(heads, 'head')} × {width:,}"]
    if gives == [Kind.WEIGHT]:
        return f"weight of {node.module}", _value(getattr(node.part, "weight", None)), []
    if node.path is None and Kind.PAIRS in gives:
        return "", "pairs", ["key and value of a token"]
    role = node.part.role
    if isinstance(node.part, Memory):
        named = node.part.called != node.kind
        return f"{role}: {node.kind}" if named else role, node.part.called, []
    details = []
    if Kind.FEATURES in gives:
        details.append(f"{shape.features:,} features")
    return (role if node.main else f"{role}, way out"), node.kind, details


def _fields_in_words(part: Part, shown: set[int]) -> Iterator[str]:
    """Yield a part's fields in words: sizes always, others where they are not at their defaults. shown: parts with boxes of their
    own."""
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if name in ("kind", "name", "weight") or id(value) in shown:
            continue
        if isinstance(value, Part):
            inner = ", ".join(_fields_in_words(value, shown))
            if not value.idle:
                yield f"{name} {value.kind}" + (f" ({inner})" if inner else "")
        elif (isinstance(value, int) and not isinstance(value, bool)) or value != field.get_default(call_default_factory=True):
            yield f"{name.replace('_', ' ')} {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, tuple | list):
        text = ", ".join(map(_value, value))
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key} {_value(item)}" for key, item in value.items())
    elif isinstance(value, bool) or value is None:
        text = {True: "yes", False: "no", None: "none"}[value]
    elif isinstance(value, float):
        text = f"{value:g}"
    else:
        text = str(value)
    return text if len(text) <= ENOUGH else text[:ENOUGH] + "…"


def _look(node: Node) -> str:
    """Return the name of a node's shape and colour, which follow from the kinds of its ports."""
    if node.part is None:
        return "input" if node.operation.gives else "result"
    gives = {port.kind for port in node.operation.gives}
    if any(port.kind is Kind.PARTIAL for port in node.operation.reads):
        return "read"
    return next((look for kind, look in LOOKS.items() if kind in gives), "mixing")


ARROW, HALF = 7.0, 3.5
CUT = 8.0
"""The size of cut corners."""


def draw_head(graph: HeadGraph, tokens: int, dtype: str, marked: frozenset[str] = frozenset()) -> tuple[list[str], float, float]:
    """Draw a head. Return its SVG elements, width and height. marked: nodes that another spec lacks or changes."""
    boxes, links = boxes_and_links(graph, tokens, dtype)
    top = frozenset(node.name for node in graph.order if node.part is None and node.operation.gives)
    layout = place({name: box.size for name, box in boxes.items()}, links, top)
    sizes = {name: widen(box.size, [link for link in links if link.end == name]) for name, box in boxes.items()}
    elements = [piece for line in layout.lines for piece in _line(line)]
    for name, box in boxes.items():
        elements += _draw_box(box, sizes[name], *layout.boxes[name], marked=name in marked)
    return elements, layout.width, layout.height


def _line(line: Route) -> Iterator[str]:
    (x, y), (_, bends), (ends_at, straight), (_, end) = line.points
    stop = end - ARROW + 1 if line.arrives else end
    middle = (bends + straight) / 2
    bend = f"C{number(x)} {number(middle)} {number(ends_at)} {number(middle)} {number(ends_at)} {number(straight)}"
    path = f"M{number(x)} {number(y)}V{number(bends)}{bend}V{number(stop)}"
    kind = line.link.kind
    yield element("path", [element("title", escape_svg(line.link.title))], class_=f"cd-flow cd-{kind}", d=path)
    if line.arrives:
        tip = f"M{number(ends_at)} {number(end)}l{number(-HALF)} {number(-ARROW)}h{number(2 * HALF)}z"
        yield element("path", class_=f"cd-tip cd-{kind}", d=tip)
        yield element(
            "text",
            escape_svg(line.link.label),
            class_=f"cd-label cd-{kind}",
            x=ends_at + BEFORE_LABEL,
            y=end - 10,
            font_size=LABEL_SIZE,
        )


def _draw_box(box: Box, size: Size, x: float, y: float, *, marked: bool) -> Iterator[str]:
    shape = element("path", class_="cd-shape", d=_shape(box.look, x, y, size.width, size.height))
    inside = [element("title", escape_svg(box.title)), shape]
    if box.look == "memory":
        inside.append(element("path", class_="cd-lid", d=f"M{number(x + 4)} {number(y + 4)}h{number(size.width - 8)}"))
    if marked:
        inside.append(element("path", class_="cd-marked", d=_shape("result", x - 4, y - 4, size.width + 8, size.height + 8)))
    at = y + PADDING
    for line in box.lines:
        at += LEADING[line.size]
        inside.append(
            element(
                "text",
                escape_svg(line.text),
                class_=f"cd-{line.style}",
                x=x + size.width / 2,
                y=at - 4,
                font_size=line.size,
                text_anchor="middle",
            )
        )
    yield element("g", inside, class_=f"cd-box cd-{box.look}")


def _shape(look: str, x: float, y: float, wide: float, high: float) -> str:
    """Return an outline of straight pieces. Each kind of part has its own, so that no reader depends on colours."""
    right, foot, c = x + wide, y + high, CUT
    middle = y + high / 2
    corners = {
        "input": [(x + c, y), (right - c, y), (right, y + c), (right, foot), (x, foot), (x, y + c)],
        "result": [(x, y), (right, y), (right, foot - c), (right - c, foot), (x + c, foot), (x, foot - c)],
        "features": [(x + c, y), (right - c, y), (right, middle), (right - c, foot), (x + c, foot), (x, middle)],
        "control": [(x + c, y), (right, y), (right - c, foot), (x, foot)],
        "mixing": [
            *((x + c, y), (right - c, y), (right, y + c), (right, foot - c)),
            *((right - c, foot), (x + c, foot), (x, foot - c), (x, y + c)),
        ],
        "read": [(x, y), (right, y), (right - c, foot), (x + c, foot)],
        "after": [(x, y), (right - c, y), (right, y + c), (right, foot), (x + c, foot), (x, foot - c)],
    }.get(look, [(x, y), (right, y), (right, foot), (x, foot)])
    return "M" + "L".join(f"{number(across)} {number(down)}" for across, down in corners) + "z"
