"""Several parts with a joint form are one step. They are found in the graph by their edges unless this would create a cycle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from blocks.feature_maps.base import FeatureMap
from blocks.kernels import Refused
from blocks.memories.state import StateMemory
from blocks.memories.window import Window
from blocks.operation import Form, Kind, Setting, State, no_obstacle
from blocks.pattern import Pattern, RunningPart
from blocks.reads import Read
from composer.errors import BuildError
from composer.graph import program
from composer.graph.lowering import check_backend, list_forms, lower
from composer.graph.program import Program
from composer.graph.source import write_source
from composer.system.notices import FallsBack
from tests.blocks.support import form_of, run_form
from tests.composer.graph.backends import forget
from tests.composer.graph.heads import graph_of
from tests.laws.cases import SMALL, build_head, complete, inputs, pieces, run

WINDOW = {"kind": "window", "size": 4, "weight": "learned"}
LOLCATS = {"feature_map": "hedgehog", "memory": [WINDOW, {"kind": "state", "gate": "head"}]}
SHAPE = SMALL.shape(4)
SAYS = "both in one pass"


def in_turn(parts: Mapping[str, RunningPart], passed: Mapping[str, Mapping[str, Any]]) -> list[tuple[Any, State]]:
    """Run the window by its own form, then the part that it feeds, with its map of keys."""

    def compute(name: str, **more: Any) -> tuple[Any, State]:
        running = parts[name]
        operation = running.part.operation(running.call.shape)
        form, call = form_of(operation.forms, "torch"), running.call
        own = {"tokens": call.tokens, "state": call.state, "in_place": call.in_place}
        return running.compute(lambda parameters: run_form(form, operation, parameters, call, {**own, **passed[name], **more}))

    near = compute("near")
    pairs = near[0][1]
    keys = None if pairs is None else parts["keys"].map(pairs)
    return [near, ((keys,), {}), compute("far", pairs=pairs, keys=keys)]


def pattern(backend: str = "torch", obstacle: Callable[[Setting], str | None] = no_obstacle) -> Pattern:
    """Return the pattern of a window and the state that it feeds."""
    kinds = {"near": Window, "keys": FeatureMap, "far": StateMemory}
    nodes = {name: lambda part, kind=kind: isinstance(part, kind) for name, kind in kinds.items()}
    edges = (("near", "keys", Kind.PAIRS), ("keys", "far", Kind.KEYS), ("near", "far", Kind.PAIRS))
    return Pattern(nodes, edges, lambda parts: (Form(backend, SAYS, in_turn, obstacle),))


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace the registered patterns."""

    def put(*patterns: Pattern) -> None:
        monkeypatch.setattr(program, "PATTERNS", patterns)
        forget()

    yield put
    forget()


def covered(program: Program) -> list[tuple[str, ...]]:
    return [tuple(covered_part.node.name for covered_part in step.covers) for step in program.steps if len(step.covers) > 1]


@pytest.mark.parametrize("bounds", [(), (1, 7), tuple(range(1, 12))], ids=["whole", "uneven", "one by one"])
def test_matched_patterns_are_one_step_with_equal_outputs(bounds: tuple[int, ...], joined: Any) -> None:
    data = inputs(SHAPE, 2, 12)
    expected, _ = run(build_head(complete(LOLCATS), SHAPE), data)
    joined(pattern())
    module, state, outputs = build_head(complete(LOLCATS), SHAPE), None, []
    for piece in pieces(12, bounds):
        output, state = run(module, data.cut(piece), state)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, rtol=1e-12, atol=1e-12)
    assert state is not None
    assert state.keys() == module.empty_state(1, torch.float64, torch.device("cpu")).keys()


def test_matched_patterns_are_explained_and_listed_as_one_step(joined: Any) -> None:
    joined(pattern())
    graph = graph_of(LOLCATS)
    assert covered(lower(graph)) == [("window", "state_keys", "state")]
    assert {lowered_part.part for lowered_part in list_forms(graph, "auto", Setting()) if lowered_part.form == SAYS} == {
        "window",
        "state",
    }
    lines = write_source(lower(graph)).text.splitlines()
    (first,) = (index for index, line in enumerate(lines) if SAYS in line)
    assert f"torch: {SAYS} (" in lines[first]
    assert lines[first + 1 : first + 5] == [
        "    (",
        "        ((window, window_evicted), new_window),",
        "        ((state_keys,), _),",
        "        ((state,), new_state),",
    ]


