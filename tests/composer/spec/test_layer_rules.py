"""Groups of heads by number: every order has one meaning, consecutive groups are those of counts, and mistakes name the numbers."""

from __future__ import annotations

import pytest

from composer.spec import load_spec
from composer.spec.built_models import document_of
from composer.spec.difference import differences_of_specs, differences_on_source
from composer.spec.explain import explain_resolved
from composer.spec.layer_rules import Group
from tests.composer.spec.sources import DROP, EXACT, refused, resolved


def numbered(*uses: tuple[str, object]) -> list[dict]:
    return [{"head": head, "heads": heads} for head, heads in uses]


def in_words(layer: tuple[Group, ...]) -> str:
    """Return groups as ``a4 0,2``: head, query heads, key heads by number."""
    words = ((group.head, group.heads, group.numbers) for group in layer)
    return "; ".join(f"{head}{count}" + (f" {','.join(map(str, own))}" if own else "") for head, count, own in words)


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ((("a", [0, 2]), ("head", [1, 3])), "a4 0,2; head4 1,3"),
        ((("head", [3, 1]), ("a", [2, 0])), "a4 0,2; head4 1,3"),
        ((("head", "rest"), ("a", [2, 0])), "a4 0,2; head4 1,3"),
        ((("a", [3]), ("source", [1]), ("head", "rest")), "head4 0,2; source2 1; a2 3"),
        ((("a", [2, 3]), ("head", "rest")), "head4; a4"),
        ((("a", [1]), ("head", [0]), ("source", "rest")), "head2; a2; source4"),
        ((("a", [3, 1, 0, 2]),), "a8"),
        ((("a", 2), ("head", "rest")), "a2; head6"),
        ((("a", "rest"), ("head", "1/4")), "a6; head2"),
        ((("a", "rest"),), "a8"),
    ],
    ids=str,
)
def test_groups_by_number_in_any_order(uses: tuple, expected: str) -> None:
    """Groups that follow each other are those of counts, with their hash."""
    document = {"compose": 1, "name": "x", "head": EXACT, "heads": {"a": DROP}, "layers": [{"at": 0, "use": numbered(*uses)}]}
    document = document if any(head == "a" for head, _ in uses) else document | {"heads": {}}
    result = resolved(document)
    assert in_words(result.layers[0]) == expected
    assert resolved(document_of(result.model_dump(mode="json"))).hash == result.hash
    if "," not in expected and " " not in expected.replace("; ", ";"):
        counts = numbered(*((group.head, group.heads) for group in result.layers[0]))
        assert resolved(document | {"layers": [{"at": 0, "use": counts}]}).hash == result.hash


@pytest.mark.parametrize(
    ("uses", "message"),
    [
        ((("a", [0, 2]), ("head", [1, 2, 3])), 'key head 2 is in two groups, "a" and "head": list it once'),
        ((("a", [0, 0, 1, 1]), ("head", "rest")), '"a" lists key heads 0 to 1 twice: list each once'),
        ((("a", [0]), ("head", [2])), "key heads 1, 3 are in no group: add them to one, or write `heads: rest` in one"),
        ((("a", [0, 7, 9]), ("head", "rest")), '"a" lists key heads 7, 9, and the layer has 4: choose among 0 to 3'),
        (
            (("a", [0]), ("head", 6)),
            '"a" has numbers of key heads, and "head" a count or share: give every group of the layer numbers',
        ),
        ((("a", "rest"), ("head", "rest")), '"a" and "head" both have the rest of the heads: only one group can'),
        ((("a", "rest"), ("head", [0, 1, 2, 3])), '"a" has no heads: the other groups have all 4 key heads of the layer'),
        ((("a", "rest"), ("head", "1/1")), '"a" has no heads: the other groups have 8 query heads together, and the layer has 8'),
    ],
    ids=str,
)
def test_groups_that_miss_or_repeat_heads_are_refused(uses: tuple, message: str) -> None:
    document = {"compose": 1, "name": "x", "head": EXACT, "heads": {"a": DROP}, "layers": [{"at": 0, "use": numbered(*uses)}]}
    path, text = refused(document)
    assert path == ("layers", 0, "use")
    assert message in text


def test_diff_of_groups_by_number_has_head_numbers() -> None:
    document = {"compose": 1, "name": "x", "head": EXACT, "heads": {"a": DROP}}
    first, same, other = (
        document | {"layers": [{"at": 0, "use": numbered(*uses)}]}
        for uses in (
            (("a", [2, 0]), ("head", "rest")),
            (("head", "rest"), ("a", [0, 2])),
            (("a", [0, 3]), ("head", "rest")),
        )
    )
    assert differences_of_specs(load_spec(first), load_spec(same)) == []
    assert [row.path for row in differences_of_specs(load_spec(first), load_spec(other))] == [("layers", 0, "use", 0, "heads")]
    assert differences_on_source(resolved(first), resolved(same)) == []
    rows = differences_on_source(resolved(first), resolved(other))
    assert [(row.layers, row.path, row.first) for row in rows] == [
        ((0,), ("groups", 0, "heads"), [0, 2]),
        ((0,), ("groups", 1, "heads"), [1, 3]),
    ]


def test_an_explanation_lists_key_heads_by_number() -> None:
    rule = {"at": [0, 2, 3], "use": numbered(("source", [0, 3]), ("head", "rest"))}
    explained = explain_resolved(resolved({"compose": 1, "name": "x", "head": DROP, "layers": [rule]}))
    assert [(some.layers, some.numbers) for some in explained.key_heads] == [((0, 2, 3), {"source": (0, 3), "head": (1, 2)})]
    assert "0, 2 to 3  source 0, 3; head 1 to 2" in str(explained)
