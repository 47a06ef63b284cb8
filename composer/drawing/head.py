"""One head's graph as SVG elements, from its left upper corner on."""

from __future__ import annotations

from collections.abc import Iterator

from composer.drawing.contents import LEADING, PADDING, Box, boxes_and_links
from composer.drawing.layered import BEFORE_LABEL, LABEL_SIZE, Route, Size, place, widen
from composer.drawing.style import element, escape_svg, number
from composer.graph.graph import HeadGraph

ARROW, HALF = 7.0, 3.5
CUT = 8.0
"""The size of cut corners."""


def draw_head(graph: HeadGraph, tokens: int, dtype: str, marked: frozenset[str] = frozenset()) -> tuple[list[str], float, float]:
    """Elements, width, height. marked: nodes that another spec lacks or changes."""
    boxes, links = boxes_and_links(graph, tokens, dtype)
    top = frozenset(node.name for node in graph.order if node.part is None and node.operation.gives)
    layout = place({name: box.size for name, box in boxes.items()}, links, top)
    sizes = {name: widen(box.size, [link for link in links if link.end == name]) for name, box in boxes.items()}
    elements = [piece for line in layout.lines for piece in _line(line)]
    for name, box in boxes.items():
        elements += _box(box, sizes[name], *layout.boxes[name], marked=name in marked)
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


def _box(box: Box, size: Size, x: float, y: float, *, marked: bool) -> Iterator[str]:
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
