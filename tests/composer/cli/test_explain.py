"""`compose explain` prints what `composer.explain` returns: every group of heads, every part and every figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import composer
from tests.composer.cli.conftest import Compose


@pytest.mark.parametrize("spec", ["lawcat", "lolcats", "softmax"])
def test_json_is_the_explanation(compose: Compose, teacher: Path, spec: str) -> None:
    result = compose("explain", spec, "--from", teacher, "--seq", 1000, "--dtype", "bfloat16", "--backend", "reference", "--json")
    assert result.exit_code == 0
    answer = composer.explain(spec, teacher, sequence=1000, dtype="bfloat16", backend="reference")
    assert json.loads(result.stdout) == answer.model_dump(mode="json")


def test_the_text_has_every_part_with_its_form_and_reason(compose: Compose, teacher: Path) -> None:
    Path("mixed.yaml").write_text(
        "compose: 1\nname: mixed\nextends: lolcats\nheads: {exact: {memory: [full]}}\n"
        "layers: [{at: 1, use: [{head: exact, heads: 2}, {head: head, heads: 2}]}]\n"
    )
    result = compose("explain", "mixed.yaml", "--from", teacher)
    assert result.exit_code == 0
    answer = composer.explain("mixed.yaml", teacher)
    assert f"4,096 tokens, auto on cpu, float32, spec {answer.hash[:12]}…" in result.stdout
    assert "in decode one query against the ring of pairs" in " ".join(result.stdout.split())
    assert "head: 4 query heads (2 key heads) in layer 0" in result.stdout
    assert "exact: 2 query heads (1 key head) in layer 1" in result.stdout
    words = " ".join(result.stdout.split())
    for group in answer.groups:
        assert f"fresh parameters {group.fresh_parameters:,}" in words
        for part in group.parts:
            assert f"{part.part} {part.kind} {part.form}" in words
            assert part.why_this_form in words
            assert (part.decode_why_this_form or "") in words
    assert max(map(len, result.stdout.splitlines()[1:])) <= 80


def test_overrides_change_the_explained_state(compose: Compose, teacher: Path) -> None:
    def state(*settings: str) -> int:
        return json.loads(compose("explain", "lolcats", "--from", teacher, *settings, "--json").stdout)["state_bytes"]

    assert state("--set", "head.memory.0.size=32") < state()


def test_bidirectional_heads_have_no_state(compose: Compose, teacher: Path) -> None:
    result = compose("explain", "latte-bidirectional", "--from", teacher)
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert words.count("state none: every token sees those after it, too, so a call holds its texts whole") == 2
    assert not any(word in words for word in ("decode", "cache", "compression", "recurrence"))
    Path("empty.yaml").write_text("compose: 1\nname: empty\nhead: {memory: [{kind: sparse, size: 0, keep: recent, evict: drop}]}\n")
    refused = compose("explain", "empty.yaml", "--from", teacher)
    assert refused.exit_code == 2
    assert "it holds no pair, and no memory is below it" in refused.stderr


def test_unused_projections_are_listed(compose: Compose, teacher: Path) -> None:
    line = "q_proj, k_proj kept as they are, and not used by these heads"
    for spec, count in (("latte", 1), ("latte-macchiato", 0), ("lolcats", 0)):
        assert " ".join(compose("explain", spec, "--from", teacher).stdout.split()).count(line) == count


def test_a_spec_with_a_trunk_is_explained_without_a_source(compose: Compose, teacher: Path) -> None:
    trunk = "trunk: {width: 32, layers: 2, heads: 4, key_heads: 2, vocabulary: 64}"
    Path("whole.yaml").write_text(f"compose: 1\nname: whole\nextends: lawcat\n{trunk}\n")
    result = compose("explain", "whole.yaml")
    assert result.exit_code == 0
    assert result.stdout.startswith("whole on its own trunk\n")
    own = json.loads(compose("explain", "whole.yaml", "--json").stdout)
    on_source = json.loads(compose("explain", "lawcat", "--from", teacher, "--json").stdout)
    assert own["groups"] == on_source["groups"]
    result = compose("explain", "lawcat")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no source is named: set --from SOURCE" in result.stderr


def test_remedies_that_make_a_spec_fit_a_class_are_printed(compose: Compose, teacher: Path) -> None:
    words = " ".join(compose("explain", "lolcats", "--from", teacher, "--native").stdout.split())
    targets = composer.explain("lolcats", teacher, native=True).native
    assert targets
    assert all(str(condition) in words for target in targets for condition in target.conditions)
