"""Inspection results of a softmax student equal the teacher's, LoLA's pairs are in their memories, parts show their own
findings, and heads of the teacher attend to a passkey.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import composer
from composer.errors import ComposerError, InspectionError, TaskError
from composer.inspection.findings import Findings, plain
from tests.checkpoints import llama
from tests.composer.inspection.conftest import TEACHER, student

PASSKEY: dict[str, Any] = {"tasks": "passkey,depth=0.2", "length": 128, "queries": 16}


def every_number(value: Any) -> None:
    """Yield every number of the JSON. None is NaN."""
    json.dumps(value, allow_nan=False)


@pytest.fixture(scope="module")
def softmax(tokenizer: Any) -> Findings:
    return composer.inspect(student("softmax"), tokenizer=tokenizer, teacher=TEACHER, **PASSKEY)


def test_softmax_students_equal_their_teacher(softmax: Findings) -> None:
    assert softmax.answered == softmax.teacher_answered
    assert softmax.stream is not None
    np.testing.assert_allclose(softmax.stream.error, 0, atol=1e-6)
    for head in softmax.heads:
        assert head.teacher is not None
        assert head.likeness is not None
        assert head.likeness.divergence is not None
        assert head.error < 1e-5
        np.testing.assert_allclose(head.weights["full"], head.teacher, atol=1e-5)
        np.testing.assert_allclose(head.weights["full"].sum(-1), 1, atol=1e-4)
        np.testing.assert_allclose(head.likeness.mse, 0, atol=1e-8)
        np.testing.assert_allclose(head.likeness.cosine, 1, atol=1e-5)
        np.testing.assert_allclose(head.likeness.divergence, 0, atol=1e-4)


def test_the_teacher_attends_to_the_passkey_in_its_second_layer(softmax: Findings) -> None:
    """The right answer is not chance: for each digit, some head attends to it when it is predicted."""
    assert softmax.answered is not None
    assert softmax.answered.right == (True,) * 5
    assert all(places for places in softmax.found_at)
    for answer, places in zip(softmax.answers, softmax.found_at, strict=True):
        assert {softmax.tokens[place] for place in places} == {softmax.tokens[answer]}
        assert answer - 1 in softmax.queries
    first, second = softmax.heads
    assert first.found.max() < 0.2
    assert second.found.max(0).min() > 0.5


def test_pairs_are_assigned_to_their_memory(lola: Path) -> None:
    findings = composer.inspect(lola, alone=True, **PASSKEY)
    assert (findings.teacher, findings.stream) == (None, None)
    for head in findings.heads:
        total = np.sum(list(head.shares.values()), axis=0)
        np.testing.assert_allclose(total, 1, atol=1e-5)
        for row, query in enumerate(findings.queries):
            for index in range(head.heads):
                held = {name: _columns(head.stands[name][index][row]) for name in head.memories}
                own = query - query % 16  # the chunk that the query is in
                assert held["window"] == set(range(max(0, own - 16), query + 1))
                assert len(held["sparse"]) == min(8, max(0, own - 16))
                assert held["sparse"] | held["state"] == set(range(max(0, own - 16)))
                assert not held["sparse"] & held["state"]
        recalled = head.recalled["state"]
        assert list(recalled.stored) == sorted(recalled.stored)
        assert recalled.stored[-1] == len(_columns(head.stands["state"][0][-1]))
        assert np.isfinite(recalled.error).all()


def _columns(stretches: tuple[tuple[int, int], ...]) -> set[int]:
    return {column for start, end in stretches for column in range(start, end + 1)}


TAPS = {"conv: taps: query", "conv: taps: key"}
SHOWS = {
    "lawcat": TAPS,
    "latte-macchiato": {"latents: p(l|t)"},
    "gla": set(),
    "gated-delta": TAPS,
    "mixed-heads": TAPS,
}


@pytest.mark.parametrize("spec", SHOWS)
def test_parts_show_their_figures(spec: str, tokenizer: Any) -> None:
    model = student(spec)
    findings = composer.inspect(model, tokenizer=tokenizer, teacher=TEACHER, text="the cat sat " * 30, length=60, queries=8)
    every_number(plain(findings))
    assert findings.answered is None
    layers = model.config.read_spec().layers
    assert [(head.layer, head.name) for head in findings.heads] == [
        (index, group.head) for index, groups in enumerate(layers) for group in groups
    ]
    assert {name for head in findings.heads for name in head.shown} == SHOWS[spec]
    for head in findings.heads:
        assert head.error < 1e-5
        assert head.teacher is not None
        assert head.teacher.shape[0] == head.heads
        for shown in head.shown.values():
            if shown.entropy is not None:
                np.testing.assert_allclose(shown.numbers.sum(-1), 1, atol=1e-5)
                assert (shown.entropy <= np.log(shown.numbers.shape[-1]) + 1e-5).all()
    if spec in ("lawcat", "gla", "gated-delta"):
        assert all(head.half_lives for head in findings.heads)
        assert all((lives > 0).all() for head in findings.heads for lives in head.half_lives.values())


def test_only_requested_layers_are_inspected(tokenizer: Any) -> None:
    findings = composer.inspect(student("lolcats"), tokenizer=tokenizer, layers=[-1], **PASSKEY)
    assert [head.layer for head in findings.heads] == [1]


def test_inference_mode_changes_nothing(tokenizer: Any) -> None:
    """Weights are computed as gradients, which inference mode does not record."""
    looked = {"tokenizer": tokenizer, "teacher": TEACHER, "text": "the cat sat " * 30, "length": 40, "queries": 4}
    model = student("lola")
    wanted = composer.inspect(model, **looked)
    with torch.inference_mode():
        findings = composer.inspect(model, **looked)
    assert plain(findings) == plain(wanted)


def test_sources_are_inspected_unchanged() -> None:
    findings = composer.inspect(TEACHER, **PASSKEY)
    assert findings.spec == "softmax"
    assert findings.teacher is None
    lines = str(findings).splitlines()
    assert lines[0] == "teacher on passkey,depth=0.2, 126 tokens"
    assert [line.split()[:3] for line in lines[2:]] == [
        [f"{layer}.{head}", "head", "100"] for layer in range(2) for head in range(4)
    ]
    assert findings._repr_html_().count("<tr>") == 9


def test_sources_are_compared_with_the_named_teacher(tokenizer: Any, lola: Path) -> None:
    findings = composer.inspect(TEACHER, teacher=lola, length=80, queries=4)
    assert findings.teacher == "lola"
    assert findings.teacher_answered is not None
    with pytest.raises(ComposerError, match="nowhere"):
        composer.inspect(TEACHER, teacher="./nowhere", length=80, queries=4)


def test_models_in_memory_are_unchanged(tokenizer: Any) -> None:
    model = student("lolcats").train()
    composer.inspect(model, tokenizer=tokenizer, length=80, queries=4)
    assert all(module.training for module in model.modules())
    for options in ({"backend": "reference"}, {"device": "cuda"}):
        with pytest.raises(ComposerError):
            composer.inspect(model, tokenizer=tokenizer, length=80, queries=4, **options)


def test_longer_texts_are_binned(tokenizer: Any) -> None:
    findings = composer.inspect(student("lawcat"), tokenizer=tokenizer, text="a b c d " * 600, length=1500, queries=2, layers=[0])
    assert findings.bin == 2
    (head,) = findings.heads
    assert head.weights["state"].shape == (4, 2, 750)
    np.testing.assert_allclose(head.weights["state"].sum(-1), 1, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text": "a", "tasks": "passkey"}, "`tasks` and `text` exclude each other"),
        ({"text": ""}, "tokens; expected at least 2"),
        ({"tasks": "perplexity,text=x"}, "name a task that writes its own text"),
        ({"tasks": "passkey,recall"}, "tasks: passkey, recall; a model is looked at on one text at a time"),
        ({"tasks": ["passkey", "recall"]}, "tasks: passkey, recall; a model is looked at on one text at a time"),
        ({"tasks": ["paskey"]}, "did you mean"),
        ({"teacher": "./nowhere"}, "nowhere.*To look at the student alone: `alone=True`"),
        ({"layers": [2], "length": 96}, "There is no layer 2: the model has 2"),
        ({"teacher": TEACHER, "alone": True}, "leave one of them out"),
        ({"queries": 1}, "at least 2, got 1"),
        ({"length": "64,96"}, "length: expected one number of tokens, because .*, got 64, 96"),
        ({"length": []}, "length: expected one number of tokens, because .*, got nothing"),
        ({"length": 1}, "at least 2, got 1"),
    ],
)
def test_invalid_arguments_are_refused(lola: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ComposerError, match=words):
        composer.inspect(lola, **{"length": 64, "queries": 4, **options})


def test_unsupported_models_and_tokenizers_are_refused(tokenizer: Any, lola: Path, tmp_path: Path) -> None:
    with pytest.raises(InspectionError, match="has no tokenizer"):
        composer.inspect(student("lolcats"))
    with pytest.raises(InspectionError, match="does not fit the model"):
        composer.inspect(student("lolcats"), tokenizer=tokenizer, teacher=llama(tmp_path / "other"))
    with pytest.raises(InspectionError, match="bidirectional"):
        composer.inspect(student("latte-bidirectional"), tokenizer=tokenizer)
    with pytest.raises(InspectionError, match="is no composed language model"):
        composer.inspect(object(), tokenizer=tokenizer)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TaskError):
        composer.inspect(lola, length=8)