def test_hooks_see_every_part_of_a_step(joined: Any) -> None:
    joined(pattern())
    module, seen = build_head(complete(LOLCATS), SHAPE), []
    for name in ("window", "state"):
        module.get_submodule(name).register_forward_hook(lambda *_, name=name: seen.append(name))
    run(module, inputs(SHAPE, 1, 6))
    assert [name for name in seen if name == "state"] == ["state"]
    assert "window" in seen


def test_parts_run_separately_if_their_pattern_does_not_fit(joined: Any) -> None:
    joined(pattern(obstacle=lambda setting: "it has no gradient" if setting.gradients else None))
    graph = graph_of(LOLCATS)
    assert covered(lower(graph, "torch", Setting(gradients=True))) == []
    assert covered(lower(graph, "torch", Setting())) == [("window", "state_keys", "state")]


def test_parts_are_in_exactly_one_step(joined: Any) -> None:
    """If a window feeds two states, it is joined with one of them."""
    joined(pattern())
    head = {"feature_map": "elu", "memory": [WINDOW, {"kind": "state", "name": "one"}, {"kind": "state", "name": "two"}]}
    (step,) = covered(lower(graph_of({**head, "graph": ["pairs -> window", "window -> one", "window -> two"]})))
    assert step in {("window", "one_keys", "one"), ("window", "two_keys", "two")}


def test_patterns_that_would_create_a_cycle_do_not_match(joined: Any) -> None:
    """A window and the read with a state between them are not joined. Without the state they are."""
    nodes = {"memory": lambda part: isinstance(part, Window), "read": lambda part: isinstance(part, Read)}
    form = Form("torch", SAYS, in_turn)
    joined(Pattern(nodes=nodes, edges=(("memory", "read", Kind.PARTIAL),), forms=lambda parts: (form,)))
    assert covered(lower(graph_of(LOLCATS))) == []
    assert covered(lower(graph_of({"memory": [{"kind": "window", "size": 4, "evict": "drop"}]}))) == [("window", "read")]


def test_a_fallback_uses_no_pattern_that_reaches_beyond_its_step(joined: Any) -> None:
    """Window and state refuse. A pattern of state and read would leave the state uncomputed, so each part runs by itself."""

    def refuse(*_: Any) -> Any:
        raise Refused("of a test")

    nodes = {"memory": lambda part: isinstance(part, StateMemory), "read": lambda part: isinstance(part, Read)}
    other = Pattern(nodes, (("memory", "read", Kind.PARTIAL),), lambda parts: (Form("torch", SAYS, in_turn),))
    refusing = replace(pattern(), forms=lambda parts: (Form("torch", SAYS, refuse, refuses=True),))
    data = inputs(SHAPE, 2, 12)
    expected, _ = run(build_head(complete(LOLCATS), SHAPE), data)
    joined(refusing, other)
    with pytest.warns(FallsBack, match="of a test"):
        output, _ = run(build_head(complete(LOLCATS), SHAPE), data)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)


def test_edges_of_another_kind_do_not_match(joined: Any) -> None:
    """A window beside a state does not feed it, so there is no match."""
    joined(pattern())
    assert covered(lower(graph_of({**LOLCATS, "flow": "parallel"}))) == []


def test_backends_may_have_only_forms_of_patterns(joined: Any) -> None:
    """The backend can be chosen for heads with the pattern, and is unknown for others."""
    joined(pattern("own"))
    graph = graph_of(LOLCATS)
    assert check_backend("own", [graph]) == "own"
    joint = {
        lowered_part.part
        for lowered_part in list_forms(graph, "own", Setting())
        if (lowered_part.backend, lowered_part.form) == ("own", SAYS)
    }
    assert joint == {"window", "state"}
    with pytest.raises(BuildError, match=r"there are auto, fla, reference, torch, triton$"):
        check_backend("own", [graph_of({"memory": ["full"]})])
