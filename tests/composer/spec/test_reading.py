"""Text is read as YAML 1.2, every value keeps its place, and invalid text is rejected with line and column."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.errors import SpecError
from composer.spec.places import SpecNode, plain
from composer.spec.reading import MOST_BYTES, _Document, read_file, read_text, read_value
from composer.spec.shipped import shipped_specs
from tests.composer.spec.error_messages import message_of


def refused(read: Callable[[], object]) -> str:
    """Return the message of the SpecError."""
    with pytest.raises(SpecError) as caught:
        read()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("1e-3", 0.001),
        ("-.5", -0.5),
        ("1.", 1.0),
        (".inf", math.inf),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("+7", 7),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("0b11", "0b11"),
        ("2020-01-01", "2020-01-01"),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("off", "off"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("=", "="),
        ("'1'", "1"),
        ('"true"', "true"),
        ("[1, a]", (1, "a")),
        ("{b: 1}", {"b": 1}),
    ],
)
def test_scalars_are_read_as_in_yaml_1_2(text: str, meant: object) -> None:
    read = plain(read_text(f"a: {text}\n", "x.yaml"))["a"]
    assert read == meant
    assert type(read) is type(meant)


def test_keys_and_values_have_their_places() -> None:
    root = read_text("# first\r\nhead:\r\n  memory:\r\n    - {kind: state}\r\n", "x.yaml")
    memory = root.value["head"].value["memory"]
    assert str(memory.key) == "x.yaml:3:3"
    assert str(memory.place) == "x.yaml:4:5"
    assert str(memory.start) == "x.yaml:3:3"
    assert str(memory.value[0].value["kind"].start) == "x.yaml:4:14"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml:1:1  empty"),
        ("# nothing\n", "x.yaml:1:1  empty"),
        ("- a", "x.yaml:1:1  expected a mapping that begins with `compose: 1`, got a list"),
        ("\nword", 'x.yaml:2:1  expected a mapping that begins with `compose: 1`, got "word"'),
        ("a: 1\nb: 2\na: 3", 'x.yaml:3:1  the key "a" is set twice, first at x.yaml:1:1'),
        ("a: {b: 1, b: 1}", 'x.yaml:1:11  the key "b" is set twice, first at x.yaml:1:5'),
        ("a: 1\n---\nb: 1", "x.yaml:2:1  a second document begins"),
        ("a: &b 1", "x.yaml:1:4  anchors and aliases"),
        ("a: *b", "x.yaml:1:4  anchors and aliases"),
        ("a:\n  <<: {b: 1}", "x.yaml:2:3  merge keys"),
        ("a: !!str 1", "x.yaml:1:4  tags"),
        ("a: !mine 1", "x.yaml:1:4  tags"),
        ("1: a", 'x.yaml:1:1  a key must be text; write "1"'),
        ("true: a", 'x.yaml:1:1  a key must be text; write "true"'),
        ("? [a]\n: b", "x.yaml:1:3  a key must be text"),
        ("a:\n\tb: 1", "x.yaml:2:1  not YAML: a tab may not indent; use spaces"),
        ("a: [1,\n", "x.yaml:1:7  not YAML: expected the node content, but found the end of the file"),
        ("a: [1\nb: 1", "x.yaml:2:2  not YAML: expected ',' or ']', but got ':' (while parsing a flow sequence, line 1)"),
        ("a: 'b", "x.yaml:1:6  not YAML: a quote is not closed"),
        ("size:64\nb: 1", "x.yaml:2:2  not YAML: a `:` where no key is allowed"),
        ("a: b\x01", "x.yaml:1:5  the character U+0001 is not allowed in YAML"),
        ("# a\u2028b: 1", "x.yaml:1:4  the character U+2028 is not allowed in YAML"),
        ('a: "\\ud800"', "x.yaml:1:4  half a character"),
        ('a: "\\U00110000"', "x.yaml:1:7  not YAML: a number or an escape out of range"),
        ("a: 9223372036854775808", "x.yaml:1:4  the number needs more than 64 bits"),
        (f"a: 0x{'f' * 5000}", "x.yaml:1:4  the number needs more than 64 bits"),
        (f"a: {'[' * 5000}", "x.yaml:1:67  nested deeper than 64 levels"),
        ("%YAML 3.0\n--- {a: 1}", "x.yaml:1:1  not YAML: found incompatible YAML document"),
    ],
)
def test_invalid_yaml_is_refused_with_its_place(text: str, message: str) -> None:
    text_of_error = refused(lambda: read_text(text, "x.yaml"))
    assert text_of_error.startswith(message)
    assert "\n" not in text_of_error


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"a: 1\r\nb: \xe9\n")
    assert refused(lambda: read_file(latin, "latin")).startswith("latin:2:4  not UTF-8")
    assert refused(lambda: read_file(tmp_path, "here")).startswith("here: a folder")
    assert refused(lambda: read_file(tmp_path / "gone", "gone")).startswith("gone: there is no such file")


def test_irregular_and_large_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        assert refused(lambda path=path: read_file(path, "x")) == "x: cannot be read: no regular file"
    large = tmp_path / "large.yaml"
    large.write_text("compose: 1\n" + "#" * MOST_BYTES)
    assert "larger than 262,144 bytes" in refused(lambda: read_file(large, "large"))


@pytest.mark.parametrize(
    "text",
    [
        "root:x:0:0:root:/root:/bin/sh\ndaemon:*:1\n",
        "password: hush\n",
        "- hush\n",
        "hush",
        "&hush x",
        "hush: [",
        "hush: 1\nhush: 2",
        '"hush',
    ],
)
def test_messages_do_not_quote_files_that_are_not_specs(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text)
    (tmp_path / "x.yaml").write_text("compose: 1\nname: x\nextends: secret\n")
    for path in (tmp_path / "secret", tmp_path / "x.yaml"):
        message = message_of(path)
        assert "`compose: 1`" in message
        assert not re.search("hush|root|daemon|password", message.replace(str(tmp_path), ""))


def test_exponential_aliases_are_refused() -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20))
    assert refused(lambda: read_text(bomb, "x")).startswith("x:1:4  anchors and aliases")


def test_byte_order_marks_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "marked.yaml"
    path.write_bytes(b"\xef\xbb\xbfcompose: 1\n")
    root = read_file(path, "marked")
    assert plain(root) == {"compose": 1}
    assert str(root.place) == "marked:1:1"


def test_values_of_overrides_are_read_as_in_files() -> None:
    assert plain(read_value("{a: [1e-3, on]}", "--set a")) == {"a": (0.001, "on")}
    assert str(read_value("{a: 1}", "--set a").value["a"].start) == "--set a"
    assert refused(lambda: read_value(" ", "--set a")).startswith("--set a: no value after `=`")
    assert refused(lambda: read_value("[1", "--set a")).startswith("--set a  not YAML")


SIGNS = [
    *":-?,[]{}#&*!|>'\"%@`~= \t\n",
    ": ",
    "- ",
    "? ",
    " #",
    "|\n",
    ">-\n  ",
    "'a\n  b'",
    '"a\\\n  b"',
    "{a: ",
    "[1, ",
    ": }",
    "",
]
SIGNS += ["---\n", "...\n", "%YAML 1.1\n---\n", "%TAG ! x\n---\n", "!!str ", "<<: ", "\\x41", "\\ud800", "1e3", ""]
SIGNS += ["\r\n", "\ufeff", "\x85", "\xa0", "é", "𐍈"]
LINES = [path.read_text(encoding="utf-8").splitlines(keepends=True) for path in shipped_specs().values()]
PIECES = st.tuples(st.sampled_from(LINES), st.integers(0, 60), st.integers(1, 12)).map(
    lambda drawn: "".join(drawn[0][drawn[1] % len(drawn[0]) :][: drawn[2]])
)
DAMAGES = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 6), st.sampled_from(SIGNS)), max_size=4)


def placed(node: SpecNode) -> object:
    """Return a tree with the places of its keys and values."""
    inside = node.value
    if isinstance(inside, dict):
        inside = {key: placed(value) for key, value in inside.items()}
    elif isinstance(inside, tuple):
        inside = tuple(map(placed, inside))
    return repr(inside), str(node.place), str(node.key)


def read_or_refused(text: str) -> object:
    """Return the complete result of reading a text, without a cache."""
    try:
        return placed(read_text.__wrapped__(text, "x"))
    except SpecError as error:
        return str(error)


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML without libyaml")
@settings(max_examples=max(40, settings.default.max_examples))
@given(PIECES, DAMAGES)
def test_libyaml_and_pyyaml_read_equally(text: str, damages: list[tuple[int, int, str]]) -> None:
    for place, length, sign in damages:
        start = place % (len(text) + 1)
        text = text[:start] + sign + text[start + length :]
    quick = read_or_refused(text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(yaml, "__with_libyaml__", False)
        assert read_or_refused(text) == quick


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML without libyaml")
def test_valid_text_is_read_only_by_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML's own reader takes five times as long, so it reads only invalid text."""
    text = shipped_specs()["lolcats"].read_text(encoding="utf-8")
    monkeypatch.setattr(_Document, "by_pyyaml", lambda document: pytest.fail(document.text))
    assert read_text.__wrapped__(text, "x").child("compose")
