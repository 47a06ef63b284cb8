"""A sweep is a table of specs: each row is the document with these values, under a distinct name."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.errors import GraphError, SpecError
from composer.spec import Spec, expand, load_spec, load_specs, locate
from composer.spec.document import MOST_VARIANTS
from composer.spec.resolve import resolve
from composer.spec.sweep import variant_names
from tests.composer.spec.error_messages import message_of
from tests.composer.spec.sources import SIZE

Write = Callable[[str, str], Path]
START = {"compose": 1, "name": "x", "extends": "lawcat"}
GATE, KERNEL = "head.memory.0.gate", "head.conv.kernel"


def sweep(**vary: Any) -> dict[str, Any]:
    return {**START, "vary": vary}


def names(**vary: Any) -> list[str]:
    return list(expand(sweep(**vary)))


def refused(document: dict[str, Any] | Path) -> str:
    with pytest.raises(SpecError) as caught:
        expand(document)
    return str(caught.value)


def test_grid_expands_all_combinations_with_the_last_path_fastest() -> None:
    made = expand(sweep(grid={f"{GATE}.rank": [4, "full"], KERNEL: [2, 3]}))
    assert list(made) == ["rank-4-kernel-2", "rank-4-kernel-3", "full-kernel-2", "full-kernel-3"]
    for name, (rank, kernel) in zip(made, [("4", 2), ("4", 3), ("full", 2), ("full", 3)], strict=True):
        expected = load_spec(START, [f"{GATE}.rank={rank}", f"{KERNEL}={kernel}", f"name=x-{name}"])
        assert made[name] == expected
        assert made[name].vary is None


def test_zip_expands_values_side_by_side() -> None:
    made = expand(sweep(zip={"head.conv.share": ["qk", "none"], "head.feature_map.share": ["none", "qk"]}, names=["one", "two"]))
    assert list(made) == ["one", "two"]
    assert made["two"] == load_spec(START, ["head.conv.share=none", "head.feature_map.share=qk", "name=x-two"])


def test_grid_and_zip_expand_to_their_product() -> None:
    made = expand(sweep(grid={KERNEL: [2, 3]}, zip={"head.conv.share": ["qk", "none"], "head.position": ["rope", "none"]}))
    combinations = [(s.head.conv.kernel, s.head.conv.share, s.head.position.kind) for s in made.values() if s.head and s.head.conv]
    assert combinations == [(2, "qk", "rope"), (2, "none", "none"), (3, "qk", "rope"), (3, "none", "none")]


def test_values_are_any_yaml_and_equal_those_of_a_child() -> None:
    made = expand(
        sweep(grid={"head.conv": [{"kernel": 2}, None], "head.memory": [[{"kind": "state"}], [{"kind": "window"}, "state"]]})
    )
    assert list(made) == ["conv-1-state", "conv-1-window-state", "no-conv-state", "no-conv-window-state"]
    heads = [spec.head for spec in made.values()]
    assert [head.conv and (head.conv.kernel, head.conv.inputs) for head in heads if head] == [(2, ("q", "k"))] * 2 + [None] * 2
    assert [len(head.memory) for head in heads if head] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("path", "values", "expected"),
    [
        (f"{GATE}.rank", [16, 32, "full"], ["16", "32", "full"]),
        (f"{GATE}.temperature", [0.5, 1e-4, 2.0], ["0-5", "0-0001", "2"]),
        ("head.memory[0].normalise", [True, False], ["normalise", "no-normalise"]),
        ("head.conv", [None, "causal"], ["no-conv", "causal"]),
        (GATE, ["none", {"kind": "channel", "rank": 3}, {"rank": 4}], ["none", "channel", "gate-3"]),
        ("head.feature_map", [{"kind": "exp"}, {"kind": "exp", "dim": 4}, {"kind": "exp", "dim": 5}], ["exp", "exp-2", "exp-3"]),
        ("head.conv.inputs", [["q"], ["q", "k"]], ["q", "q-k"]),
        ("paper", ["Ärger & Co.", "…", "x" * 41], ["rger-co", "paper-2", "paper-3"]),
        ("head.memory.0", ["state", {"kind": "state", "normalise": False}], ["state", "state-2"]),
    ],
)
def test_variant_names_contain_the_values(path: str, values: list[Any], expected: list[str]) -> None:
    assert names(grid={path: values}) == expected
    assert [spec.name for spec in expand(sweep(grid={path: values})).values()] == [f"x-{name}" for name in expected]


def comparable(value: object) -> str:
    """Return one text for all values that a sweep refuses as the same: 2 and 2.0, "a" and {"kind": "a"}."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(float(value))
    return repr({"kind": value} if isinstance(value, str) else value)


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just({"kind": "a"})


@given(
    st.dictionaries(
        st.sampled_from(["a.b", "a.0", "c"]), st.lists(VALUES, min_size=1, max_size=4, unique_by=comparable), min_size=1
    )
)
def test_variant_names_are_unique_and_valid(grid: dict[str, list[Any]]) -> None:
    spec = Spec.model_validate({"compose": 1, "name": "x", "vary": {"grid": grid}})
    assert spec.vary is not None
    made = variant_names(spec.vary)
    assert len(set(made)) == len(made) == spec.vary.count
    for name in made:
        Spec(compose=1, name=f"x-{name}")


