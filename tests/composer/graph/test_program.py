"""A program runs every operation of its head once, after its inputs, and returns every tensor of the state."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given

from blocks.legend import Shape
from blocks.operation import EVERY, Setting
from composer.graph.composition import HeadSpec
from composer.graph.graph import INPUTS
from composer.graph.lowering import BACKENDS, compile_head, lower
from composer.graph.program import Program
from composer.graph.wiring import build_graph
from tests.composer.graph.heads import SIZE, graph_of, resolved, shipped
from tests.covers import some
from tests.laws.cases import SMALL, build_head, covering, every_head, inputs, once, run
from tests.laws.draw import random_heads
from tests.shipped import FEW

HEADS = every_head()
SHAPE = SMALL.shape(4)
MIXED = {"feature_map": "elu", "memory": [{"kind": "window", "size": 4}, "state"], "mix_input": {"kind": "conv", "feeds": "qk"}}


@once
def assert_all_whole(head: HeadSpec, shape: Shape, backend: str) -> None:
    for one_token in (False, True):
        assert_whole(lower(build_graph(head, shape), backend, Setting(one_token=one_token)), head, shape)


def assert_whole(program: Program, head: HeadSpec, shape: Shape) -> None:
    graph = build_graph(head, shape)
    covered = [covered_part for step in program.steps for covered_part in step.covers]
    assert Counter(covered_part.node.name for covered_part in covered) == Counter(node.name for node in graph.parts)
    # Each slot of the head is one node's, under the node's own name for it.
    slots = [full for covered_part in covered for full in covered_part.slots.values()]
    assert sorted(slots) == sorted(graph.slots)
    assert all(full == f"{covered_part.node.name}.{name}" for covered_part in covered for name, full in covered_part.slots.items())
    # What comes before the projections reads hidden states and what they have become; everything else, all inputs, too.
    values = {("hidden", "hidden")}
    for steps, more in ((program.before, set()), (program.after, {(name, name) for name in INPUTS})):
        if steps is program.after:
            assert program.mixed in values
            values = set(more)
        for step in steps:
            inside = {value for covered_part in step.covers for value in covered_part.gives}
            for covered_part in step.covers:
                reads = [*covered_part.single.values(), *(value for of in covered_part.many.values() for value in of.values())]
                assert set(reads) <= values
                assert not set(reads) & inside
                wanted = {(edge.start, edge.output) for edge in graph.into(covered_part.node.name)}
                assert wanted - set(reads) <= inside, "what is not read from outside is given within the step"
            values |= inside
    assert program.output in values


@pytest.mark.parametrize("name", FEW)
def test_the_programs_of_shipped_specs_are_whole(name: str) -> None:
    spec = shipped(name)
    for head, backend in itertools.product(spec.heads.values(), BACKENDS):
        assert_all_whole(head, spec.shape(4), backend)


@given(drawn=random_heads())
def test_the_programs_of_random_heads_are_whole(drawn: tuple[HeadSpec, Shape]) -> None:
    assert_whole(lower(build_graph(*drawn)), *drawn)


@pytest.mark.parametrize("name", some(HEADS, covering()))
def test_every_setting_has_a_program_with_fitting_forms(name: str) -> None:
    assert_forms_fit(HEADS[name])


@once
def assert_forms_fit(head: HeadSpec) -> None:
    """Check every built-in backend. The reference is used if a part has more than one form. Any three facts of a setting occur
    in all combinations.
    """
    graph = build_graph(head, SHAPE)
    for device, *facts in itertools.product(("cpu", "cuda"), *[(False, True)] * 4):
        one_token, documents, padded, gradients = facts
        if sum(facts) % 2:
            continue
        setting = Setting(device, "bfloat16", one_token=one_token, documents=documents, padded=padded, gradients=gradients)
        for backend in BACKENDS:
            for step in lower(graph, backend, setting).steps:
                if backend in {"reference", "torch"}:
                    assert step.form.backend in {backend, EVERY}
                assert step.form.missing() is None
                assert step.instead or not step.form.refuses


@pytest.mark.parametrize("name", some(HEADS, covering()))
def test_operations_receive_only_their_state_and_return_all_of_it(name: str) -> None:
    """Each operation receives only its own tensors and does not change them."""
    head, data = build_head(HEADS[name], SHAPE), inputs(SHAPE, 2, 12)
    _, state = run(head, data.cut(slice(0, 9)))
    kept = {name: tensor.clone() for name, tensor in state.items()}
    _, after = run(head, data.cut(slice(9, 12)), state)
    start = head.empty_state(2, torch.float64, torch.device("cpu"))
    assert state.keys() == after.keys() == start.keys()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in state.items())
    with_others, _ = run(head, data, start | {"other.state": torch.zeros(2)})
    assert torch.equal(with_others, run(head, data, start)[0])


def test_mixers_of_projections_are_the_first_steps() -> None:
    program = lower(graph_of(MIXED))
    assert [covered_part.node.name for step in program.before for covered_part in step.covers] == ["mix_input"]
    assert program.mixed == ("mix_input", "hidden")
    plain = lower(graph_of({**MIXED, "mix_input": {"kind": "conv", "feeds": "inputs"}, "memory": [
        {"kind": "window", "size": 4, "weight": "token"}, "state"]}))  # fmt: skip
    assert (plain.before, plain.mixed) == ((), ("hidden", "hidden"))


def test_final_values_enter_memories_as_they_are() -> None:
    """As if the head had no convolution of values, which is its only one."""
    with_conv = {"feature_map": "elu", "conv": {"kernel": 3, "inputs": ["v"]}, "memory": ["state"]}
    head, data = build_head(resolved(with_conv).heads["head"], SHAPE), inputs(SHAPE, 2, 9)
    wanted, _ = run(build_head(resolved({**with_conv, "conv": None}).heads["head"], SHAPE), data)
    values = dataclasses.replace(data.of_head(), value_is_final=True)
    empty = head.empty_state(2, torch.float64, torch.device("cpu"))
    torch.testing.assert_close(head(values, empty, "auto")[0], wanted, rtol=1e-9, atol=1e-10)
    assert not torch.allclose(run(head, data)[0], wanted, rtol=0.01)


def test_programs_are_cached_and_immutable() -> None:
    head = shipped("lolcats").heads["head"]
    lolcats, same = compile_head(head, SIZE.shape(4)), compile_head(shipped("lolcats").heads["head"], SIZE.shape(4))
    assert lolcats is same
    program: Any = lolcats.program("torch", Setting())
    assert lolcats.program("torch", Setting()) is program
    assert lolcats.program("torch", Setting(one_token=True)) is not program
    for thing, field in ((program, "after"), (program.after[0], "form"), (program.after[0].covers[0], "node")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, field, None)


def test_copies_of_a_head_share_its_programs() -> None:
    """A deep copy and an unpickled head compute the same with the programs of the first."""
    data = inputs(SHAPE, 1, 7)
    head = build_head(shipped("lola", SMALL).heads["head"], SHAPE)
    expected, _ = run(head, data)
    for twin in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert twin._compiled is head._compiled
        assert torch.equal(run(twin, data)[0], expected)
