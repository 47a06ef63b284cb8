"""A program is listed with one line per operation, every name is defined before its use, and forms are those of explain."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given

import composer
from blocks.flow import Mapped, Pairs, Partial
from blocks.legend import Shape
from blocks.operation import Setting
from blocks.recurrences import additive
from composer.errors import BuildError
from composer.graph.composition import HeadSpec
from composer.graph.graph import INPUTS, SINKS, HeadGraph
from composer.graph.listing import listing, otherwise, rotations
from composer.graph.lowering import BACKENDS, compile_head, list_forms, lower
from composer.graph.program import CoveredOperation
from composer.graph.wiring import build_graph
from composer.model.head import Head
from composer.spec.code import code_of
from tests.composer.graph.heads import SIZE, graph_of, shipped
from tests.composer.hosts.families import small
from tests.laws.cases import build_head, inputs, once, run
from tests.laws.draw import random_heads
from tests.shipped import SHIPPED

GPU = Setting(device="cuda", dtype="bfloat16")


@once
def assert_all_read_well(head: HeadSpec, shape: Shape, backend: str) -> None:
    """Check all programs. On a GPU, more operations are joined in one step."""
    for setting in (Setting(), GPU):
        assert_reads_well(build_graph(head, shape), backend, setting)


def assert_reads_well(graph: HeadGraph, backend: str = "auto", setting: Setting | None = None) -> None:
    """Check that each operation and the projections have a line, names are defined in order, every edge is an argument, and
    forms are those of explain.
    """
    setting = setting or Setting()
    program = lower(graph, backend, setting)
    *lines, last = listing(program)
    projected = bool(program.before)
    known = {"hidden"} if projected else set(INPUTS)
    nodes = iter(covered.node for step in program.steps for covered in step.covers)
    names = {(name, name): name for name in (*INPUTS, SINKS)}
    for line in lines:
        left, _, right = line.partition(" = ")
        call = re.match(r"[a-z0-9_.]+\(([^()]*)\)", right)
        assert call is not None
        arguments = [argument.partition("=")[2] or argument for argument in call[1].split(", ") if argument]
        assert set(arguments) <= known
        gives = left.strip().split(", ")
        assert projected or not known & set(gives), "a name means one thing"
        known |= set(gives)
        if right.startswith("projections("):
            continue
        node = next(nodes)
        assert sorted(arguments) == sorted(names[edge.start, edge.output] for edge in graph.into(node.name))
        names |= {(node.name, port.name): name for port, name in zip(node.operation.gives, gives, strict=True)}
    assert last == "return output"
    assert "output" in known
    assert len(lines) == len(graph.parts) + projected
    text = "\n".join(lines)
    assert all(lowered_part.form in text for lowered_part in list_forms(graph, backend, setting))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_listings_of_shipped_specs_read_well(name: str) -> None:
    spec = shipped(name)
    for head, backend in itertools.product(spec.heads.values(), BACKENDS):
        assert_all_read_well(head, spec.shape(4), backend)


@given(drawn=random_heads())
def test_the_listings_of_random_heads_read_well(drawn: tuple[HeadSpec, Shape]) -> None:
    for setting in (Setting(), GPU):
        assert_reads_well(build_graph(*drawn), setting=setting)


def squeezed(lines: list[str]) -> list[str]:
    return [re.sub(r" +", " ", line) for line in lines]


def test_lolcats() -> None:
    (fast,) = (form for form in additive.FORMS if form.backend == "torch" and not form.decode)
    assert squeezed(listing(lower(build_graph(shipped("lolcats").heads["head"], SIZE.shape(4))))) == [
        "pairs = pairs(key, value) # B T 2 8 key and value of each token",
        "window, window_evicted = window(query, pairs) "
        "# B T 4 8 torch: blocks of queries against their window, by PyTorch's kernel",
        "window_weight = window.weight(hidden) # 4 as defined",
        "state_features = feature_map(query) # B T 4 128 as defined; keys as they reach the memory",
        f"state = state(state_features, window_evicted) # B T 4 8 torch: {fast.by_rank['none']}",
        "output = read(window, state, window_weight) # B T 4 8 as defined",
        "return output",
    ]


def test_a_read_in_a_joined_step_lists_all_that_it_reads() -> None:
    graph = build_graph(shipped("lola").heads["head"], SIZE.shape(4))
    (read,) = (line for line in listing(lower(graph, "triton", GPU)) if line.startswith("output = "))
    assert read.startswith("output = read(window, sparse, state, window_weight, sparse_weight=window_weight)  #")
    (step,) = (step for step in lower(graph, "triton", GPU).steps if len(step.covers) > 1)
    values = {value: value for covered in step.covers for value in covered.gives}
    outside = {(edge.start, edge.output): 1.0 for edge in graph.into("read", "weight")}
    inputs = step.covers[-1].all_inputs(values | outside)
    assert inputs["partial"] == {name: (name, "partial") for name in ("window", "sparse", "state")}
    assert inputs["weight"] == {"window": 1.0, "sparse": 1.0}


def test_the_lines_of_decode_are_those_that_differ() -> None:
    """The window and the state have other lines in decode. All other lines appear once."""
    program, decode = compile_head(shipped("lolcats").heads["head"], SIZE.shape(4)).both("auto", Setting())
    assert squeezed(otherwise(program, decode)) == [
        "window, window_evicted = window(query, pairs) # B T 4 8 torch: one query against the ring of pairs, by PyTorch's kernel",
        "state = state(state_features, window_evicted) # B T 4 8 torch: one step of the recurrence",
    ]
    assert otherwise(program, program) == []


@pytest.mark.parametrize("name", SHIPPED)
def test_a_step_that_is_other_in_decode_is_listed_whole(name: str) -> None:
    """Every bracket in the column of decode is closed."""
    spec = shipped(name)
    for head in spec.heads.values():
        for setting in (Setting(), GPU):
            lines = otherwise(*compile_head(head, spec.shape(4)).both("auto", setting))
            marks = "".join(mark for line in lines for mark in line.partition("#")[2] if mark in "┌├└")
            assert re.fullmatch("(┌├*└)*", marks)


def test_an_argument_that_its_edge_does_not_name_has_a_keyword() -> None:
    """LoLA's cache has the window's weight as a keyword. The write strength of gated delta has the name of its edge."""
    (*_, read, _) = listing(lower(build_graph(shipped("lola").heads["head"], SIZE.shape(4))))
    assert read.startswith("output = read(window, sparse, state, window_weight, sparse_weight=window_weight)  #")
    lines = listing(lower(build_graph(shipped("gated-delta").heads["head"], SIZE.shape(4))))
    assert any(line.startswith("pairs = pairs(key, conv_key, value, delta_rate) ") for line in lines)


@pytest.mark.parametrize("name", ["lola", "latte-macchiato", "gated-delta", "gla"])
def test_what_is_given_has_the_shape_that_the_line_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tensor of every step is checked on 2 rows of 7 tokens."""
    shape, spec, call = SIZE.shape(4), shipped(name).heads["head"], []

    def kept(self: CoveredOperation, outputs: Any, *rest: Any) -> None:
        first = outputs[0][0]
        of = {Partial: "output", Pairs: "value", Mapped: "query"}.get(type(first))
        call.append(first if of is None else getattr(first, of))
        keep(self, outputs, *rest)

    keep = CoveredOperation.keep
    monkeypatch.setattr(CoveredOperation, "keep", kept)
    run(build_head(spec, shape), inputs(shape, 2, 7))
    lines = listing(lower(build_graph(spec, shape)))[:-1]
    assert len(call) == len(lines)
    for tensor, line in zip(call, lines, strict=True):
        shape_in_line = re.split(r"  +", line.partition("# ")[2])[0].replace("B", "2").replace("T", "7").removeprefix("… ")
        shape_of_tensor = " ".join(map(str, tensor.shape))
        assert shape_of_tensor in {shape_in_line, shape_in_line.removesuffix(" 1")} or (
            line.startswith("window_weight") and shape_of_tensor.split()[-1] == shape_in_line
        ), line


