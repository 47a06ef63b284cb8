"""A program as text: one line an operation, in which every name is given before it is read; explain's forms stand in it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from blocks.legend import Shape
from blocks.operation import Setting
from blocks.recurrences import additive
from composer.graph.composition import HeadSpec
from composer.graph.graph import INPUTS, HeadGraph, build_graph
from composer.graph.listing import listing
from composer.graph.lowering import BACKENDS, lower, lowered
from composer.model.head import Head
from tests.composer.graph.heads import SIZE, graph_of, shipped
from tests.laws.draw import random_heads
from tests.shipped import SHIPPED


def assert_reads_well(graph: HeadGraph, backend: str = "auto") -> None:
    """A line for each operation and one for the projections; names in order; forms that explain says."""
    program = lower(graph, backend)
    *lines, last = listing(program)
    projected = bool(program.before)
    known = {"hidden"} if projected else set(INPUTS)
    for line in lines:
        left, _, right = line.partition(" = ")
        call = re.match(r"[a-z0-9_.]+\(([^()]*)\)", right)
        assert call is not None
        arguments = [argument.partition("=")[2] or argument for argument in call[1].split(", ") if argument]
        assert set(arguments) <= known
        gives = left.strip().split(", ")
        assert projected or not known & set(gives), "a name means one thing"
        known |= set(gives)
    assert last == "return output"
    assert "output" in known
    assert len(lines) == len(graph.parts) + projected
    text = "\n".join(lines)
    assert all(one.form in text for one in lowered(graph, backend, Setting()))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SHIPPED)
def test_the_listings_of_shipped_specs_read_well(name: str, backend: str) -> None:
    spec = shipped(name)
    for head in spec.heads.values():
        assert_reads_well(build_graph(head, spec.shape(4)), backend)


@given(drawn=random_heads())
@settings(deadline=None)
def test_the_listings_of_random_heads_read_well(drawn: tuple[HeadSpec, Shape]) -> None:
    assert_reads_well(build_graph(*drawn))


def squeezed(lines: list[str]) -> list[str]:
    return [re.sub(r" +", " ", line) for line in lines]


def test_lolcats() -> None:
    (fast,) = (form for form in additive.FORMS if form.backend == "torch")
    assert squeezed(listing(lower(build_graph(shipped("lolcats").heads["head"], SIZE.shape(4))))) == [
        "pairs = pairs(key, value) B · 2 8 every: as they are",
        "window, window_fallen = window(query, pairs) B T 4 8 torch: blocks of queries against their own and the previous window",
        "window.weight = window.weight(hidden) 4 every: as defined",
        "state_features = feature_map(query) B T 4 128 every: as defined",
        f"state = state(state_features, window_fallen) B T 4 8 torch: {fast.says}",
        "output = read(window, state, weight[window]=window.weight) B T 4 8 every: as defined",
        "return output",
    ]


def test_lola_is_one_step_of_its_cache_and_its_state() -> None:
    lines = squeezed(listing(lower(build_graph(shipped("lola").heads["head"], SIZE.shape(4)))))
    (first,) = (index for index, line in enumerate(lines) if "┌" in line)
    assert lines[first].startswith(
        "sparse, sparse_fallen = sparse(query, window_fallen) B T 4 8 ┌ torch: one fall after the other; "
    )
    assert lines[first + 1] == "state = state(state_features, sparse_fallen) B T 4 8 └ in the same step"


def test_what_is_mixed_for_queries_and_keys_is_projected() -> None:
    head = {"feature_map": "elu", "memory": ["state"], "mix_input": {"kind": "conv", "feeds": "qk"}}
    lines = squeezed(listing(lower(graph_of(head))))
    assert lines[0].startswith("mix_input = mix_input(hidden) B T 24 ")
    assert lines[1] == "query, key, value = projections(mix_input, mix_input, hidden)"


def test_a_head_is_printed_as_its_program() -> None:
    spec = shipped("lolcats").heads["head"]
    head = Head(spec, SIZE.shape(4))
    for line in listing(lower(build_graph(spec, SIZE.shape(4)))):
        assert line in repr(head)