def test_documents_are_checked_after_overrides(write: Write) -> None:
    """A document with a missing field is an error without overrides and valid with them, for a sweep as for one spec."""
    lacking = START | {"trunk": {"width": 16, "layers": 1, "heads": 2, "mlp": {"kind": "gated", "width": 24}}}
    overrides = ["trunk.vocabulary=64"]
    write("one.yaml", json.dumps(lacking))
    write("x.yaml", json.dumps(lacking | {"vary": {"grid": {KERNEL: [2, 3]}}}))
    (complete_spec,) = load_specs("one.yaml", overrides).values()
    assert complete_spec == load_spec("one.yaml", overrides)
    made = expand("x.yaml", overrides)
    assert list(load_specs("x.yaml", overrides).values()) == list(made.values())
    assert load_spec("x.yaml:2", overrides) == made["2"]
    assert [spec.head.conv.kernel for spec in made.values() if spec.head and spec.head.conv] == [2, 3]
    for name in ("one.yaml", "x.yaml"):
        with pytest.raises(SpecError, match="trunk.vocabulary: missing"):
            load_specs(name)
    wrong = write("y.yaml", json.dumps(lacking | {"vary": {"grid": {KERNEL: [2, 2]}}}))
    with pytest.raises(SpecError, match=r"^y\.yaml:\d+:\d+  vary\.grid\..* the same value as \[0\], 2: list it once$"):
        load_specs(wrong.name, overrides)


def test_a_variant_is_selected_by_a_colon_and_its_name(write: Write) -> None:
    write("x.yaml", f"{json.dumps(sweep(grid={KERNEL: [2, 3]}))}\n")
    assert load_spec("x.yaml:3") == expand("x.yaml")["3"]
    assert load_spec("x.yaml:3", [f"{KERNEL}=5"]) == expand("x.yaml", [f"{KERNEL}=5"])["3"]
    assert list(load_specs("x.yaml")) == ["x.yaml:2", "x.yaml:3"]
    assert list(load_specs("x.yaml:2")) == ["x.yaml:2"]
    assert 'there is no variant "4". Variants: 2, 3' in message_of("x.yaml:4")
    assert "this is one spec, no sweep" in message_of("lawcat:4")
    assert message_of("nothing:4").startswith('no file "nothing:4" here')
    write("x.yaml:2", "compose: 1\nname: other\n")
    assert load_spec("x.yaml:2").name == "other"


def test_a_sweep_is_refused_where_one_spec_is_needed(write: Write) -> None:
    spec = load_spec(write("x.yaml", "compose: 1\nname: x\nextends: lawcat\nvary:\n  grid: {head.conv.kernel: [2, 3]}\n"))
    with pytest.raises(GraphError, match="x is a sweep of 2 specs: 2, 3") as caught:
        resolve(spec, SIZE)
    assert str(locate(caught.value, spec)).startswith("x.yaml:4:1  vary: ")
    assert "SPEC:2" in str(caught.value)
    assert "compose show SPEC --expand" in str(caught.value)
    assert refused({"compose": 1, "name": "y"}).endswith("this is one spec, no sweep: it has no `vary`")


def test_children_add_replace_and_remove_sweep_values(write: Write) -> None:
    write("base.yaml", json.dumps(sweep(grid={KERNEL: [2, 3]})))
    child = {"compose": 1, "name": "child", "extends": "base.yaml"}
    assert [spec.name for spec in expand(child).values()] == ["child-2", "child-3"]
    assert list(expand(child | {"vary": {"grid": {KERNEL: [5]}}})) == ["5"]
    assert list(expand(child | {"vary": {"zip": {f"{GATE}.rank": [1]}}})) == ["kernel-2-rank-1", "kernel-3-rank-1"]
    assert list(expand(child | {"vary": {"grid": {KERNEL: None, "head.position": ["rope"]}}})) == ["rope"]
    assert load_spec(child | {"vary": None}).vary is None


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({}, "vary: varies nothing"),
        ({"grid": {}}, "vary: varies nothing"),
        ({"grid": {KERNEL: []}}, 'vary.grid."head.conv.kernel": expected a list of at least 1'),
        ({"grid": {KERNEL: 3}}, "expected a list, got 3"),
        ({"grid": {"head..conv": [3]}}, "expected a path such as head.memory.0.size"),
        (
            {"zip": {KERNEL: [2, 3], "head.position": ["none"]}},
            f"vary.zip: lists side by side need equally many values: {KERNEL} has 2",
        ),
        ({"grid": {KERNEL: [2, 3]}, "names": ["a"]}, "vary: has 2 variants and 1 names"),
        ({"grid": {KERNEL: [2, 3]}, "names": ["a", "a"]}, 'vary.names: names two variants "a"'),
        ({"grid": {KERNEL: [2, 3]}, "names": ["a", "B"]}, "vary.names[1]: expected the end of a name"),
        ({"grid": {f"{GATE}.rank": [2]}, "zip": {"head.memory[0].gate.rank": [3]}}, f"vary: varies {GATE}.rank twice"),
        ({"grid": {"a.b": list(range(MOST_VARIANTS + 1))}}, "vary: makes 1,001 specs; a sweep has at most 1,000"),
        ({"gird": {KERNEL: [2]}}, 'unknown key "gird"; did you mean "grid"?'),
        ({"grid": {"name": ["a"]}}, 'a sweep cannot vary "name"'),
        ({"grid": {"vary.grid": [{}]}}, 'a sweep cannot vary "vary.grid"'),
        ({"grid": {"head.memory.3.size": [2]}}, "head.memory: has no item 3; its items are 0 to 0"),
        ({"grid": {"head.memori.0.size": [1, 2]}}, 'head.memori: unknown key "memori"; did you mean "memory"?'),
        ({"grid": {KERNEL: [2, 3, 2]}}, f'vary.grid."{KERNEL}"[2]: the same value as [0], 2: list it once'),
        ({"grid": {KERNEL: [2, 2.0]}}, f'vary.grid."{KERNEL}"[1]: the same value as [0]'),
        ({"grid": {GATE: ["head", {"kind": "head"}]}}, f'vary.grid."{GATE}"[1]: the same value as [0], a mapping: list it once'),
        (
            {"zip": {KERNEL: [2, 3, 2], "head.position": ["none", "rope", "none"]}},
            f'vary.zip."{KERNEL}"[2]: the same values as [0], 2, "none": list them once',
        ),
    ],
)
def test_invalid_sweeps_are_refused(vary: dict[str, Any], message: str) -> None:
    assert message in refused(sweep(**vary))


