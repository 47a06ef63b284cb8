"""A picture's SVG as boxes, labels and lines, measured with a font file instead of the product's table of widths."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font

from composer.drawing.picture import Picture

SVG = "{http://www.w3.org/2000/svg}"
POINTS = 8
"""Of the smallest letters."""
SLACK = 0.11
"""Coordinates are written to a tenth."""
Point = tuple[float, float]
ACROSS = 64
"""Points at which a bend is looked at."""


@dataclass(frozen=True)
class Rectangle:
    """left, top, right, bottom. says: the text in the rectangle, or the lines of a box."""

    left: float
    top: float
    right: float
    bottom: float
    says: str = ""

    def meets(self, other: Rectangle) -> bool:
        return self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom


@dataclass(frozen=True)
class Seen:
    """One drawn head, or the whole picture for words. outlines: the corners of each box. lines: points."""

    outlines: tuple[tuple[Point, ...], ...]
    inside: tuple[tuple[Rectangle, ...], ...]
    labels: tuple[Rectangle, ...]
    lines: tuple[tuple[Point, ...], ...]


@functools.cache
def _font(bold: bool) -> FT2Font:
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    font = FT2Font(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name))
    font.set_size(100, 72)
    return font


@functools.cache
def measured(text: str, size: float, bold: bool) -> float:
    """Return the width of a text in DejaVu Sans, by FreeType."""
    font = _font(bold)
    font.set_text(text, 0)
    return sum(font.load_char(ord(character)).linearHoriAdvance for character in text) / 65536 * size / 100


def _rectangle(element: ElementTree.Element) -> Rectangle:
    size, classes = float(element.get("font-size", "0")), set(element.get("class", "").split())
    text = element.text or ""
    wide = measured(text, size, bool(classes & {"cd-title", "cd-state", "cd-name"}))
    left = float(element.get("x", "0")) - (wide / 2 if element.get("text-anchor") == "middle" else 0)
    baseline = float(element.get("y", "0"))
    return Rectangle(left, baseline - 0.76 * size, left + wide, baseline + 0.24 * size, text)


def seen(panel: ElementTree.Element) -> Seen:
    """Read the drawing of one head."""
    outlines, inside, labels, lines = [], [], [], []
    for box in (element for element in panel if element.tag == f"{SVG}g"):
        shape = next(element for element in box if element.get("class") == "cd-shape")
        outlines.append(_corners(shape.get("d", "")))
        inside.append(tuple(_rectangle(element) for element in box if element.tag == f"{SVG}text"))
    for element in panel:
        if element.tag == f"{SVG}text":
            labels.append(_rectangle(element))
        if element.tag == f"{SVG}path" and "cd-flow" in element.get("class", ""):
            lines.append(tuple(_points(element.get("d", ""))))
    return Seen(tuple(outlines), tuple(inside), tuple(labels), tuple(lines))


def panels(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Return the drawing of each head."""
    return [element for element in root if element.tag == f"{SVG}g"]


def _corners(path: str) -> tuple[Point, ...]:
    assert re.fullmatch(r"M[-\d. L]+z", path), path
    return tuple((float(x), float(y)) for x, y in (pair.split() for pair in path[1:-1].split("L")))


def _points(path: str) -> list[Point]:
    match = re.fullmatch(r"M(\S+) (\S+)V(\S+)C(\S+) (\S+) (\S+) (\S+) (\S+) (\S+)V(\S+)", path)
    assert match, path
    x, y, bends, x1, y1, x2, y2, x3, y3, end = map(float, match.groups())
    curve = []
    for step in range(ACROSS + 1):
        t = step / ACROSS
        a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3
        curve.append((a * x + b * x1 + c * x2 + d * x3, a * bends + b * y1 + c * y2 + d * y3))
    straight = [(x, y + (bends - y) * step / 8) for step in range(9)] + curve
    return straight + [(x3, y3 + (end - y3) * step / 8) for step in range(9)]


def within(corners: tuple[Point, ...], point: Point) -> bool:
    """Return whether a point is in a convex outline, with a tolerance of a tenth."""
    sides = []
    for (x1, y1), (x2, y2) in itertools.pairwise((*corners, corners[0])):
        length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
        sides.append(((x2 - x1) * (point[1] - y1) - (y2 - y1) * (point[0] - x1)) / length)
    return min(sides) >= -SLACK


def crossed_by(points: Sequence[Point], rectangles: Sequence[Rectangle]) -> list[Rectangle]:
    """Return the rectangles that contain one of the points."""
    if not rectangles:
        return []
    x, y = np.array(points).T[:, :, None]
    left, top, right, bottom = np.array(
        [(rectangle.left, rectangle.top, rectangle.right, rectangle.bottom) for rectangle in rectangles]
    ).T
    inside = (left < x) & (x < right) & (top < y) & (y < bottom)
    return list(itertools.compress(rectangles, inside.any(axis=0)))


def around(corners: tuple[Point, ...]) -> Rectangle:
    """Return the bounding rectangle of an outline."""
    return Rectangle(min(x for x, _ in corners), min(y for _, y in corners), max(x for x, _ in corners), max(y for _, y in corners))


def assert_legible(picture: Picture) -> None:
    """Check that text stays in its box and on the page, boxes and labels do not overlap, and no line crosses them."""
    root = ElementTree.fromstring(picture.svg)
    assert panels(root)
    assert min(float(element.get("font-size", "0")) for element in root.iter(f"{SVG}text")) * 72 / 96 >= POINTS
    for panel in panels(root):
        shown = seen(panel)
        boxes = [around(corners) for corners in shown.outlines]
        assert boxes
        for corners, words in zip(shown.outlines, shown.inside, strict=True):
            assert words
            for word in words:
                for point in itertools.product((word.left, word.right), (word.top, word.bottom)):
                    assert within(corners, point), f"{word.says!r} leaves its box"
            assert not [(first, other) for first, other in itertools.combinations(words, 2) if first.meets(other)]
        apart = [*boxes, *shown.labels]
        assert not [(first, other) for first, other in itertools.combinations(apart, 2) if first.meets(other)]
        deep = [_deep(box) for box in boxes]
        for line in shown.lines:
            crossed = [label.says for label in crossed_by(line[1:], shown.labels)]
            assert not crossed, f"a line crosses the label {crossed[0]!r}"
            assert not crossed_by(line[1:], deep), "a line runs through a box"
        moved = re.fullmatch(r"translate\((\S+) (\S+)\)", panel.get("transform", ""))
        assert moved
        x, y = float(moved[1]), float(moved[2])
        for rectangle in apart:
            assert rectangle.left + x >= 0
            assert rectangle.right + x <= picture.width
            assert rectangle.bottom + y <= picture.height
    plain = [_rectangle(element) for element in root if element.tag == f"{SVG}text"]
    assert plain
    for rectangle in plain:
        assert rectangle.left >= 0 <= rectangle.top
        assert rectangle.right <= picture.width + SLACK, f"{rectangle.says!r} leaves the sheet"
        assert rectangle.bottom <= picture.height
    assert not [(first, other) for first, other in itertools.combinations(plain, 2) if first.meets(other)]


def _deep(box: Rectangle) -> Rectangle:
    return Rectangle(box.left + SLACK, box.top + SLACK, box.right - SLACK, box.bottom - SLACK)
