"""With ``extends``, mappings merge, lists are replaced, null removes, and a part of another kind starts anew. Cycles are errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from composer.spec import Spec, load_spec
from composer.spec.inherit import MOST_FILES, merge_nodes
from composer.spec.places import from_plain, plain
from composer.spec.reading import MOST_BYTES
from tests.composer.spec.error_messages import message_of

BASE = """\
compose: 1
name: base
paper: a paper
head:
  position: none
  conv: {kernel: 3}
  feature_map: {kind: hedgehog, dim: 16}
  memory:
    - {kind: window, size: 8}
    - state
"""


def over(base: object, child: object) -> object:
    return plain(merge_nodes(from_plain({"head": base}), from_plain({"head": child}), (Spec,)))["head"]


@pytest.mark.parametrize(
    ("base", "child", "result"),
    [
        ({"flow": "cascade"}, {"read": "sum"}, {"flow": "cascade", "read": "sum"}),
        ({"memory": ["full", "state"]}, {"memory": ["full"]}, {"memory": ("full",)}),
        ({"conv": {"kernel": 3}, "flow": "cascade"}, {"conv": None}, {"flow": "cascade"}),
        ({"conv": {"kernel": 3}}, {"conv": {"kernel": None}}, {"conv": {}}),
        ({}, {"conv": None}, {"conv": None}),
        ({"position": "rope"}, {"position": {"theta": 10}}, {"position": {"kind": "rope", "theta": 10}}),
        ({"position": {"kind": "rope", "theta": 10}}, {"position": "rope"}, {"position": {"kind": "rope", "theta": 10}}),
        ({"position": {"kind": "rope", "theta": 10}}, {"position": "none"}, {"position": "none"}),
        ({"conv": {"kernel": 3}}, {"conv": "causal"}, {"conv": {"kernel": 3, "kind": "causal"}}),
        (
            {"feature_map": {"kind": "hedgehog", "dim": 16}},
            {"feature_map": {"kind": "relu", "linear": True}},
            {"feature_map": {"kind": "relu", "linear": True}},
        ),
        (
            {"feature_map": {"kind": "hedgehog", "dim": 16}},
            {"feature_map": {"dim": 8}},
            {"feature_map": {"kind": "hedgehog", "dim": 8}},
        ),
        ({"flow": "cascade"}, "word", "word"),
        ("word", {"flow": "cascade"}, {"flow": "cascade"}),
    ],
)
def test_children_override_their_parent(base: object, child: object, result: object) -> None:
    assert over(base, child) == result


def test_a_mapping_replaces_a_word_that_is_no_part() -> None:
    merge = plain(merge_nodes(from_plain({"recipe": {"data": "a"}}), from_plain({"recipe": {"data": {"b": 1}}}), (Spec,)))
    assert merge == {"recipe": {"data": {"b": 1}}}


def test_chains_of_files_and_shipped_names_can_be_extended(write: Callable) -> None:
    write("lib/base.yaml", BASE)
    write("lib/middle.yaml", "compose: 1\nname: middle\nextends: base.yaml\nhead: {conv: null, read: mixture}\n")
    child = write("child.yaml", "compose: 1\nname: child\nextends: lib/middle.yaml\nhead: {feature_map: {dim: 4}}\n")
    spec = load_spec(child)
    assert (spec.name, spec.paper) == ("child", "a paper")
    assert (
        spec.head
        == load_spec(write("flat.yaml", BASE.replace("  conv: {kernel: 3}\n", "  read: mixture\n").replace("16", "4"))).head
    )
    for parent in ("lawcat", "lawcat.yaml"):
        heir = load_spec(write("heir.yaml", f"compose: 1\nname: heir\nextends: {parent}\n"))
        assert heir.model_copy(update={"name": "lawcat"}) == load_spec("lawcat")


def test_files_take_precedence_over_shipped_specs(write: Callable) -> None:
    write("lawcat.yaml", BASE)
    assert load_spec(write("child.yaml", "compose: 1\nname: child\nextends: lawcat.yaml\n")).paper == "a paper"
    assert load_spec(write("child.yaml", "compose: 1\nname: child\nextends: lawcat\n")).paper != "a paper"


def test_mappings_can_extend_files(write: Callable) -> None:
    write("base.yaml", BASE)
    spec = load_spec({"compose": 1, "name": "child", "extends": "base.yaml", "head": {"conv": None}})
    assert spec.head is not None
    assert spec.head.conv is None
    assert str(spec.place(("head", "feature_map", "dim"))) == "base.yaml:7:38"
    assert spec.place(("name",)) is None


def test_errors_have_the_place_in_the_file_with_the_mistake(write: Callable) -> None:
    write("base.yaml", BASE.replace("size: 8", "sise: 8").replace("dim: 16", "dim: -1"))
    child = write("child.yaml", "compose: 1\nname: child\nextends: base.yaml\nhead:\n  flow: cascad\n")
    places = [line.split(": ")[0] for line in message_of(child).splitlines()]
    assert places == [
        "base.yaml:7:38  head.feature_map.dim",
        "base.yaml:9:22  head.memory[0].sise",
        "child.yaml:5:9  head.flow",
    ]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": "extends: a.yaml"}, "a.yaml:3:10  extends: extends itself: a.yaml → a.yaml"),
        (
            {"a": "extends: b.yaml", "b": "extends: c.yaml", "c": "extends: ./a.yaml"},
            "c.yaml:3:10  extends: extends itself: a.yaml → b.yaml → c.yaml → a.yaml",
        ),
        (
            {"a": "extends: other.yaml", "others": ""},
            'a.yaml:3:10  extends: no file "other.yaml" here, and no shipped spec of that name; did you mean "others.yaml" or ',
        ),
        (
            {"a": "extends: lawcatt"},
            'a.yaml:3:10  extends: no file "lawcatt" here, and no shipped spec of that name; did you mean "lawcat" or ',
        ),
        ({"a": "extends: b.yaml", "b": "extends: gone"}, "b.yaml:3:10  extends: no file"),
        ({"a": "extends: ."}, 'a.yaml:3:10  extends: "." is a folder'),
        ({"a": "extends: [b.yaml]"}, "a.yaml:3:10  extends: expected a file, or the name of a shipped spec"),
        ({"a": "extends: null"}, "a.yaml:3:10  extends: expected a file"),
        (
            {"a": "extends: gone/lawcatt.yaml"},
            'a.yaml:3:10  extends: no file "gone/lawcatt.yaml" here, and no shipped spec of that name; did you mean "lawcat" or ',
        ),
        ({"a": 'extends: "\\0/a"'}, "a.yaml:3:10  extends: no file"),
        ({"a": 'extends: "\\0"'}, "a.yaml:3:10  extends: no file"),
        ({"a": f"extends: {'n' * 5000}"}, "a.yaml:3:10  extends: no file"),
        ({"a": "extends: b.yaml", "b": "- ["}, "b.yaml:3:1  not YAML"),
        (
            {"a": "extends: ablations/lawcat-gate-rank:32"},
            "a.yaml:3:10  extends: a variant of a sweep cannot be extended: "
            'extend "ablations/lawcat-gate-rank" with `vary: null` and the values of "32", or',
        ),
    ],
)
def test_missing_parents_are_refused(write: Callable, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        write(f"{name}.yaml", f"compose: 1\nname: {name}\n{text}\n")
    assert message_of("a.yaml").startswith(message)


def test_unknown_parents_suggest_the_nearest_names() -> None:
    message = message_of("latte-rgru")
    assert message.endswith('did you mean "latte-rglru" or "latte" or "latte-conv"? `compose show` lists the shipped ones')
    assert message_of("nothing-like-it").endswith("no shipped spec of that name. `compose show` lists the shipped ones")


def test_a_missing_parent_names_the_chain(write: Callable) -> None:
    write("b.yaml", "compose: 1\nname: b\nextends: gone.yaml\n")
    assert message_of(write("a.yaml", "compose: 1\nname: a\nextends: b.yaml\n")).endswith("(through a.yaml → b.yaml)")


def test_merged_keys_have_the_place_of_the_child(write: Callable) -> None:
    write("base.yaml", BASE.replace("conv: {kernel: 3}", "conv:\n    kernel: 3"))
    text = "compose: 1\nname: child\nextends: base.yaml\nhead:\n  conv:\n    share: qk\n"
    spec = load_spec(write("child.yaml", text))
    places = {"conv": "child.yaml:5:3", "position": "base.yaml:5:13", "memory": "base.yaml:9:3"}
    assert {key: str(spec.place(("head", key))) for key in places} == places
    assert str(spec.place(("head", "conv", "kernel"))) == "base.yaml:7:13"


def test_every_file_needs_a_name_and_a_version(write: Callable) -> None:
    write("base.yaml", BASE)
    for key, line in (("name", "compose: 1\n"), ("compose", "name: child\n")):
        assert message_of(write("child.yaml", line + "extends: base.yaml\n")).startswith(f"child.yaml:1:1  {key}: missing")
    child = write("child.yaml", "compose: 1\nname: child\nextends: base.yaml\n")
    write("base.yaml", BASE.replace("name: base\n", ""))
    assert message_of(child).startswith("base.yaml:1:1  name: missing")
    write("base.yaml", BASE.replace("compose: 1", "compose: 2"))
    assert message_of(child).startswith("child.yaml:3:10  extends: base.yaml:1:10 has compose: 2, and this file has compose: 1")


def test_chains_have_a_maximum_length(tmp_path: Path) -> None:
    def chain(count: int, text: str = "") -> Path:
        for number in range(count):
            more = f"extends: {number + 1}.yaml" if number + 1 < count else "head: {memory: [full]}"
            (tmp_path / f"{number}.yaml").write_text(f"compose: 1\nname: x\n{more}\n{text}")
        return tmp_path / "0.yaml"

    assert load_spec(chain(MOST_FILES)).head is not None
    for count in (MOST_FILES + 1, 3000):
        assert f"extends: a chain of more than {MOST_FILES} files" in message_of(chain(count))
    assert f"or {MOST_BYTES:,} bytes" in message_of(chain(8, f"#{'x' * (MOST_BYTES // 4)}\n"))
