"""The function of a head is Python that a reader can execute: its text computes what the model computes, tracebacks and debuggers
show its lines, and it names the forms of explain."""

from __future__ import annotations

import ast
import bdb
import builtins
import re
import traceback
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given

import composer
from blocks.flow import Pairs, Partial
from blocks.legend import Shape
from blocks.operation import Call, Setting
from composer.errors import BuildError
from composer.graph.composition import HeadSpec
from composer.graph.graph import HeadGraph
from composer.graph.lowering import BACKENDS, compile_head, list_forms, lower
from composer.graph.program import CoveredOperation, HeadFunctions, Program
from composer.graph.source import place_of, rotations, write_source
from composer.graph.wiring import build_graph
from composer.model.head import Head
from composer.spec.code import code_of
from tests.composer.graph.heads import SIZE, graph_of, resolved, shipped
from tests.composer.hosts.families import small
from tests.laws.cases import SMALL, build_head, inputs, once, run
from tests.laws.draw import random_heads
from tests.shipped import FEW

GPU = Setting(device="cuda", dtype="bfloat16")
SHAPE = SMALL.shape(4)


@once
def assert_all_read_well(head: HeadSpec, shape: Shape, backend: str) -> None:
    """Check all programs. On a GPU, more operations are joined in one step."""
    for setting in (Setting(), GPU, Setting(one_token=True)):
        assert_reads_well(build_graph(head, shape), backend, setting)


def assert_reads_well(graph: HeadGraph, backend: str = "auto", setting: Setting | None = None) -> None:
    """Check that the text is Python, that each name is defined once and before its use, that every operation is computed, and that
    the comments have the forms of explain."""
    program = lower(graph, backend, setting or Setting())
    sources = [write_source(program), *([write_source(program, mixing=True)] if program.before else [])]
    for source in sources:
        (function,) = ast.parse(source.text).body
        assert isinstance(function, ast.FunctionDef)
        arguments = {argument.arg for argument in function.args.args}
        assert_defined_in_order(function.body, arguments | source.namespace.keys() | vars(builtins).keys())
        assert isinstance(function.body[-1], ast.Return)
        assert all(len(line) <= 132 for line in source.text.splitlines())
    watched = [write_source(program, mixing=mixing, watched=True) for mixing in (False, True)]
    covered = [item for source in watched for item in source.namespace.values() if isinstance(item, CoveredOperation)]
    assert sorted(item.node.name for item in covered) == sorted(node.name for node in graph.parts)
    comments = " ".join(" ".join(line.strip(" #") for line in source.text.splitlines()) for source in sources)
    assert all(lowered.form in comments for lowered in list_forms(graph, backend, setting or Setting()))


def assert_defined_in_order(statements: list[ast.stmt], known: set[str]) -> set[str]:
    """Return the names that the statements define. What follows if a form refuses defines the same names."""
    defined: set[str] = set()
    for statement in statements:
        if isinstance(statement, ast.Try):
            (handler,) = statement.handlers
            assert handler.name is not None
            names = assert_defined_in_order(statement.body, known | defined)
            assert assert_defined_in_order(handler.body, known | defined | {handler.name}) == names
        else:
            assert names_in(statement, ast.Load) <= known | defined
            names = names_in(statement, ast.Store) - {"_"}
        assert not names & (known | defined)
        defined |= names
    return defined


def names_in(statement: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    """Return the names that a statement reads or defines."""
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, context)}


@pytest.mark.parametrize("name", FEW)
def test_functions_of_shipped_specs_are_readable(name: str) -> None:
    spec = shipped(name)
    for head in spec.heads.values():
        for backend in BACKENDS:
            assert_all_read_well(head, spec.shape(4), backend)


@given(drawn=random_heads())
def test_functions_of_random_heads_are_readable(drawn: tuple[HeadSpec, Shape]) -> None:
    for setting in (Setting(), GPU):
        assert_reads_well(build_graph(*drawn), setting=setting)


def printed(head: Head, setting: Setting) -> Any:
    """Return the function that executes the printed text for a setting, in the namespace of its source."""
    program = head._compiled.program("auto", setting)
    text = head._compiled.print_functions("auto", setting, "head")[-1 if head._compiled.shape.both_ways else bool(program.before)]
    namespace = dict(write_source(program).namespace)
    exec(compile(text, "printed", "exec"), namespace)
    return namespace["head"]


@once
def assert_printed_text_is_the_head(spec: HeadSpec, shape: Shape) -> None:
    """Compare bit for bit: a text in one call, split in two, and one token at a time."""
    head, data = build_head(spec, shape), inputs(shape, 2, 9)
    splits = [(9,)] if shape.both_ways else [(9,), (5, 4), (6, 1, 1, 1)]
    for lengths in splits:
        states = [head.empty_state(2, torch.float64, torch.device("cpu")) for _ in range(2)]
        start = 0
        for length in lengths:
            part = data.cut(slice(start, start + length)).of_head()
            start += length
            setting = Setting("cpu", "float64", one_token=length == 1, gradients=torch.is_grad_enabled())
            output, carried = head(part, states[0], "auto")
            call = Call(part.tokens, states[1], shape, head._place)
            printed_output, printed_carried = printed(head, setting)(head._modules, call, *part.tensors)
            assert torch.equal(printed_output.to(output.dtype), output)
            assert printed_carried.keys() == carried.keys()
            assert all(torch.equal(printed_carried[name], tensor) for name, tensor in carried.items())
            states = [states[0] | carried, states[1] | printed_carried]


