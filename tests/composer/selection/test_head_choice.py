"""The key heads with the highest scores are kept, by number or by budget, and written as a rule for each set of them."""

from __future__ import annotations

from typing import Any

import pytest

from composer.errors import SelectionError
from composer.selection.choice import HeadSubject, candidate_heads, count_within, keeping_heads, least_heads, rank_heads
from composer.spec.dimensions import Dimensions
from composer.spec.loading import load_spec, resolve_spec
from composer.weights.target import Target

SIZES = Dimensions(hidden_size=64, layers=4, heads=8, key_heads=4, head_dim=16, rope_theta=1e4)
TARGET = Target("a source", SIZES, "float32")


def kept_in(document: dict[str, Any], *kept: tuple[int, int]) -> dict[str, Any]:
    return keeping_heads(document, resolve_spec(load_spec(document), SIZES), kept)


def document_of(name: str, **more: Any) -> dict[str, Any]:
    return {**load_spec(name).model_dump(mode="json", exclude_unset=True), **more}


def test_layers_with_the_same_heads_share_a_rule() -> None:
    document = kept_in(document_of("lawcat"), (1, 0), (1, 2), (3, 2), (3, 0), (2, 3))
    assert document["layers"] == [
        {"at": [1, 3], "use": [{"head": "source", "heads": [0, 2]}, {"head": "head", "heads": "rest"}]},
        {"at": 2, "use": [{"head": "source", "heads": [3]}, {"head": "head", "heads": "rest"}]},
    ]
    left = candidate_heads(resolve_spec(load_spec(document), SIZES))
    every = candidate_heads(resolve_spec(load_spec("lawcat"), SIZES))
    assert [head for head in every if head not in left] == [(1, 0), (1, 2), (2, 3), (3, 0), (3, 2)]


def test_whole_layers_use_the_source_and_no_heads_change_nothing() -> None:
    document = document_of("lawcat")
    assert kept_in(document, *((2, head) for head in range(4)))["layers"] == [{"at": 2, "use": "source"}]
    assert kept_in(document) == document


def test_groups_keep_their_other_heads_and_empty_heads_are_removed() -> None:
    """Of a layer with two heads both keep what is left of them; a head without a key head is removed."""
    document = kept_in(document_of("mixed-heads"), (0, 1), (0, 3), *((layer, head) for layer in (1, 2, 3) for head in (2, 3)))
    groups = resolve_spec(load_spec(document), SIZES).layers
    assert [(group.head, group.numbers) for group in groups[0]] == [("lolcats", (0,)), ("source", (1, 3)), ("lawcat", (2,))]
    assert [(group.head, group.key_heads) for group in groups[1]] == [("lolcats", 2), ("source", 2)]
    alone = document_of("mixed-heads", layers=[{"at": "all", "use": "lolcats"}, {"at": 0, "use": "lawcat"}])
    assert set(kept_in(alone, *((0, head) for head in range(4)))["heads"]) == {"lolcats"}


def test_heads_of_an_earlier_selection_are_kept() -> None:
    """Key heads that already have the source's attention are no candidates, and stay."""
    first = kept_in(document_of("lolcats"), (0, 1), (1, 1))
    resolved = resolve_spec(load_spec(first), SIZES)
    assert (0, 1) not in candidate_heads(resolved)
    second = keeping_heads(first, resolved, [(0, 3)])
    assert second["layers"] == [
        {"at": [0, 1], "use": [{"head": "source", "heads": [1]}, {"head": "head", "heads": "rest"}]},
        {"at": 0, "use": [{"head": "source", "heads": [1, 3]}, {"head": "head", "heads": "rest"}]},
    ]


def test_layers_with_one_key_head_are_kept_whole() -> None:
    single = SIZES.model_copy(update={"key_heads": 1})
    resolved = resolve_spec(load_spec("lawcat"), single)
    assert candidate_heads(resolved) == ((0, 0), (1, 0), (2, 0), (3, 0))
    assert keeping_heads(document_of("lawcat"), resolved, [(3, 0), (1, 0)])["layers"] == [{"at": [1, 3], "use": "source"}]


def test_a_budget_is_filled_but_not_exceeded() -> None:
    assert count_within(lambda count: 100 + 50 * count, 9, 210, "key head") == 2
    assert count_within(lambda count: 100 + 50 * count, 4, 10_000, "key head") == 4
    with pytest.raises(SelectionError, match="needs 100 bytes with no key head kept, and 150 with one"):
        count_within(lambda count: 100 + 50 * count, 4, 149, "key head")
    spec = load_spec("streaming")
    subject = HeadSubject(spec, resolve_spec(spec, SIZES), TARGET)
    heads = candidate_heads(subject.resolved)
    sizes = [subject.bytes(heads[:count], 4096) for count in (0, 1, 2, 5)]
    assert sizes == sorted(set(sizes)), "every head that is kept costs more"
    assert count_within(lambda count: subject.bytes(heads[:count], 4096), 15, sizes[2], "key head") == 2


def test_heads_are_ranked_by_score_and_then_by_position() -> None:
    assert rank_heads([(0, 0), (0, 1), (1, 0)], [0.2, 0.9, 0.2]) == ((0, 1), (0, 0), (1, 0))
    assert rank_heads([(0, 0), (0, 1), (1, 0)], [0.2, 0.9, 0.1], {0: 1, 1: 1}) == ((0, 1), (1, 0), (0, 0))


def test_heads_that_a_spec_keeps_count_for_the_least_number_of_a_layer() -> None:
    document = kept_in(document_of("lolcats"), (1, 0), (1, 3), *((2, head) for head in range(4)))
    resolved = resolve_spec(load_spec(document), SIZES)
    assert least_heads(resolved, 1) == {0: 1, 1: 0, 2: 0, 3: 1}
    assert least_heads(resolved, 3) == {0: 3, 1: 1, 2: 0, 3: 3}
    assert least_heads(resolved, 9) == {0: 4, 1: 2, 2: 0, 3: 4}
