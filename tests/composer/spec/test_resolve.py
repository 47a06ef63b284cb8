"""A source completes a spec: positions, dimensions, names, reads, and the heads of each layer."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from blocks.memories.window import Window
from blocks.positions import NoPosition, Rope
from composer.errors import GraphError
from composer.spec import load_spec
from composer.spec.resolve import Dimensions, resolve
from tests.composer.programs import printed
from tests.composer.spec.sources import (
    DROP,
    EXACT,
    LLAMA3,
    LOLCATS,
    SIZE,
    STEEPER,
    STRETCHED,
    changed,
    groups,
    refused,
    resolved,
)

NAMES = ["a", "b", "exact"]


def test_every_memory_has_a_separate_position() -> None:
    head = resolved(changed("head.memory.1.position", "none"), STRETCHED).heads["head"]
    assert [memory.position for memory in head.memory] == [Rope(theta=5e5, scaling=LLAMA3), NoPosition()]
    assert head.position == NoPosition()


@pytest.mark.parametrize(
    ("position", "complete"),
    [
        ("rope", Rope(theta=5e5, scaling=LLAMA3)),
        ({"kind": "rope", "theta": 100.0}, Rope(theta=100.0)),
        ({"kind": "rope", "scaling": STEEPER.model_dump()}, Rope(theta=5e5, scaling=STEEPER)),
        ("none", NoPosition()),
    ],
    ids=str,
)
def test_open_fields_of_positions_come_from_the_source(position: Any, complete: Rope | NoPosition) -> None:
    assert resolved(changed("head.position", position), STRETCHED).heads["head"].memory[0].position == complete


def test_resolving_sets_names_dimensions_and_the_read() -> None:
    head = resolved(LOLCATS).heads["head"]
    assert [memory.name for memory in head.memory] == ["window", "state"]
    assert head.feature_map is not None
    assert head.feature_map.dim == 8
    assert head.read is not None
    assert head.read.kind == "shared"
    assert resolved({"compose": 1, "name": "x", "head": EXACT}).heads["head"].read is None


def test_a_sum_of_normalised_memories_resolves_to_shared() -> None:
    document = changed("head.read", "sum")
    assert resolved(document).hash == resolved(LOLCATS).hash
    document["head"]["memory"][0].pop("weight")
    document["head"]["memory"][1]["normalise"] = False
    read = resolved(document).heads["head"].read
    assert read is not None
    assert read.kind == "sum"


def test_parallel_windows_drop_evicted_pairs() -> None:
    head = resolved(changed("head.flow", "parallel")).heads["head"]
    assert isinstance(head.memory[0], Window)
    assert head.memory[0].evict == "drop"
    assert refused({"compose": 1, "name": "x", "head": {"memory": ["window", {"kind": "window", "name": "w"}], "flow": "parallel"}})


def test_resolving_keeps_recipe_and_paper() -> None:
    document = LOLCATS | {"paper": "p", "recipe": {"data": "d"}}
    assert resolved(document).paper == "p"
    assert resolved(document).recipe is not None
    assert resolved(document).name == "x"


def layout(*rules: tuple[Any, Any], head: bool = True) -> list[str]:
    """Return the heads of each of 6 layers, ``a`` without a rule, groups as ``a2 b6``."""
    used = {name for _, use in rules for name in ([use] if isinstance(use, str) else (group["head"] for group in use))}
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
def test_layer_rules_apply_in_order(rules: list, expected: str) -> None:
    assert layout(*rules) == expected.split(" ")


def test_without_a_head_for_all_every_layer_needs_a_rule() -> None:
    assert layout(("all", "a"), (3, "b"), head=False) == ["a", "a", "a", "b", "a", "a"]
    path, message = refused({"compose": 1, "name": "x", "heads": {"a": DROP}, "layers": [{"at": ":4", "use": "a"}]})
    assert path == ("layers",)
    assert "layer 4 has no head" in message


def test_groups_of_heads_divide_a_layer_in_order() -> None:
    assert layout((1, groups(a=2, b=6)), (2, groups(b=6, a=2)), (-1, groups(head=8)))[1:3] == ["a2 b6", "b6 a2"]
    rule = {"at": 0, "use": groups(a=6, head=2)}
    document = {"compose": 1, "name": "x", "head": EXACT, "heads": {"a": DROP}, "layers": [rule]}
    head_groups = list(resolved(document).groups())
    assert [(index, group.head, group.key_heads, shape.heads, shape.key_heads) for index, group, _, shape in head_groups[:3]] == [
        (0, "a", 3, 6, 3),
        (0, "head", 1, 2, 1),
        (1, "head", 4, 8, 4),
    ]
    # Their order is the order of the query heads, so it means something.
    rotated = document | {"layers": [{"at": 0, "use": groups(head=2, a=6)}]}
    assert resolved(rotated).hash != resolved(document).hash


@pytest.mark.parametrize(
    ("more", "path", "message"),
    [
        ({"layers": [{"at": 6, "use": "head"}]}, ("layers", 0, "at"), "layer 6 is not there: the model has 6 layers, -6 to 5"),
        ({"layers": [{"at": [0, -7], "use": "head"}]}, ("layers", 0, "at"), "layer -7 is not there"),
        ({"layers": [{"at": "0:3:0", "use": "head"}]}, ("layers", 0, "at"), "a step of 0 never arrives"),
        ({"layers": [{"at": "6:9", "use": "head"}]}, ("layers", 0, "at"), "names none of the model's 6 layers"),
        ({"layers": [{"at": [], "use": "head"}]}, ("layers", 0, "at"), "names none of the model's 6 layers"),
        ({"layers": [{"at": 0, "use": "exakt"}]}, ("layers", 0, "use"), 'no head "exakt"; there are: head'),
        ({"layers": [{"at": 0, "use": "x"}, {"at": 0, "use": "head"}]}, ("layers", 0, "use"), 'no head "x"'),
        ({"layers": [{"at": 0, "use": groups(head=7)}]}, ("layers", 0, "use"), "choose a multiple of 2"),
        ({"layers": [{"at": 0, "use": groups(head=6)}]}, ("layers", 0, "use"), "have 6 query heads together, and the layer has 8"),
        ({"layers": [{"at": 0, "use": groups(head=4) + groups(head=4)}]}, ("layers", 0, "use"), "names a head twice"),
        ({"heads": {"head": EXACT}}, ("heads", "head"), "`head:` already has the name head"),
        ({"heads": {"a": EXACT}}, ("heads", "a"), "no layer uses this head"),
        (
            {"heads": {"a": EXACT}, "layers": [{"at": [0, 1], "use": "a"}, {"at": "all", "use": "head"}]},
            ("layers", 1),
            "no layer has this head: layers[0] names it, and layers[1] gives all of its layers another one.",
        ),
        (
            {"heads": {"a": EXACT}, "layers": [{"at": [0, 1], "use": "a"}, {"at": 0, "use": "head"}, {"at": 1, "use": "source"}]},
            ("layers", 1),
            "layers[0] names it, and layers[1] and layers[2] give all of its layers another one.",
        ),
        ({"heads": {"half": EXACT}, "layers": [{"at": 0, "use": "half"}]}, ("heads", "half"), "choose another name for this head"),
        ({"heads": {"a": {"memory": ["state"]}}, "layers": [{"at": 0, "use": "a"}]}, ("heads", "a", "memory", 0), "`feature_map`"),
    ],
    ids=str,
)
def test_invalid_layer_rules_are_refused(more: dict[str, Any], path: tuple, message: str) -> None:
    error_path, error_text = refused(LOLCATS | more)
    assert error_path == path
    assert message in error_text


def test_a_named_head_called_head_is_found() -> None:
    document = {"compose": 1, "name": "x", "heads": {"head": EXACT, "a": EXACT}, "layers": [{"at": "all", "use": "a"}]}
    assert refused(document)[0] == ("heads", "head")


def test_groups_are_checked_at_their_size() -> None:
    """Groups of 2 and 8 heads of one kind have different graphs."""
    spec = resolved(LOLCATS | {"heads": {"a": EXACT}, "layers": [{"at": 0, "use": groups(head=2, a=6)}]})
    assert {(name, shape.heads) for (name, _), (_, shape, _) in spec.kinds().items()} == {("head", 8), ("head", 2), ("a", 6)}


def test_impossible_dimensions_are_refused() -> None:
    for wrong in ({"heads": 6}, {"heads": 2}, {"layers": 0}, {"head_dim": -8}, {"rope_theta": float("nan")}):
        with pytest.raises(ValidationError):
            Dimensions.model_validate(SIZE.model_dump() | wrong)
    with pytest.raises(ValidationError, match="6 query heads cannot share 4 key heads evenly"):
        Dimensions.model_validate(SIZE.model_dump() | {"heads": 6})


def test_resolving_needs_neither_torch_nor_transformers() -> None:
    code = """
        from composer.spec.explain import explain_resolved
        from composer.spec import load_spec
        from composer.spec.resolve import Dimensions, resolve
        size = Dimensions(hidden_size=24, layers=6, heads=8, key_heads=4, head_dim=8, rope_theta=1e4)
        for name in ("lolcats", "lawcat", "hybrid", "retention"):
            assert explain_resolved(resolve(load_spec(name), size)).hash
        print(*{"torch", "transformers"} & sys.modules.keys())
    """
    assert printed(code) == ""


def test_a_default_head_without_layers_is_omitted() -> None:
    """On a source of two layers, the exact first and last layer of the hybrid are all layers."""
    named = {"compose": 1, "name": "x", "head": DROP, "heads": {"a": EXACT}, "layers": [{"at": "all", "use": "a"}]}
    assert set(resolved(named).heads) == {"a"}
    assert resolved(named).hash == resolved({key: value for key, value in named.items() if key != "head"}).hash


def test_shares_select_groups_of_a_layers_heads() -> None:
    """8 query heads share 4 key heads."""
    document = {"compose": 1, "name": "x", "head": EXACT, "heads": {"a": DROP}}

    def shared(*shares: tuple[str, Any]) -> dict[str, Any]:
        return document | {"layers": [{"at": "all", "use": [{"head": head, "heads": share} for head, share in shares]}]}

    assert resolved(shared(("a", "1/4"), ("head", "3/4"))).hash == resolved(shared(("a", 2), ("head", 6))).hash
    assert resolved(shared(("a", "2/8"), ("head", 6))).hash == resolved(shared(("a", 2), ("head", 6))).hash
    for shares, message in {
        (("a", "1/8"), ("head", "7/8")): '"a" has 1/8 of 8 query heads, which is 1; 2 of them share each key head',
        (("a", "1/3"), ("head", "2/3")): '"a" has 1/3 of 8 query heads, which is 8/3; 2 of them share each key head',
        (("a", "1/4"), ("head", "1/2")): "these groups have 6 query heads together, and the layer has 8",
        (("a", "1/2"), ("head", "3/4")): "these groups have 10 query heads together, and the layer has 8",
    }.items():
        path, error_text = refused(shared(*shares))
        assert path == ("layers", 0, "use")
        assert message in error_text
    alone = SIZE.model_copy(update={"key_heads": 8})
    assert "which is 8/3; expected a whole number" in refused(shared(("a", "1/3"), ("head", "2/3")), alone)[1]


def test_mixed_heads_fit_sources_of_any_size() -> None:
    for heads, key_heads in ((8, 4), (32, 8), (4, 2), (12, 12)):
        size = SIZE.model_copy(update={"heads": heads, "key_heads": key_heads})
        whole = resolve(load_spec("mixed-heads"), size)
        assert {tuple((group.head, group.heads) for group in layer) for layer in whole.layers} == {
            (("lolcats", heads // 2), ("lawcat", heads // 2))
        }
    with pytest.raises(GraphError, match="8 of them share each key head"):
        resolve(load_spec("mixed-heads"), SIZE.model_copy(update={"key_heads": 1}))


def test_too_many_layers_are_refused_before_they_are_listed() -> None:
    with pytest.raises(ValidationError, match="less than or equal to 10000"):
        Dimensions(**SIZE.model_dump() | {"layers": 2**31 - 1})
