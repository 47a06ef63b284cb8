"""`compose parts` lists the whole catalogue, and shows the full schema of a part."""

from __future__ import annotations

import json

import pytest

from blocks.catalogue import CATALOGUE
from blocks.part import Part
from tests.composer.cli.conftest import Compose

PARTS = [part for kinds in CATALOGUE.values() for part in kinds.values()]


def kind(part: type[Part]) -> str:
    return part.model_fields["kind"].default


def test_the_list_has_every_part(compose: Compose) -> None:
    result = compose("parts")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line for line in lines if line in CATALOGUE] == list(CATALOGUE)
    for part in PARTS:
        assert any(line.split()[:1] == [kind(part)] for line in lines if line.startswith("  "))
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.role}-{kind(part)}")
def test_each_part_is_described_with_its_equation_source_and_fields(compose: Compose, part: type[Part]) -> None:
    result = compose("parts", kind(part))
    assert result.exit_code == 0
    words = " ".join(result.stdout.split())
    assert f"{kind(part)} ({part.role})" in words
    assert " ".join(part.equation.split()) in words
    assert " ".join(part.source.split()) in words
    for name, field in part.model_fields.items():
        if name != "kind":
            assert f"{name}: " in words
            assert " ".join((field.description or "").replace("``", "`").split()) in words
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_shared_kinds_and_roles_list_all_their_parts(compose: Compose) -> None:
    shared = compose("parts", "none").stdout
    assert "none (position)" in shared
    assert "none (gate)" in shared
    maps = compose("parts", "feature_map").stdout
    assert all(f"{name} (feature map)" in maps for name in CATALOGUE["feature map"])


def test_json_has_every_part_with_its_fields(compose: Compose) -> None:
    listed = json.loads(compose("parts", "--json").stdout)
    assert [(part["role"], part["kind"]) for part in listed] == [(part.role, kind(part)) for part in PARTS]
    [gate] = json.loads(compose("parts", "channel", "--json").stdout)
    fields = {field.pop("name"): field for field in gate["fields"]}
    assert fields["rank"] == {
        "type": "a whole number > 0 | full",
        "required": False,
        "default": 16,
        "description": "Number of columns of W₁. full: one matrix.",
    }
    assert fields["per"]["type"] == "query_head | key_head"
    [memory] = json.loads(compose("parts", "state", "--json").stdout)
    assert {field["name"]: field["default"] for field in memory["fields"]}["gate"] == "none"


def test_defaults_are_printed_as_in_a_spec(compose: Compose) -> None:
    for name, field in (("rglru", "blocks: 1"), ("random", "seed: 0"), ("learned", "largest: 1"), ("hedgehog", "linear: true")):
        assert f"\n  {field}\n" in compose("parts", name).stdout
    assert "\n  bias: 0\n" in compose("parts", "head").stdout


def test_only_fitting_gates_are_listed(compose: Compose) -> None:
    for kind in ("state", "delta"):
        [memory] = json.loads(compose("parts", kind, "--json").stdout)
        (gate,) = (field["type"] for field in memory["fields"] if field["name"] == "gate")
        assert set(gate.split(" | ")) == set(CATALOGUE["gate"])


def test_an_unknown_part_gets_a_suggestion(compose: Compose) -> None:
    result = compose("parts", "hedgehgo")
    assert result.exit_code == 2
    assert 'there is no part or role "hedgehgo"; did you mean "hedgehog"?' in result.stderr
