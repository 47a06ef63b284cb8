"""Each box is below the boxes that feed it, crossings are minimal, and neighbours do not overlap."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from composer.drawing.layered import Link, Placed, Size, _rising, place


def link(start: str, end: str, label: str = "pairs") -> Link:
    return Link(start, "out", end, "pairs", label, 30.0)


def laid_out(names: str, ends: list[tuple[str, str]], top: str = "") -> Placed:
    return place({name: Size(80, 40, 8) for name in names}, [link(*pair) for pair in ends], frozenset(top))


@given(
    edges=st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda edge: edge[0] < edge[1]), min_size=1, max_size=20)
)
def test_nodes_of_any_graph_are_separate_and_edges_point_down(edges: set[tuple[int, int]]) -> None:
    names = "".join(str(number) for number in sorted(set(itertools.chain(*edges))))
    layout = laid_out(names, [(str(layout), str(other)) for layout, other in sorted(edges)], names[:1])
    assert set(layout.boxes) == set(names)
    arriving = [line for line in layout.lines if line.arrives]
    assert sorted((int(line.link.start), int(line.link.end)) for line in arriving) == sorted(edges)
    for start, end in edges:
        assert layout.boxes[str(start)][1] + 40 < layout.boxes[str(end)][1]
    for box, other in itertools.combinations(layout.boxes.values(), 2):
        assert box[1] != other[1] or abs(box[0] - other[0]) >= 80


def test_straight_edges_are_drawn_if_possible() -> None:
    layout = laid_out("abc", [("a", "b"), ("b", "c")])
    assert [len({x for x, _ in line.points}) for line in layout.lines] == [1, 1]


def test_avoidable_crossings_are_avoided() -> None:
    """a feeds d and b feeds c, which start in the other order."""
    layout = laid_out("abcd", [("a", "d"), ("b", "c")], "ab")
    assert (layout.boxes["a"][0] < layout.boxes["b"][0]) == (layout.boxes["d"][0] < layout.boxes["c"][0])


def test_edges_of_one_output_share_a_line() -> None:
    """a feeds b, c and d in a column. One line passes b, and one continues past c."""
    layout = laid_out("abcd", [("a", "b"), ("b", "c"), ("c", "d"), ("a", "c"), ("a", "d")])
    passing = [line for line in layout.lines if not line.arrives]
    assert [line.link.start for line in passing] == ["a", "a"]
    assert passing[0].points[-1][0] == passing[1].points[0][0]


def test_isotonic_fit_is_the_nearest_nondecreasing_sequence() -> None:
    assert _rising([3.0, 1.0, 2.0], [1.0, 1.0, 1.0]) == [2.0, 2.0, 2.0]
    assert _rising([1.0, 5.0, 2.0], [1.0, 1.0, 3.0]) == [1.0, 2.75, 2.75]