@pytest.mark.parametrize("name", FEW)
def test_printed_functions_of_shipped_specs_are_those_that_run(name: str) -> None:
    spec = shipped(name, SMALL)
    for head in spec.heads.values():
        assert_printed_text_is_the_head(head, spec.shape(4))


@given(drawn=random_heads())
def test_printed_functions_of_random_heads_are_those_that_run(drawn: tuple[HeadSpec, Shape]) -> None:
    assert_printed_text_is_the_head(*drawn)


def lolcats(backend: str = "auto", setting: Setting | None = None) -> Program:
    return lower(build_graph(shipped("lolcats").heads["head"], SIZE.shape(4)), backend, setting or Setting())


def test_the_function_of_lolcats_has_a_commented_call_for_each_part() -> None:
    source = write_source(lolcats(), name="lolcats")
    statements = re.sub(r"\n    #[^\n]*", "", source.text)
    assert statements == (
        "def lolcats(parts, call, hidden, query, key, value):\n"
        "    pairs = join_pairs(call.tokens, key, value, {})\n"
        "    rotated_query = ROPE.rotate_tokens(query, call.tokens)\n"
        "    window, window_evicted, new_window = compute_window(\n"
        "        rotated_query,\n"
        "        pairs,\n"
        "        call.tokens,\n"
        '        {"key": call.state["window.key"], "value": call.state["window.value"], '
        '"position": call.state["window.position"]},\n'
        "        attention=blocks,\n"
        "        size=64,\n"
        "        is_sliding=True,\n"
        "        rotation=ROPE,\n"
        "    )\n"
        '    window_weight = parts["window"](learned_logit, hidden)\n'
        '    state_features = parts["feature_map"](map_queries, rotated_query, scale="plain")\n'
        '    state_keys = parts["feature_map"](map_keys, window_evicted, position=ROPE, scale="plain")\n'
        '    (state,), new_state = parts["state"](\n'
        "        run_state,\n"
        "        call.part(STATE),\n"
        "        features=state_features,\n"
        "        keys=state_keys,\n"
        "        pairs=window_evicted,\n"
        "        recurrence=CHUNKED,\n"
        "    )\n"
        '    output = shared({"window": window, "state": state}, {"window": window_weight})\n'
        "    return output, {\n"
        '        "window.key": new_window["key"],\n'
        '        "window.value": new_window["value"],\n'
        '        "window.position": new_window["position"],\n'
        '        "state.state": new_state["state"],\n'
        "    }\n"
    )
    window = next(step for step in lolcats().after if step.covers[0].node.name == "window")
    place = place_of(window.form.run)
    assert re.fullmatch(r"blocks/memories/window\.py:\d+", place)
    comment = "    # B T 4 8  torch: blocks of queries against their window, by PyTorch's kernel "
    assert f"{comment}({place})\n" in source.text


def test_mixers_of_queries_and_keys_are_a_separate_function() -> None:
    program = lower(graph_of({"feature_map": "elu", "memory": ["state"], "mix_input": {"kind": "conv", "feeds": "qk"}}))
    text = write_source(program, mixing=True).text
    assert text.startswith("def head(parts, call, hidden):\n")
    assert (
        '(mix_input,), new_mix_input = parts["mix_input"](run_mix_input, call.part(MIX_INPUT), hidden=hidden, follow=follow)'
        in text
    )
    assert text.endswith('return mix_input, {"mix_input.hidden": new_mix_input["hidden"]}\n')


@pytest.mark.parametrize("name", ["class", "parts", "call", "hidden_state", "run_pairs", "watch", "dict", "str"])
def test_memory_names_may_be_keywords_or_local_names(name: str) -> None:
    spec = {"feature_map": "elu", "memory": [{"kind": "window", "size": 4, "name": name}, "state"]}
    assert_reads_well(graph_of(spec))
    head = build_head(resolved(spec).heads["head"], SIZE.shape(4))
    assert torch.isfinite(run(head, inputs(SIZE.shape(4), 1, 6))[0]).all()


