"""A spec becomes complete against a source; its hash is what it means, and nothing else; rules give each layer its heads."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from blocks.memories.window import Window
from blocks.positions import Llama3Scaling, NoPosition, Rope
from composer.errors import GraphError
from composer.spec import load_spec
from composer.spec.resolve import Dimensions, Resolved, resolve
from composer.spec.shipped import shipped_specs
from tests.composer.programs import printed

LLAMA3 = Llama3Scaling(factor=8, low_frequency_factor=1, high_frequency_factor=4, original_length=8192)
STEEPER = LLAMA3.model_copy(update={"factor": 32.0})
SIZE = Dimensions(hidden_size=24, layers=6, heads=8, key_heads=4, head_dim=8, rope_theta=1e4)
STRETCHED = SIZE.model_copy(update={"rope_theta": 5e5, "rope_scaling": LLAMA3})
LOLCATS: dict[str, Any] = {
    "compose": 1,
    "name": "x",
    "head": {
        "position": "rope",
        "conv": {"kind": "causal"},
        "feature_map": {"kind": "hedgehog"},
        "memory": [{"kind": "window", "size": 64, "weight": "learned"}, {"kind": "state", "gate": {"kind": "channel"}}],
        "read": "shared",
    },
}
EXACT: dict[str, Any] = {"memory": ["full"]}
DROP: dict[str, Any] = {"memory": [{"kind": "window", "evict": "drop"}]}
NAMES = ["a", "b", "exact"]


def resolved(document: dict[str, Any], size: Dimensions = SIZE) -> Resolved:
    return resolve(load_spec(document), size)


def changed(path: str, value: Any) -> dict[str, Any]:
    """LoLCATs with something else at ``head.memory.0.size``."""
    document = copy.deepcopy(LOLCATS)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    place: Any = document
    for step in way:
        place = place[step]
    place[last] = value
    return document


def refused(document: dict[str, Any], size: Dimensions = SIZE) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(GraphError) as caught:
        resolved(document, size)
    return caught.value.path, str(caught.value)


# --- What a hash is ---------------------------------------------------------------------------------------------------------


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reversed_keys(item) for key, item in reversed(value.items())}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "same",
    [
        reversed_keys(LOLCATS),
        changed("name", "another"),
        LOLCATS | {"paper": "arXiv:0000.00000"},
        LOLCATS | {"recipe": {"transfer": {"lr": 1.0, "epochs": 1}}},
        changed("head.read", None),
        changed("head.read", {"kind": "shared"}),
        changed("head.conv", "causal"),
        changed("head.feature_map", "hedgehog"),
        changed("head.feature_map", {"kind": "hedgehog", "dim": 8}),
        changed("head.position", {"kind": "rope", "theta": 10000}),
        changed("head.flow", "cascade"),
        changed("head.memory.0.name", "near"),
        changed("head.memory.0.position", "rope"),
        changed("head.memory.0.evict", "fall"),
        changed("head.memory.1.gate", {"kind": "channel", "rank": 16, "temperature": 16, "bias": 0, "per": "query_head"}),
        changed("head.memory.1.normalise", True),
        {**LOLCATS, "layers": [{"at": "all", "use": "head"}]},
        {"compose": 1, "name": "x", "heads": {"b": LOLCATS["head"]}, "layers": [{"at": "0:", "use": "b"}]},
        {"compose": 1, "name": "x", "heads": {"b": LOLCATS["head"]}, "layers": [{"at": "all", "use": {"b": 8}}]},
    ],
    ids=lambda document: json.dumps(document)[:300],
)
def test_the_same_meaning_has_the_same_hash(same: dict[str, Any]) -> None:
    assert resolved(same).hash == resolved(LOLCATS).hash


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("head.position", "none"),
        ("head.position", {"kind": "rope", "theta": 500.0}),
        ("head.position", {"kind": "rope", "scaling": json.loads(LLAMA3.model_dump_json())}),
        ("head.conv", None),
        ("head.conv.kernel", 5),
        ("head.conv.inputs", ["k"]),
        ("head.conv.share", "qk"),
        ("head.conv.per", "key_head"),
        ("head.feature_map", {"kind": "exp"}),
        ("head.feature_map.dim", 7),
        ("head.feature_map.floor", 1e-6),
        ("head.feature_map.two_sided", False),
        ("head.feature_map.share", "qk"),
        ("head.feature_map.per", "key_head"),
        ("head.feature_map.bias", True),
        ("head.feature_map.init", "random"),
        ("head.memory.0.size", 63),
        ("head.memory.0.weight", None),
        ("head.memory.0.weight", 0.5),
        ("head.memory.0.position", "none"),
        ("head.memory.1.weight", "learned"),
        ("head.memory.1.gate", "none"),
        ("head.memory.1.gate", "head"),
        ("head.memory.1.gate.rank", 8),
        ("head.memory.1.gate.rank", "full"),
        ("head.memory.1.gate.temperature", 8.0),
        ("head.memory.1.gate.bias", 4.0),
        ("head.memory.1.gate.per", "key_head"),
        ("head.memory", [LOLCATS["head"]["memory"][1]]),
        ("head.flow", "parallel"),
        ("head.read", "mixture"),
        ("heads", {"exact": EXACT}),
    ],
    ids=str,
)
def test_another_meaning_has_another_hash(path: str, value: Any) -> None:
    document = changed(path, value)
    if path == "heads":
        document["layers"] = [{"at": 3, "use": "exact"}]
    if path == "head.memory":
        document["head"]["read"] = None
    assert resolved(document).hash != resolved(LOLCATS).hash


@pytest.mark.parametrize("key", ["hidden_size", "layers", "heads", "head_dim", "key_heads", "rope_theta", "rope_scaling"])
def test_another_source_has_another_hash(key: str) -> None:
    bigger = {"key_heads": 2, "rope_theta": 5e5, "rope_scaling": LLAMA3}
    other = Dimensions.model_validate(SIZE.model_dump() | {key: bigger.get(key, 2 * (getattr(SIZE, key) or 1))})
    assert resolved(LOLCATS, other).hash != resolved(LOLCATS).hash


def test_without_positions_the_sources_rope_means_nothing() -> None:
    document = changed("head.position", "none")
    assert resolved(document, STRETCHED).hash == resolved(document).hash


def test_through_any_chain_of_extends_it_is_the_same(write: Callable[[str, str], Path]) -> None:
    write("base.yaml", "compose: 1\nname: base\nhead: {feature_map: elu, memory: [{kind: window, size: 9}, state], read: sum}\n")
    write("middle.yaml", "compose: 1\nname: middle\nextends: base.yaml\nhead: {position: none, memory: [window, state]}\n")
    leaf = write("leaf.yaml", "compose: 1\nname: leaf\nextends: middle.yaml\nhead: {feature_map: relu, read: null}\n")
    flat = write("flat.yaml", "compose: 1\nname: flat\nhead: {position: none, feature_map: relu, memory: [window, state]}\n")
    assert resolve(load_spec(leaf), SIZE).hash == resolve(load_spec(flat), SIZE).hash


def test_the_hash_is_that_of_this_document() -> None:
    """Pinned: a default that changes within version 1 shows here."""
    pinned = "db83d34d09c8a60ae90b4f51e5a41ce95fdb4998a2990cf8820a10b542e1d2ba"
    assert resolved({"compose": 1, "name": "x", "head": DROP | {"position": "none"}}).hash == pinned


@pytest.mark.parametrize("name", sorted(shipped_specs()))
def test_a_resolved_document_is_complete_and_comes_back_from_json(name: str) -> None:
    once = resolve(load_spec(name), STRETCHED)
    again = Resolved.model_validate_json(once.model_dump_json())
    assert again == once
    assert again.hash == once.hash
    # Resolved again, as a spec of its own, against any source's rope, it says the same.
    spec = {"compose": 1, "name": "y", "heads": json.loads(once.model_dump_json())["heads"]}
    spec["layers"] = [{"at": index, "use": {group.head: group.heads for group in layer}} for index, layer in enumerate(once.layers)]
    assert resolved(spec, SIZE).hash == once.hash


# --- What is written out ----------------------------------------------------------------------------------------------------


def test_every_memory_has_a_position_of_its_own() -> None:
    head = resolved(changed("head.memory.1.position", "none"), STRETCHED).heads["head"]
    assert [memory.position for memory in head.memory] == [Rope(theta=5e5, scaling=LLAMA3), NoPosition()]
    assert head.position == NoPosition()


@pytest.mark.parametrize(
    ("said", "complete"),
    [
        ("rope", Rope(theta=5e5, scaling=LLAMA3)),
        ({"kind": "rope", "theta": 100.0}, Rope(theta=100.0)),
        ({"kind": "rope", "scaling": STEEPER.model_dump()}, Rope(theta=5e5, scaling=STEEPER)),
        ("none", NoPosition()),
    ],
    ids=str,
)
def test_what_a_position_leaves_open_comes_from_the_source(said: Any, complete: Rope | NoPosition) -> None:
    assert resolved(changed("head.position", said), STRETCHED).heads["head"].memory[0].position == complete


def test_names_dimensions_and_the_read() -> None:
    head = resolved(LOLCATS).heads["head"]
    assert [memory.name for memory in head.memory] == ["window", "state"]
    assert head.feature_map is not None
    assert head.feature_map.dim == 8
    assert head.read is not None
    assert head.read.kind == "shared"
    assert resolved({"compose": 1, "name": "x", "head": EXACT}).heads["head"].read is None


def test_a_sum_of_masses_is_shared() -> None:
    document = changed("head.read", "sum")
    assert resolved(document).hash == resolved(LOLCATS).hash
    document["head"]["memory"][1]["normalise"] = False
    read = resolved(document).heads["head"].read
    assert read is not None
    assert read.kind == "sum"


def test_in_parallel_a_window_drops_what_another_memory_keeps() -> None:
    head = resolved(changed("head.flow", "parallel")).heads["head"]
    assert isinstance(head.memory[0], Window)
    assert head.memory[0].evict == "drop"
    assert refused({"compose": 1, "name": "x", "head": {"memory": ["window", {"kind": "window", "name": "w"}], "flow": "parallel"}})


def test_recipe_and_paper_stay_with_it() -> None:
    document = LOLCATS | {"paper": "p", "recipe": {"data": "d"}}
    assert resolved(document).paper == "p"
    assert resolved(document).recipe is not None
    assert resolved(document).name == "x"


# --- Which layer has which head ---------------------------------------------------------------------------------------------


def layout(*rules: tuple[Any, Any], head: bool = True) -> list[str]:
    """The heads of each of 6 layers, ``a`` where no rule says otherwise; groups as ``a2 b6``."""
    used = {name for _, use in rules for name in ([use] if isinstance(use, str) else use)}
    document: dict[str, Any] = {"compose": 1, "name": "x", "layers": [{"at": at, "use": use} for at, use in rules]}
    document["heads"] = {name: EXACT if name == "exact" else DROP for name in NAMES if name in used}
    if head:
        document["head"] = LOLCATS["head"]
    layers = resolved(document).layers
    return [" ".join(f"{group.head}{group.heads if len(layer) > 1 else ''}" for group in layer) for layer in layers]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([(0, "a")], "a head head head head head"),
        ([(-1, "a")], "head head head head head a"),
        ([([0, -1, 2], "a")], "a head a head head a"),
        ([("1:3", "a")], "head a a head head head"),
        ([(":2", "a"), ("-2:", "b")], "a a head head b b"),
        ([("::2", "a")], "a head a head a head"),
        ([(":-1:2", "a")], "a head a head a head"),
        ([("5:1:-2", "a")], "head head head a head a"),
        ([("4:99", "a")], "head head head head a a"),
        ([("1:5", "a"), (2, "b"), ("3:", "head")], "head a b head head head"),
    ],
    ids=str,
)
def test_rules_in_their_order(rules: list, expected: str) -> None:
    assert layout(*rules) == expected.split(" ")


def test_without_a_head_for_all_every_layer_needs_a_rule() -> None:
    assert layout(("all", "a"), (3, "b"), head=False) == ["a", "a", "a", "b", "a", "a"]
    path, message = refused({"compose": 1, "name": "x", "heads": {"a": DROP}, "layers": [{"at": ":4", "use": "a"}]})
    assert path == ("layers",)
    assert "layer 4 has no head" in message


def test_groups_of_heads_inside_one_layer() -> None:
    assert layout((1, {"a": 2, "b": 6}), (2, {"b": 6, "a": 2}), (-1, {"head": 8}))[1:3] == ["a2 b6", "b6 a2"]
    document = {"compose": 1, "name": "x", "head": EXACT, "heads": {"a": DROP}, "layers": [{"at": 0, "use": {"a": 6, "head": 2}}]}
    groups = list(resolved(document).groups())
    assert [(index, group.head, group.key_heads, shape.heads, shape.key_heads) for index, group, _, shape in groups[:3]] == [
        (0, "a", 3, 6, 3),
        (0, "head", 1, 2, 1),
        (1, "head", 4, 8, 4),
    ]
    # Their order is the order of the query heads, so it means something.
    turned = document | {"layers": [{"at": 0, "use": {"head": 2, "a": 6}}]}
    assert resolved(turned).hash != resolved(document).hash


@pytest.mark.parametrize(
    ("more", "path", "message"),
    [
        ({"layers": [{"at": 6, "use": "head"}]}, ("layers", 0, "at"), "layer 6 is not there: the source has 6 layers, -6 to 5"),
        ({"layers": [{"at": [0, -7], "use": "head"}]}, ("layers", 0, "at"), "layer -7 is not there"),
        ({"layers": [{"at": "0:3:0", "use": "head"}]}, ("layers", 0, "at"), "a step of 0 never arrives"),
        ({"layers": [{"at": "6:9", "use": "head"}]}, ("layers", 0, "at"), "names none of the source's 6 layers"),
        ({"layers": [{"at": [], "use": "head"}]}, ("layers", 0, "at"), "names none of the source's 6 layers"),
        ({"layers": [{"at": 0, "use": "exakt"}]}, ("layers", 0, "use"), 'no head "exakt"; there are: head'),
        ({"layers": [{"at": 0, "use": "x"}, {"at": 0, "use": "head"}]}, ("layers", 0, "use"), 'no head "x"'),
        ({"layers": [{"at": 0, "use": {"head": 7}}]}, ("layers", 0, "use"), "take a multiple of 2"),
        ({"layers": [{"at": 0, "use": {"head": 6}}]}, ("layers", 0, "use"), "have 6 query heads together, and the layer has 8"),
        ({"heads": {"head": EXACT}}, ("heads", "head"), "`head:` is itself called head"),
        ({"heads": {"a": EXACT}}, ("heads", "a"), "no layer uses this head"),
        ({"heads": {"a": EXACT}, "layers": [{"at": "all", "use": "a"}]}, ("head",), "no layer uses this head"),
        ({"heads": {"half": EXACT}, "layers": [{"at": 0, "use": "half"}]}, ("heads", "half"), "give this head another name"),
        ({"heads": {"a": {"memory": ["state"]}}, "layers": [{"at": 0, "use": "a"}]}, ("heads", "a", "memory", 0), "`feature_map`"),
    ],
    ids=str,
)
def test_what_layers_cannot_say(more: dict[str, Any], path: tuple, message: str) -> None:
    found, said = refused(LOLCATS | more)
    assert found == path
    assert message in said


def test_a_head_called_head_among_the_named_ones_is_found_there() -> None:
    document = {"compose": 1, "name": "x", "heads": {"head": EXACT, "a": EXACT}, "layers": [{"at": "all", "use": "a"}]}
    assert refused(document)[0] == ("heads", "head")


def test_a_group_is_checked_at_its_own_size() -> None:
    """Groups of 2 and 8 heads of one kind: both have graphs of their own."""
    resolved(LOLCATS | {"heads": {"a": EXACT}, "layers": [{"at": 0, "use": {"head": 2, "a": 6}}]})


def test_dimensions_that_no_source_has() -> None:
    for wrong in ({"heads": 6}, {"heads": 2}, {"layers": 0}, {"head_dim": -8}, {"rope_theta": float("nan")}):
        with pytest.raises(ValidationError):
            Dimensions.model_validate(SIZE.model_dump() | wrong)
    with pytest.raises(ValidationError, match="6 query heads cannot share 4 key heads evenly"):
        Dimensions.model_validate(SIZE.model_dump() | {"heads": 6})


def test_resolving_needs_neither_torch_nor_transformers() -> None:
    code = """
        from composer.graph.explain import explain_resolved
        from composer.spec import load_spec
        from composer.spec.resolve import Dimensions, resolve
        size = Dimensions(hidden_size=24, layers=6, heads=8, key_heads=4, head_dim=8, rope_theta=1e4)
        for name in ("lolcats", "lawcat", "hybrid", "retention"):
            assert explain_resolved(resolve(load_spec(name), size)).hash
        print(*{"torch", "transformers"} & sys.modules.keys())
    """
    assert printed(code) == ""
