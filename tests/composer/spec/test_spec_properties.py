"""Order, comments and chains of files change no document, and any mistake is a SpecError at a line of its file."""

from __future__ import annotations

import copy
import json
import random
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.spec import load_spec, shipped_specs
from composer.spec.places import plain
from composer.spec.reading import read_file
from tests.composer.spec.error_messages import message_of

MANY = settings(max_examples=max(40, settings.default.max_examples))
SHIPPED = [path.read_text(encoding="utf-8") for path in shipped_specs().values()]


def part(kind: str, **fields: st.SearchStrategy) -> st.SearchStrategy:
    """Return a part with some of its fields, or a bare word if it has none."""
    spelled = st.fixed_dictionaries({"kind": st.just(kind)}, optional=fields)
    return spelled.map(lambda fields: kind if len(fields) == 1 else fields)


SIZE = st.integers(1, 9)
POSITION = part("none") | part("rope", theta=st.floats(1, 1e6))
GATE = (
    part("none")
    | part("constant", exponent=st.floats(1, 9))
    | part("channel", rank=SIZE | st.just("full"), per=st.just("key_head"))
)
STATE = part("state", gate=GATE, position=POSITION)
WINDOW = part("window", size=SIZE, weight=st.just("learned") | st.floats(0.1, 0.9))
HEADS = st.fixed_dictionaries(
    {"memory": st.lists(WINDOW | STATE | part("full"), min_size=1, max_size=3)},
    optional={
        "position": POSITION,
        "conv": st.fixed_dictionaries({}, optional={"kernel": SIZE, "inputs": st.just(["q", "k"])}),
        "feature_map": part("hedgehog", dim=SIZE, share=st.just("qk")) | part("relu", two_sided=st.booleans()),
        "read": part("mixture") | part("sum"),
        "flow": st.sampled_from(["cascade", "parallel"]),
    },
)
NAMES = st.sampled_from(["a", "b", "c-1"])
STAGE = st.fixed_dictionaries(
    {"lr": st.floats(1e-6, 1), "epochs": SIZE}, optional={"schedule": st.sampled_from(["constant", "cosine"])}
)
DOCUMENTS = st.fixed_dictionaries(
    {"compose": st.just(1), "name": NAMES},
    optional={
        "paper": st.sampled_from(["on", "1e-3", "a: b # c", "é ∂"]),
        "head": HEADS,
        "heads": st.dictionaries(NAMES, HEADS, max_size=2),
        "layers": st.lists(st.fixed_dictionaries({"at": st.integers(-3, 3) | st.just("::2"), "use": NAMES}), max_size=2),
        "recipe": st.fixed_dictionaries({}, optional={"transfer": STAGE, "data": NAMES}),
    },
)


class Dumper(yaml.SafeDumper):
    """A writer of YAML 1.2 without anchors that quotes text which YAML 1.2 reads as a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, "'" if text == "1e-3" else None)
)


def dump(document: Any, **style: Any) -> str:
    return yaml.dump(document, Dumper=Dumper, allow_unicode=True, **style)


@contextmanager
def folder(**files: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        for file, text in files.items():
            (Path(name) / f"{file}.yaml").write_text(text, encoding="utf-8", newline="")
        yield Path(name)


def load(document: Any) -> Any:
    with folder(x=dump(document)) as path:
        return load_spec(path / "x.yaml")


def shuffled(data: Any, order: random.Random) -> Any:
    if isinstance(data, dict):
        return {key: shuffled(data[key], order) for key in order.sample(list(data), len(data))}
    return [shuffled(item, order) for item in data] if isinstance(data, list) else data


@given(DOCUMENTS, st.randoms(use_true_random=False), st.sampled_from([None, False, True]), st.sampled_from(["\n", "\r\n"]))
def test_order_comments_and_style_change_nothing(document: dict, order: random.Random, flow: bool | None, end: str) -> None:
    text = dump(shuffled(document, order), sort_keys=False, default_flow_style=flow, width=10_000)
    lines = [line + order.choice(["", "  # head: {memory: none}"]) for line in text.splitlines()]
    for _ in range(order.randrange(5)):
        lines.insert(order.randrange(len(lines) + 1), order.choice(["", "# compose: 2", "   # - {kind: full}"]))
    with folder(x=end.join(lines) + end) as path:
        assert load_spec(path / "x.yaml") == load(document)


def spelled(data: Any) -> Any:
    return {"kind": data} if isinstance(data, str) else data


PARTS = ("position", "feature_map", "read", "gate")


def difference(base: dict, whole: dict) -> dict:
    """Return the child document that changes ``base`` to ``whole``."""
    child: dict = {key: None for key in base if key not in whole}
    for key, value in whole.items():
        before, after = (spelled(base.get(key)), spelled(value)) if key in PARTS else (base.get(key), value)
        if not isinstance(before, dict) or not isinstance(after, dict) or before.get("kind") != after.get("kind"):
            child[key] = value
        elif before != after:
            child[key] = difference(before, after)
    return child


def settings_of(child: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Return the same change as overrides, one per leaf."""
    if isinstance(child, dict) and child:
        # A part of another kind starts anew, so its kind comes first.
        for key, value in sorted(child.items(), key=lambda item: item[0] != "kind"):
            yield from settings_of(value, (*path, key))
    else:
        yield f"{'.'.join(path)}={json.dumps(child)}"