def test_lola_is_one_step_of_its_cache_and_its_state() -> None:
    lines = squeezed(listing(lower(build_graph(shipped("lola").heads["head"], SIZE.shape(4)))))
    (first,) = (index for index, line in enumerate(lines) if "┌" in line)
    assert lines[first].startswith(
        "sparse, sparse_evicted = sparse(query, window_evicted) # B T 4 8 ┌ torch: one eviction after the other, by "
        "PyTorch's kernel; "
    )
    assert lines[first + 1] == "state = state(state_features, sparse_evicted) # B T 4 8 └ in the same step"


def test_what_is_mixed_for_queries_and_keys_is_projected() -> None:
    head = {"feature_map": "elu", "memory": ["state"], "mix_input": {"kind": "conv", "feeds": "qk"}}
    lines = squeezed(listing(lower(graph_of(head))))
    assert lines[0].startswith("mix_input = mix_input(hidden) # B T 24 ")
    assert lines[1] == "query, key, value = projections(mix_input, mix_input, hidden)"


def test_a_head_is_printed_as_its_program() -> None:
    spec = shipped("lolcats").heads["head"]
    head = Head(spec, SIZE.shape(4))
    for line in listing(lower(build_graph(spec, SIZE.shape(4)))):
        assert line in repr(head)
    assert "In decode" in repr(head)
    head._printed = "reference"
    assert "all pairs of a call, masked" in repr(head)


def test_each_group_of_heads_is_listed_once_with_what_is_other_in_decode() -> None:
    (only,) = code_of(shipped("lolcats"), "a source").heads
    assert (only.head, only.heads, only.layers) == ("head", 4, (0, 1, 2, 3))
    assert only.prefill[-1] == "return output"
    assert [line.split(" = ")[0] for line in only.decode] == ["window, window_evicted", "state"]
    mixed = code_of(shipped("mixed-heads"), "a source", backend="reference").heads
    assert len(mixed) == len({(listed.head, listed.heads) for listed in mixed})
    with pytest.raises(BuildError, match='no backend "tritn"'):
        code_of(shipped("lolcats"), "a source", backend="tritn")
    assert all(listed.decode == () for listed in code_of(shipped("latte-bidirectional"), "a source").heads), (
        "nothing is decoded there"
    )


def test_it_says_where_queries_and_keys_are_turned() -> None:
    window = {"kind": "window", "size": 4, "position": {"kind": "rope", "theta": 1e6}}
    head = {"position": "none", "feature_map": "elu", "memory": [window, "state"]}
    assert rotations(lower(graph_of(head))) == [
        "# Queries and keys are rotated by rope (theta 1,000,000) in window.",
        "# Queries and keys are not rotated in state.",
    ]
    assert rotations(lower(build_graph(shipped("latte").heads["head"], SIZE.shape(4)))) == [], "latents are asked by no query"
    here = "# Queries and keys are rotated by the model's own rotation in window, state."
    assert here in repr(composer.build("lolcats", small("qwen3")))
    listed = code_of(shipped("lolcats"), "here").text.splitlines()
    assert listed[3:5] == [
        "def head(hidden, query, key, value):",
        "    # Queries and keys are rotated by rope (theta 100) in window, state.",
    ]
