"""The layers with the highest scores are kept, by number or by budget, and written into the spec."""

from __future__ import annotations

import pytest

import composer
from composer.errors import SelectionError
from composer.selection.choice import best, candidates, count_within, keeping
from composer.selection.report import LayerScore
from composer.spec.dimensions import Dimensions
from composer.spec.loading import resolve_spec

SIZES = Dimensions(hidden_size=64, layers=4, heads=4, key_heads=2, head_dim=16, rope_theta=1e4)


def scored(*restored: float) -> list[LayerScore]:
    return [
        LayerScore(layer=index, restored=restored_value, swapped=-restored_value, error=0.0)
        for index, restored_value in enumerate(restored)
    ]


def test_the_best_layers_are_returned_in_order() -> None:
    scores = scored(0.1, 3.0, 0.2, 0.2)
    assert best(scores, "restored", 2) == (1, 2)
    assert best(scores, "swapped", 1) == (0,)
    assert best(scores, "restored", 0) == ()
    assert best(scores, "error", 3) == (0, 1, 2)


def test_a_budget_is_filled_but_not_exceeded() -> None:
    assert count_within(lambda count: 100 + 50 * count, 4, 210, "layer") == 2
    assert count_within(lambda count: 100 + 50 * count, 4, 10_000, "layer") == 4
    with pytest.raises(SelectionError, match="needs 100 bytes with no layer kept, and 150 with one"):
        count_within(lambda count: 100 + 50 * count, 4, 149, "layer")


def test_the_added_rule_is_last_and_overrides_earlier_rules() -> None:
    document = composer.load_spec("lawcat", overrides=["layers=[{at: all, use: head}]"]).model_dump(mode="json", exclude_unset=True)
    from composer.spec.loading import load_spec
    from composer.spec.resolve import resolve

    kept = resolve(load_spec(keeping(document, (1, 3), 4)), SIZES)
    assert [groups[0].head for groups in kept.layers] == ["head", "source", "head", "source"]
    assert candidates(kept) == (0, 2)
    assert keeping(document, (2,), 4)["layers"][-1] == {"at": 2, "use": "source"}
    assert keeping(document, (), 4) == document


def test_heads_without_a_layer_are_removed_with_their_rules() -> None:
    """Unused heads would be an error in a spec, so they are removed. Rules and heads that still have a layer stay."""
    document = composer.load_spec("alternating-delta").model_dump(mode="json", exclude_unset=True)
    near, far = document["layers"]
    source = {"at": [1, 3], "use": "source"}
    for layers, heads, rules in (
        ((1, 3), {"near"}, [near, source]),
        ((0, 1, 2, 3), set(), [{"at": [0, 1, 2, 3], "use": "source"}]),
        ((3,), {"near", "far"}, [near, far, {"at": 3, "use": "source"}]),
    ):
        kept = keeping(document, layers, 4)
        assert (set(kept.get("heads", ())), kept["layers"]) == (heads, rules)
        resolved = resolve_spec(kept, SIZES)
        assert [index for index, groups in enumerate(resolved.layers) if groups[0].head == "source"] == list(layers)


def test_heads_are_kept_if_a_rule_that_names_them_has_a_layer() -> None:
    """A head stays while a rule that names it has a layer, and negative layers count."""
    head = {"position": "rope", "memory": [{"kind": "window", "size": 4, "evict": "drop"}]}
    halves = [{"head": "near", "heads": "1/2"}, {"head": "far", "heads": "1/2"}]
    document = {
        "compose": 1,
        "name": "mixed",
        "head": head,
        "heads": {"near": head, "far": head, "last": head},
        "layers": [{"at": "0:2", "use": halves}, {"at": -1, "use": "last"}],
    }
    some = keeping(document, (0, 3), 4)
    assert set(some["heads"]) == {"near", "far"}
    assert resolve_spec(some, SIZES).layers[2][0].head == "head"
    both = keeping(document, (0, 1), 4)
    assert set(both["heads"]) == {"last"}
    resolve_spec(both, SIZES)
