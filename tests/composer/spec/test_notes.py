"""A warning names specs whose memories depend on how a text is split, because the source's rotation does."""

from __future__ import annotations

from typing import Any

import pytest

from composer.spec.dimensions import Dimensions
from composer.spec.explain import explain_resolved
from composer.spec.loading import load_spec
from composer.spec.notes import notes_on_layers, notes_on_rotations
from composer.spec.resolve import resolve
from converters.rotary import LengthRotation

SIZE = Dimensions(hidden_size=32, layers=4, heads=4, key_heads=2, head_dim=8, rope_theta=None)
LONG, DYNAMIC = LengthRotation("longrope", 4096), LengthRotation("dynamic", None)


def notes(spec: Any, rotations: dict[int, LengthRotation], *overrides: str) -> tuple[str, ...]:
    return notes_on_rotations(resolve(load_spec(spec, list(overrides)), SIZE), rotations)


def test_notes_name_layers_rotation_memories_and_effect() -> None:
    (note,) = notes("lolcats", dict.fromkeys(range(4), LONG))
    for words in ("layers 0 to 3", "`longrope`", "4,096 tokens", "`window` and `state`", "The logits then depend", "theta"):
        assert words in note
    (note,) = notes("lolcats", {2: DYNAMIC})
    assert "layer 2 " in note
    assert "`dynamic`" in note
    assert "None" not in note


def test_each_rotation_has_a_separate_warning() -> None:
    first, second = notes("lolcats", {0: LONG, 1: DYNAMIC, 2: LONG})
    assert "layers 0, 2 " in first
    assert "layer 1 " in second


@pytest.mark.parametrize(
    ("spec", "overrides"),
    [
        ("softmax", ()),
        ("lolcats", ("head.position=none",)),
        ("lolcats", ("head.position={kind: rope, theta: 10000.0}",)),
    ],
)
def test_heads_independent_of_the_rotation_have_no_warning(spec: str, overrides: tuple[str, ...]) -> None:
    assert notes(spec, dict.fromkeys(range(4), LONG), *overrides) == ()


def test_layers_with_the_sources_attention_have_no_warning() -> None:
    (note,) = notes(
        {"compose": 1, "name": "mixed", "extends": "lolcats", "layers": [{"at": [0, 1], "use": "source"}]},
        dict.fromkeys(range(4), LONG),
    )
    assert "layers 2 to 3 " in note


def test_a_window_alone_stores_rotated_keys() -> None:
    head = {"memory": [{"kind": "window", "size": 8, "evict": "drop"}]}
    (note,) = notes({"compose": 1, "name": "near", "head": head}, {0: LONG})
    assert "`window` keep" in note


@pytest.mark.parametrize(
    ("spec", "layers", "expected"),
    [
        ("lolcats", 4, []),
        ("softmax", 4, []),
        ("hybrid", 4, ["Layers 0, 3: softmax attention over the whole text, whose cache grows with it."]),
        (
            {
                "compose": 1,
                "name": "kept",
                "extends": "streaming",
                "layers": [
                    {"at": [1, 2], "use": [{"head": "source", "heads": [1]}, {"head": "head", "heads": "rest"}]},
                    {"at": 3, "use": "source"},
                ],
            },
            4,
            [
                "Layer 3: softmax attention over the whole text, whose cache grows with it.",
                "Layers 1 to 2: softmax attention over the whole text in 2 of 4 key heads, whose cache grows with it.",
            ],
        ),
        ("hybrid", 2, ["All layers have softmax attention, and no layer has the `head` of the spec: its `layers` name"]),
    ],
)
def test_layers_with_softmax_are_named(spec: str, layers: int, expected: list[str]) -> None:
    resolved = resolve(load_spec(spec), SIZE.model_copy(update={"layers": layers}))
    notes = notes_on_layers(resolved, has_head=True)
    assert [note[: len(start)] for note, start in zip(notes, expected, strict=True)] == expected


def test_explain_shows_the_notes() -> None:
    resolved = resolve(load_spec("lolcats"), SIZE)
    assert explain_resolved(resolved).notes == ()
    answer = explain_resolved(resolved, rotations={0: LONG})
    assert "`longrope`" in " ".join(answer.notes)
    assert "Note: In layer 0 " in str(answer)