def test_different_values_of_equal_text_are_distinct() -> None:
    assert (
        len(expand(sweep(grid={"head.feature_map.bias": [True, False]}, zip={KERNEL: [2, 2], "head.position": ["none", "rope"]})))
        == 4
    )
    lists = {"head.memory": [["state"], ["state", "full"], [{"kind": "state", "gate": "head"}]]}
    assert Spec.model_validate({"compose": 1, "name": "x", "vary": {"grid": lists | {"a": [1, True, 0, False, None]}}}).vary


def test_mistakes_of_variants_name_place_and_variant(write: Write) -> None:
    path = write(
        "x.yaml",
        "compose: 1\nname: x\nextends: lawcat\nvary:\n  grid:\n    head.memory.0.gate.rank:\n      - 4\n      - ful\n      - -1\n",
    )
    assert refused(path).splitlines() == [
        'x.yaml:8:9  head.memory[0].gate.rank: expected a whole number or "full", got "ful"; did you mean "full"?'
        ' (in the variant "ful": head.memory.0.gate.rank="ful")',
        "x.yaml:9:9  head.memory[0].gate.rank: expected a number greater than 0"
        ' or "full", got -1. Number of columns of W₁. full: one matrix. (in the variant "1": head.memory.0.gate.rank=-1)',
    ]
    path = write("y.yaml", "compose: 1\nname: y\nextends: lawcat\nvary:\n  grid: {head.conv.kernal: [2, 3]}\n")
    (line,) = refused(path).splitlines()
    assert line.startswith('y.yaml:5:29  head.conv.kernal: unknown key "kernal"; did you mean "kernel"?')
    assert "variant" not in line
    message = message_of(f"{write('z.yaml', json.dumps(sweep(grid={KERNEL: [2, 3]})))}:2", ["head.colour=red"])
    assert f'(in the variant "2": {KERNEL}=2)' in message


def test_the_document_of_a_sweep_must_be_valid() -> None:
    assert "head.colour" in refused(sweep(grid={KERNEL: [2]}) | {"head": {"colour": "red"}})


def test_nan_values_are_refused_and_count_as_duplicates() -> None:
    rate = "recipe.finetune.lr"
    assert "finite number" in refused(sweep(grid={rate: [math.nan, 1e-3]}))
    assert "the same value as [0], NaN" in refused(sweep(grid={rate: [math.nan, math.nan]}))
    assert "the same values as [0]" in refused(sweep(zip={rate: [math.nan, math.nan], KERNEL: [2, 2]}))


def test_sweeps_are_bounded_in_paths_and_variants() -> None:
    paths = {f"recipe.a{number}": [1, 2] for number in range(20_000)}
    assert "varies 20,000 paths; a sweep has at most 64" in refused(sweep(grid=paths))
    heads = {f"h{number}": {"memory": ["full"]} for number in range(2000)}
    message = refused(sweep(grid={KERNEL: list(range(2, 502))}) | {"heads": heads})
    assert "vary: 500 variants of a document of " in message
    assert "at most 1,000,000 in all" in message


def test_the_maximum_number_of_variants_may_share_a_name() -> None:
    began = time.process_time()
    made = names(grid={"paper": [f"{'x' * 60}{number}" for number in range(MOST_VARIANTS)]})
    assert len(set(made)) == MOST_VARIANTS
    assert time.process_time() - began < 20
