"""The JSON schema for editors agrees with the loader on valid and invalid documents."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
import yaml

from blocks.catalogue import CATALOGUE
from blocks.part import Closed, field_docs
from composer.errors import SpecError
from composer.spec import json_schema, load_spec, shipped_specs
from composer.spec.places import plain
from composer.spec.reading import read_file, read_text

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)
START = {"compose": 1, "name": "x"}


def as_json(data: Any) -> Any:
    return json.loads(json.dumps(data))


def read(text: str) -> Any:
    return as_json(plain(read_text(text, "x.yaml")))


def test_the_schema_is_valid_for_draft_7() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert as_json(SCHEMA) == SCHEMA
    assert json_schema() == SCHEMA


def test_every_reference_of_the_schema_resolves() -> None:
    text = json.dumps(SCHEMA)
    references = {part.split('"')[0] for part in text.split('"#/$defs/')[1:]}
    assert references == SCHEMA["$defs"].keys()


@pytest.mark.parametrize("name", shipped_specs())
def test_shipped_specs_are_valid(name: str) -> None:
    VALIDATOR.validate(as_json(plain(read_file(shipped_specs()[name], name))))


RIGHT = [
    "{compose: 1, name: x}",
    "{compose: 1, name: x, head: {memory: [state, full]}}",
    "{compose: 1, name: x, head: {memory: [{kind: window, size: 3}, state], conv: causal, read: null, feature_map: relu}}",
    "{compose: 1, name: x, head: {memory: [state], conv: {kernel: 3}}}",
    "{compose: 1, name: x, head: null, heads: {a: {memory: [full]}}, layers: [{at: '1::2', use: [{head: a, heads: 2}]}]}",
    "{compose: 1, name: x, extends: lolcats, head: {position: {theta: 3.0}}}",
    "{compose: 1, name: x, extends: lolcats, head: {position: null, read: null, feature_map: {dim: null}}, recipe: null}",
    "{compose: 1, name: x, extends: lolcats, head: {conv: null}, heads: {a: {memory: [full]}, b: {memory: [state]}}}",
    "{compose: 1, name: x, extends: lolcats, recipe: {finetune: {lora: {rank: 3}}}}",
    "{compose: 1, name: x, head: {memory: [full], conv: causal}, heads: {a: {extends: head, conv: {kernel: 3}}}}",
    "{compose: 1, name: x, head: {memory: [full]}, heads: {a: {extends: b, read: null}, b: {extends: head, conv: null}}}",
    "{compose: 1, name: x, extends: lolcats, heads: {a: {extends: head, conv: {kernel: 3}}, b: {extends: a, feature_map: null}}}",
    "{compose: 1, name: x, heads: {a: {memory: [full]}}, layers: [{at: all, use: [{head: a, heads: 2/2}]}]}",
    "{compose: 1, name: x, trunk: {width: 8, layers: 1, heads: 2, vocabulary: 9, mlp: plain, norm: layer}}",
    "{compose: 1, name: x, trunk: {width: 8, layers: 1, heads: 2, vocabulary: 9, mlp: {kind: gated, width: 3}, dropout: 0}}",
    "{compose: 1, name: x, extends: softmax, trunk: {width: 8, layers: 1, heads: 2, vocabulary: 9, length: null}}",
]
WRONG = [
    "{name: x}",
    "{compose: 1}",
    "{compose: 2, name: x}",
    "{compose: 1, name: X}",
    "{compose: 1, name: x, extends: 3}",
    "{compose: 1, name: x, nam: y}",
    "{compose: 1, name: x, head: full}",
    "{compose: 1, name: x, head: {}}",
    "{compose: 1, name: x, head: {memory: []}}",
    "{compose: 1, name: x, head: {memory: [windw]}}",
    "{compose: 1, name: x, head: {memory: [null]}}",
    "{compose: 1, name: x, head: {memory: [{size: 3}]}}",
    "{compose: 1, name: x, head: {memory: [{kind: window, size: 3, gate: none}]}}",
    "{compose: 1, name: x, head: {memory: [full], position: null}}",
    "{compose: 1, name: x, head: {memory: [full], feature_map: {dim: 3}}}",
    "{compose: 1, name: x, head: {memory: [full], conv: {kernel: 0}}}",
    "{compose: 1, name: x, head: {memory: [full], conv: {kernel: '3'}}}",
    "{compose: 1, name: x, head: {memory: [full], position: {kind: rope, scaling: llama3}}}",
    "{compose: 1, name: x, head: {memory: [full], flow: both}}",
    "{compose: 1, name: x, heads: {A: {memory: [full]}}}",
    "{compose: 1, name: x, heads: null}",
    "{compose: 1, name: x, layers: [{at: 0}]}",
    "{compose: 1, name: x, layers: [{at: evens, use: a}]}",
    "{compose: 1, name: x, layers: [{at: 0, use: [{head: a, heads: 0}]}]}",
    "{compose: 1, name: x, recipe: {finetune: {epochs: 1}}}",
    "{compose: 1, name: x, layers: [{at: 0, use: [{head: a, heads: half}]}]}",
    "{compose: 1, name: x, layers: [{at: 0, use: [{head: a, heads: 1/0}]}]}",
    "{compose: 1, name: x, trunk: {width: 8, layers: 1, heads: 2}}",
    "{compose: 1, name: x, trunk: {width: 8, layers: 1, heads: 2, vocabulary: 9, mlp: {width: 3}}}",
    "{compose: 1, name: x, trunk: {width: 8, layers: 1, heads: 2, vocabulary: 9, dropout: 1}}",
    "{compose: 1, name: x, extends: lolcats, heads: {A: {memory: [full]}}}",
    "{compose: 1, name: x, extends: lolcats, head: {memory: [{size: 3}]}}",
    "{compose: 1, name: x, extends: lolcats, head: {memory: [{kind: window, size: null}]}}",
    "{compose: 1, name: null, extends: lolcats}",
    "{compose: 1, name: x, extends: lolcats, head: {flow: both}}",
]


@pytest.mark.parametrize("text", RIGHT)
def test_valid_documents_pass_the_schema(text: str) -> None:
    VALIDATOR.validate(read(text))
    load_spec(read(text))


def test_null_removes_an_inherited_head() -> None:
    document = {**START, "heads": {"a": None}}
    assert not VALIDATOR.is_valid(document)
    assert VALIDATOR.is_valid({**document, "extends": "lolcats"})


@pytest.mark.parametrize("text", WRONG)
def test_invalid_documents_fail_the_schema(text: str) -> None:
    assert not VALIDATOR.is_valid(read(text))
    with pytest.raises(SpecError):
        load_spec(read(text))


def test_kinds_without_required_fields_may_be_words() -> None:
    homes = {"position": "position", "convolution": "conv", "feature map": "feature_map", "read": "read"}
    for role, key in homes.items():
        for kind, part in CATALOGUE[role].items():
            document = {**START, "head": {"memory": ["full"], key: kind}}
            complete = not any(field.is_required() for field in part.model_fields.values())
            assert VALIDATOR.is_valid(document) is complete
            document["extends"] = "lolcats"
            assert VALIDATOR.is_valid(document)


def test_parts_are_described_by_their_docstrings_and_equations() -> None:
    for parts in CATALOGUE.values():
        for kind, part in parts.items():
            described = SCHEMA["$defs"][part.__name__]
            assert described["title"] == f"{part.role} {kind}"
            assert part.equation in described["description"]
            assert part.source in described["description"]
    assert "Number of taps" in SCHEMA["$defs"]["Convolution"]["properties"]["kernel"]["description"]


def test_the_schema_is_equal_at_every_call() -> None:
    before = copy.deepcopy(json_schema())
    assert json_schema() == before
    assert yaml.safe_load(yaml.safe_dump(before)) == before


def test_fields_are_described_by_the_strings_below_them_and_by_those_of_their_bases() -> None:
    text = field_docs(CATALOGUE["feature map"]["hedgehog"])["linear"]
    assert text == "Apply a learned matrix per head first."
    assert SCHEMA["$defs"]["Hedgehog"]["properties"]["linear"]["description"] == text


def test_a_class_without_a_source_has_no_descriptions_of_its_own() -> None:
    names: dict[str, Any] = {"Closed": Closed, "__name__": "nowhere"}
    exec('class Made(Closed):\n    size: int = 1\n    """Of it."""', names)
    assert field_docs(names["Made"]) == {}