@pytest.mark.parametrize("name", ["lola", "latte-macchiato", "gated-delta", "gla"])
def test_output_shapes_match_the_comments(name: str) -> None:
    """The first tensor of every operation is checked on 2 rows of 7 tokens."""
    shape, spec = SIZE.shape(4), shipped(name).heads["head"]
    head, data = build_head(spec, shape), inputs(shape, 2, 7)
    program = head._compiled.program("auto", Setting(dtype="float64", gradients=True))
    source = write_source(program)
    shapes: list[str] = []

    def watch(covered: CoveredOperation, _: Call, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if outputs[0] is None:
            assert covered.node.name == "state_keys", "the form of several parts does not return them"
            return outputs
        field = {Partial: "output", Pairs: "value"}.get(type(outputs[0]))
        tensor = outputs[0] if field is None else getattr(outputs[0], field)
        shapes.append(" ".join(map(str, tensor.shape)))
        return outputs

    state = head.empty_state(2, torch.float64, torch.device("cpu"))
    HeadFunctions(program).watched_head(head._modules, Call(data.tokens, state, shape), *data.of_head().tensors, watch)
    comments = [line.strip(" #").split("  ")[0] for line in source.text.splitlines() if re.match(r"    # (B T )?\d", line)]
    expected = [text.replace("B", "2").replace("T", "7") for comment in comments for text in comment.split(" and ")]
    assert len(shapes) == len(head._compiled.graph.parts) - (name == "lola")
    assert {shape if shape in shapes else shape.removesuffix(" 1") for shape in expected} == set(shapes)


def test_a_mistake_in_a_part_is_traced_to_its_line() -> None:
    head = build_head(shipped("lolcats", SMALL).heads["head"], SHAPE)
    head.get_submodule("state").register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError) as raised:
        run(head, inputs(SHAPE, 1, 6))
    frames = traceback.extract_tb(raised.value.__traceback__)
    (frame,) = (frame for frame in frames if frame.filename.startswith("<head window → state: 4 query heads on 2 key heads"))
    assert frame.name == "head"
    assert frame.line is not None
    assert frame.line.startswith('(state,), new_state = parts["state"](')


class Stops(bdb.Bdb):
    """A debugger that notes the variables at each stop."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[tuple[str, set[str]]] = []

    def user_line(self, frame: FrameType) -> None:
        if self.break_here(frame):
            self.stops.append((frame.f_code.co_filename, set(frame.f_locals)))
        self.set_continue()


def test_a_debugger_stops_at_a_line() -> None:
    head, data = build_head(shipped("lolcats", SMALL).heads["head"], SHAPE), inputs(SHAPE, 1, 6)
    function = head._compiled.functions_for("auto", Setting("cpu", "float64", gradients=True)).head
    file, text = function.__code__.co_filename, write_source(head._compiled.program("auto", Setting())).text
    line = next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith("    output = shared("))
    debugger = Stops()
    assert debugger.set_break(file, line) is None
    debugger.runcall(run, head, data)
    stopped_in, variables = debugger.stops[0]
    assert stopped_in == file
    assert {"window", "window_evicted", "state", "query", "parts"} <= variables
    assert "output" not in variables


def test_a_head_is_printed_as_its_functions() -> None:
    spec = shipped("lolcats").heads["head"]
    head = Head(spec, SIZE.shape(4))
    for text in compile_head(spec, SIZE.shape(4)).print_functions("auto", Setting(), "head"):
        assert " ".join(text.split()) in " ".join(repr(head).split())
    assert "def head_one_token(" in repr(head)
    head._printed = "reference"
    assert "all pairs of a call, masked" in repr(head)


def test_each_group_of_heads_is_listed_once_with_its_function_for_one_token() -> None:
    (only,) = code_of(shipped("lolcats"), "a source").heads
    assert (only.head, only.heads, only.layers) == ("head", 4, (0, 1, 2, 3))
    assert [re.findall(r"def (\w+)", text) for text in only.functions] == [["head"], ["head_one_token"]]
    assert all(isinstance(ast.parse(text), ast.Module) for text in only.functions)
    mixed = code_of(shipped("mixed-heads"), "a source", backend="reference").heads
    assert len(mixed) == len({(listed.head, listed.heads) for listed in mixed})
    with pytest.raises(BuildError, match='no backend "tritn"'):
        code_of(shipped("lolcats"), "a source", backend="tritn")
    bidirectional = code_of(shipped("latte-bidirectional"), "a source").heads
    assert all(len(listed.functions) == 1 for listed in bidirectional), "nothing is decoded there"


def test_the_comments_have_the_rotations() -> None:
    window = {"kind": "window", "size": 4, "position": {"kind": "rope", "theta": 1e6}}
    head = {"position": "none", "feature_map": "elu", "memory": [window, "state"]}
    assert rotations(lower(graph_of(head)).steps) == [
        "# Queries and keys are rotated by rope (theta 1,000,000) in window.",
        "# Queries and keys are not rotated in state.",
    ]
    assert rotations(lower(build_graph(shipped("latte").heads["head"], SIZE.shape(4))).steps) == [], "no query reads latents"
    here = "# Queries and keys are rotated by the model's own rotation in window, state."
    assert here in repr(composer.build("lolcats", small("qwen3")))
    lines = code_of(shipped("lolcats"), "here").text.splitlines()
    assert lines[4:6] == [
        "def head(parts, call, hidden, query, key, value):",
        "    # Queries and keys are rotated by rope (theta 100) in window, state.",
    ]
