"""Every mistake of a document is reported at once with its line and the nearest name."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError

from blocks.catalogue import CATALOGUE
from composer.errors import SpecError
from composer.spec import Spec, json_schema
from composer.spec.fields import alternatives, is_model, kind_words
from composer.spec.loading import validate_document
from composer.spec.messages import PATTERNS
from composer.spec.reading import read_text
from tests.composer.spec.error_messages import message_of

HEAD = "compose: 1\nname: x\nhead:\n  "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + "memory: [{kind: window, sise: 3, size: 3}, state]",
            'x.yaml:4:27  head.memory[0].sise: unknown key "sise"; did you mean "size"? Known keys: kind, ',
        ),
        (
            HEAD + "memory: [full]\n  position:\n    kind: rope\n    scaling:\n      {kind: llama3, low_frequency_factor: 1, "
            "high_frequency_factor: 4, original_length: 8}",
            "x.yaml:7:5  head.position.scaling.factor: missing",
        ),
        (
            HEAD + "position: ropes\n  memory: [full]",
            'x.yaml:4:13  head.position.kind: unknown kind "ropes"; did you mean "rope"? Known kinds: none, rope',
        ),
        (
            HEAD + "position: {kind: 3}\n  memory: [full]",
            "x.yaml:4:20  head.position.kind: unknown kind 3. Known kinds: none, rope",
        ),
        (
            HEAD + "position: {theta: 3}\n  memory: [full]",
            "x.yaml:4:13  head.position.kind: missing. Those with theta: rope. Known",
        ),
        (
            HEAD + "position: 3\n  memory: [full]",
            "x.yaml:4:13  head.position: expected a part (none, rope) or a mapping with its `kind`, got 3",
        ),
        (
            HEAD + "position: null\n  memory: [full]",
            "x.yaml:4:13  head.position: null, and nothing is inherited that it could remove; ",
        ),
        (
            HEAD + "memory: [full]\n  flow: cascad",
            'x.yaml:5:9  head.flow: expected "cascade" or "parallel", got "cascad"; did you mean "cascade"?',
        ),
        (HEAD + "memory: [full]\n  conv: {kernel: x}", 'x.yaml:5:18  head.conv.kernel: expected a whole number, got "x"'),
        (
            HEAD + "memory: [full]\n  conv: {kernel: '4'}",
            'x.yaml:5:18  head.conv.kernel: expected a whole number, got "4"; write 4',
        ),
        (
            HEAD + "memory: [full]\n  conv: {kernel: 1_0}",
            'x.yaml:5:18  head.conv.kernel: expected a whole number, got "1_0"; write 10',
        ),
        (HEAD + "memory: [full]\n  conv: {kernel: 4.5}", "x.yaml:5:18  head.conv.kernel: expected a whole number, got 4.5"),
        (HEAD + "memory: [full]\n  conv: {kernel: true}", "x.yaml:5:18  head.conv.kernel: expected a whole number, got true"),
        (HEAD + "memory: [full]\n  conv: {kernel: 0}", "x.yaml:5:18  head.conv.kernel: expected a number greater than 0, got 0"),
        (
            HEAD + "feature_map: elu\n  memory:\n    kind: state",
            "x.yaml:5:3  head.memory: expected a list, got a mapping; begin each of its items with a dash, as in `- kind: …`",
        ),
        (HEAD + "memory: full", 'x.yaml:4:11  head.memory: expected a list, got "full"; write [full]'),
        (
            HEAD + "feature_map: elu\n  memory: [{kind: state, gate: {channel: {rank: 4}}}]",
            "x.yaml:5:32  head.memory[0].gate.kind: missing; write {kind: channel, rank: 4}",
        ),
        (
            HEAD + "memory: [{window: {size: 4}, evict: drop}]",
            "x.yaml:4:12  head.memory[0].kind: missing; write {kind: window, size: 4, evict: drop}",
        ),
        (
            HEAD + "feature_map: elu\n  memory: [{kind: state, gate: {channel: ...}}]",
            "x.yaml:5:32  head.memory[0].gate.kind: missing; write {kind: channel}",
        ),
        (
            HEAD + "feature_map: elu\n  memory: [{kind: state, gate: {rank: 4}}]",
            "x.yaml:5:32  head.memory[0].gate.kind: missing. Those with rank: channel",
        ),
        (
            HEAD + "memory: [{kind: window, size: 4, weight: 1}]",
            'x.yaml:4:44  head.memory[0].weight: expected "learned", "token" or a number greater than 0 and less than 1, got 1',
        ),
        (HEAD + "memory: [full]\n  conv: {inputs: q}", 'x.yaml:5:18  head.conv.inputs: expected a list, got "q"'),
        (
            HEAD + "memory: [full]\n  conv: {inputs: []}",
            "x.yaml:5:18  head.conv.inputs: expected a list of at least 1, got an empty list",
        ),
        (HEAD + "memory: [full]\n  conv: {inputs: [q, q]}", "x.yaml:5:18  head.conv.inputs: names an input twice"),
        (
            HEAD + "memory: [full]\n  feature_map:\n    {kind: relu, dim: 3}",
            "x.yaml:6:23  head.feature_map.dim: dim shapes the learned matrix, and there is none: set linear: true or leave it out",
        ),
        (
            HEAD + "memory: [full]\n  feature_map: {kind: relu, linear: yes}",
            'x.yaml:5:37  head.feature_map.linear: expected true or false, got "yes"',
        ),
        (
            HEAD + "memory: [{kind: full, name: A b}]",
            "x.yaml:4:31  head.memory[0].name: expected a name (lower-case letters, digits and _, ",
        ),
        (
            HEAD + "memory: [full]\n  conv: casual",
            'x.yaml:5:9  head.conv.kind: expected "causal", got "casual"; did you mean "causal"?',
        ),
        (HEAD + "memory: {kind: full}", "x.yaml:4:11  head.memory: expected a list, got a mapping"),
        ("compose: 1\nname: x\nhead: full", "x.yaml:3:7  head: expected a mapping with the keys mix_input, unshare, qk_norm, "),
        ("compose: 1\nname: x\nheads: [a]", "x.yaml:3:8  heads: expected a mapping, got a list"),
        (
            "compose: 1\nname: x\nheads: {A: {memory: [full]}}",
            "x.yaml:3:9  heads.A: expected a name (lower-case letters, digits, - and _, ",
        ),
        ('compose: 1\nname: x\n"a\\nb": 1', 'x.yaml:3:1  "a\\nb": unknown key "a\\nb". Known keys: '),
        ("compose: 1\nname: x\nmemory: [full]", 'x.yaml:3:1  memory: unknown key "memory"; it belongs under "head". Known keys: '),
        ("compose: 1\nname: x\nextend: y", 'x.yaml:3:1  extend: unknown key "extend"; did you mean "extends"?'),
        ("compose: 2\nname: x", "x.yaml:1:10  compose: expected 1, got 2"),
        ("compose: true\nname: x", "x.yaml:1:10  compose: expected a whole number, got true"),
        ("compose: 1.0\nname: x", "x.yaml:1:10  compose: expected a whole number, got 1.0"),
        ("compose: 1\nname: x\npaper: 2410.10254", "x.yaml:3:8  paper: expected text, got 2410.10254; put it in quotes"),
        (HEAD + "memory: []", "x.yaml:4:11  head.memory: expected a list of at least 1, got an empty list"),
        (HEAD + "memory: [full]\n  graph: []", "x.yaml:5:10  head.graph: expected a list of at least 1, got an empty list"),
        (
            HEAD + "feature_map: elu\n  memory: [{kind: delta, rate: {kind: learned, largest: true}}]",
            "x.yaml:5:57  head.memory[0].rate.largest: expected a whole number, got true",
        ),
        (
            HEAD + "memory: [full]\n  conv: {inputs: [q], share: qk}",
            "x.yaml:5:30  head.conv.share: one filter for q and k, and `inputs` has q alone: remove `share`, or convolve both",
        ),
        (
            HEAD + "memory: [full]\ntrunk: {width: 8, layers: 1, heads: 2, vocabulary: 9, labels: 4, tied: false}",
            "x.yaml:5:72  trunk.tied: a classifier (`labels`) has no output matrix",
        ),
        ("name: x", "x.yaml:1:1  compose: missing. A spec begins with `compose: 1`"),
        (
            "compose: 1\nname: x\nrecipe: {transfer: {lr: -1, epochs: 1}}",
            "x.yaml:3:25  recipe.transfer.lr: expected a number greater than 0, got -1",
        ),
        (
            'compose: 1\nname: "\\u202ex\\n"',
            'x.yaml:2:7  name: expected a name (lower-case letters, digits, - and _, a letter first), got "\\u202ex\\n"',
        ),
        ("compose: 1\nname: 3", "x.yaml:2:7  name: expected text, got 3"),
        (
            "compose: 1\nname: x\nrecipe: {transfer: {lr: .inf, epochs: 1}}",
            "x.yaml:3:25  recipe.transfer.lr: expected a finite number, got Infinity",
        ),
        (
            "compose: 1\nname: x\nrecipe: {transfer: {lr: fast, epochs: 1}}",
            'x.yaml:3:25  recipe.transfer.lr: expected a number, got "fast"',
        ),
        (
            "compose: 1\nname: x\nlayers: [{at: evens, use: x}]",
            "x.yaml:3:15  layers[0].at: expected a whole number, a list or `all` or a range",
        ),
        ("compose: 1\nname: x\nlayers: [{at: [0, a], use: x}]", 'x.yaml:3:19  layers[0].at[1]: expected a whole number, got "a"'),
        (
            "compose: 1\nname: x\nlayers: [{at: 0, use: [{head: a, heads: 0}]}]",
            'x.yaml:3:41  layers[0].use[0].heads: expected a number greater than 0, text, "rest" or a list, got 0.',
        ),
        (
            "compose: 1\nname: x\nlayers: [{at: 0, use: 3}]",
            "x.yaml:3:23  layers[0].use: expected text or a list, got 3. A head for all ",
        ),
        (
            HEAD + "memory: [{kind: state, gate: {kind: channel, rank: ful}}]",
            'x.yaml:4:54  head.memory[0].gate.rank: expected a whole number or "full", got "ful"; did you mean "full"?',
        ),
    ],
)
def test_one_mistake_is_one_line(write: Callable, text: str, message: str) -> None:
    text_of_error = message_of(write("x.yaml", text))
    assert text_of_error.startswith(message)
    assert "\n" not in text_of_error


def test_all_mistakes_are_reported_in_document_order(write: Callable) -> None:
    text = (
        "compose: 1\nlayers:\n  - {at: 0}\n  - 3\nhead:\n  memory:\n    - {kind: windw}\n    - 3\n  read: share\npapr: x\nname: X\n"
    )
    assert [line.split(": ")[0].removeprefix("x.yaml:") for line in message_of(write("x.yaml", text)).splitlines()] == [
        "3:5  layers[0].use",
        "4:5  layers[1]",
        "7:14  head.memory[0].kind",
        "8:7  head.memory[1]",
        "9:9  head.read.kind",
        "10:1  papr",
        "11:7  name",
    ]


def test_all_mistakes_of_a_part_are_reported_with_their_keys(write: Callable) -> None:
    text = HEAD + "memory: [{kind: state, gat: none, gate: {kind: channel, rnk: 3, temperature: 0}, size: 3}]"
    lines = message_of(write("x.yaml", text)).splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "x.yaml:4:26  head.memory[0].gat",
        "x.yaml:4:59  head.memory[0].gate.rnk",
        "x.yaml:4:80  head.memory[0].gate.temperature",
        "x.yaml:4:84  head.memory[0].size",
    ]
    keys = lines[1].partition("Known keys: ")[2].split(", ")
    assert sorted(keys) == sorted(CATALOGUE["gate"]["channel"].model_fields)


def test_mistakes_in_python_documents_have_their_path() -> None:
    document = {"compose": 1, "name": "x", "head": {"memory": [{"kind": "state", "sise": 3}]}}
    assert message_of(document).startswith('head.memory[0].sise: unknown key "sise"')
    assert message_of({"a": {1: 2}}) == "a: a key must be text, got 1"
    assert message_of({"a": b"x"}).startswith("a: expected a mapping, a list, text, a number, true, false or null, got")
    circle: dict[str, Any] = {}
    circle["a"] = circle
    assert message_of(circle) == "a.a.a.a: nested deeper than 64 levels"


def every_model(kind: Any, seen: set[Any]) -> Iterator[Any]:
    if kind in seen or not is_model(kind):
        return
    seen.add(kind)
    yield kind
    for field in kind.model_fields.values():
        for inner in leaves(field.rebuild_annotation()):
            yield from every_model(inner, seen)


def leaves(annotation: Any) -> Iterator[Any]:
    for alternative in alternatives(annotation):
        yield alternative
        for argument in getattr(alternative, "__args__", ()):
            yield from leaves(argument)


def test_keys_equal_to_kinds_are_kept_in_paths() -> None:
    """A key with the name of its part's kind would look like pydantic's tag of the union."""
    models = list(every_model(Spec, set()))
    assert len(models) > 20
    assert not [model for model in models if set(kind_words(model)) & model.model_fields.keys()]


def taken(annotation: Any, value: object) -> bool:
    try:
        TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def test_booleans_and_floats_are_refused_where_numbers_are_expected() -> None:
    """A number must not be true, nor a choice of whole numbers 1.0, although Python calls them equal."""
    numbers = 0
    for model in every_model(Spec, set()):
        for name, field in model.model_fields.items():
            kinds = set(alternatives(field.rebuild_annotation()))
            words = {word for kind in kinds for word in getattr(kind, "__args__", ()) if get_origin(kind) is Literal}
            few = any(type(word) is int for word in words)
            if not kinds & {int, float} and not few:
                continue
            numbers += 1
            for wrong in (True, 1.0) if few else (True,):
                assert not taken(field.rebuild_annotation(), wrong), f"{model.__name__}.{name} takes {wrong}"
    assert numbers > 30


def test_every_pattern_of_the_schema_has_a_message() -> None:
    def patterns(node: Any) -> Iterator[str]:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node if isinstance(node, list) else ()):
            if key == "pattern":
                yield value
            if key == "patternProperties":
                yield from value
            yield from patterns(value)

    assert set(patterns(json_schema())) == set(PATTERNS)


@pytest.mark.parametrize("mistakes", ["k{0}: 1", "layers: [{{use: head, at: [{1}]}}]"])
def test_thousands_of_mistakes_are_reported_in_linear_time(mistakes: str) -> None:
    """Only the first mistakes are listed."""
    names = ", ".join(["a"] * 10_000)
    lines = "\n".join(mistakes.format(number, names) for number in range(10_000 if "{0}" in mistakes else 1))
    document = read_text(f"compose: 1\nname: x\n{lines}\n", "x.yaml")
    began = time.process_time()
    with pytest.raises(SpecError) as caught:
        validate_document(document, Spec)
    assert time.process_time() - began < 5
    told_of = str(caught.value).splitlines()
    assert len(told_of) == 101
    assert told_of[-1] == "and 9,900 more mistakes"