def own(child: dict, document: dict) -> dict:
    return {
        "compose": 1,
        "name": document["name"],
        **{key: value for key, value in child.items() if key not in ("compose", "name")},
    }


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_chains_of_extends_equal_the_flat_document(first: dict, second: dict, third: dict) -> None:
    middle = {**own(difference(first, second), second), "extends": "first.yaml"}
    last = {**own(difference(second, third), third), "extends": "middle.yaml"}
    with folder(first=json.dumps(first), middle=dump(middle), last=dump(last)) as path:
        assert load_spec(path / "last.yaml") == load(third)


@given(DOCUMENTS, DOCUMENTS)
def test_overrides_equal_a_child_with_the_same_values(base: dict, whole: dict) -> None:
    changes = own(difference(base, whole), whole)
    with folder(base=dump(base)) as path:
        assert load_spec(path / "base.yaml", list(settings_of(changes))) == load(whole)


@given(DOCUMENTS)
def test_loaded_specs_survive_dump_and_load(document: dict) -> None:
    spec = load(document)
    assert load_spec(spec.model_dump(mode="json", exclude_none=True)) == spec


def complaints(text: str) -> list[str]:
    """Return the lines of the error after checking that each place exists in the text."""
    with folder(x="") as path:
        (path / "x.yaml").write_bytes(text.encode("utf-8"))
        lines = [line for line in message_of(path / "x.yaml").split("\n") if line]
    known = re.split("\r\n|\r|\n", text)
    for line in lines:
        match = re.match(r".*x\.yaml:(\d+):(\d+)  \S", line)
        assert match, line
        row, column = int(match[1]), int(match[2])
        assert 1 <= row <= len(known)
        assert 1 <= column <= len(known[row - 1]) + 1
    return lines


def joined(*pieces: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(pieces), max_size=20).map("".join)


WORDS = ("compose: 1\n", "name: x\n", "extends: ", "lawcat", "head:", "memory", "\n  ", "- ", "kind: ")
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"])) | joined(*"ab:-[]{},&*!|>'\"%@`#?\\~<=. \n\t\r01e", *WORDS)


@MANY
@given(ANY_TEXT)
def test_any_text_is_a_spec_or_a_spec_error(text: str) -> None:
    complaints(text)


@given(st.binary())
def test_any_bytes_are_a_spec_or_a_spec_error(content: bytes) -> None:
    with folder(x="") as path:
        (path / "x.yaml").write_bytes(content)
        assert all(line.startswith(str(path / "x.yaml")) for line in message_of(path / "x.yaml").splitlines())


@MANY
@given(st.sampled_from(SHIPPED), st.integers(0, 2000), st.integers(0, 8), ANY_TEXT)
def test_errors_of_damaged_files_have_places_in_the_file(text: str, start: int, length: int, put: str) -> None:
    start %= len(text)
    complaints(text[:start] + put + text[start + length :])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.sampled_from([1.5, "rope", "state", "qk", "x y", ""]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["kind", "size", "memory", "x y", "é\n"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@st.composite
def broken(draw: st.DrawFn) -> dict:
    """Return a document with one or two values replaced, added or removed anywhere."""
    document = copy.deepcopy(draw(DOCUMENTS))  # strategies share their lists
    for _ in range(draw(st.integers(1, 2))):
        spot: Any = document
        while True:
            keys = list(spot) if isinstance(spot, dict) else list(range(len(spot)))
            key = draw(st.sampled_from([*keys, "other"])) if isinstance(spot, dict) or not keys else draw(st.sampled_from(keys))
            inner = spot[key] if key != "other" and keys else None
            if isinstance(inner, dict | list) and inner and draw(st.booleans()):
                spot = inner
                continue
            if isinstance(spot, dict) or keys:
                spot[key] = draw(VALUES)
            break
    return document


@MANY
@given(broken(), st.booleans())
def test_errors_of_invalid_documents_have_paths_in_the_document(document: dict, flow: bool) -> None:
    text = dump(document, default_flow_style=flow)
    for line in complaints(text):
        assert "Input should" not in line
        assert "tuple" not in line


OVERRIDES = joined(*"=.[]-019{} ", ".memory", ".0", ".size", ".position", "=rope", "=null", "layers", "name")


@MANY
@given(st.sampled_from(sorted(shipped_specs())), OVERRIDES, st.booleans())
def test_any_override_is_applied_or_raises_a_spec_error(name: str, override: str, sensible: bool) -> None:
    for line in message_of(name, [f"head.{override}=1" if sensible else override]).splitlines():
        assert line.startswith("--set ") or ".yaml:" in line


def test_the_tests_cover_many_shipped_specs() -> None:
    assert len(SHIPPED) >= 3
    assert all(plain(read_file(path, "x"))["compose"] == 1 for path in shipped_specs().values())
