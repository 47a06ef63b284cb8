"""A key with a wrong indentation is reported as such, with the column where it belongs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.composer.spec.error_messages import message_of

HEAD = "compose: 1\nname: x\nhead:\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            HEAD + "  position: rope\n    memory: [full]\n",
            'x.yaml:5:5  not YAML: "memory" is indented deeper than "position" in line 4, which has its value already: begin it in '
            "column 3, too",
        ),
        (HEAD + "  memory: [full]\n    read: shared\n", 'x.yaml:5:5  not YAML: "read" is indented deeper than "memory" in line 4'),
        (
            HEAD + "  memory:\n    - kind: window\n        size: 64\n",
            'x.yaml:6:9  not YAML: "size" is indented deeper than "kind" in',
        ),
        (
            "compose: 1\n  name: x\n",
            'x.yaml:2:3  not YAML: "name" is indented deeper than "compose" in line 1, which has its value ',
        ),
        (
            HEAD + "  position: rope\n   # a comment\n\n    memory: [full]\n",
            'x.yaml:7:5  not YAML: "memory" is indented deeper than "position" in line 4',
        ),
        (
            HEAD + "  memory:\n  - {kind: window, size: 4}\n - {kind: state}\n",
            "x.yaml:6:2  not YAML: this item is indented less than the one before it, in line 5: begin its - in column 3, too",
        ),
        (
            HEAD + "  memory:\n    - kind: window\n      size: 4\n   - kind: state\n",
            "x.yaml:7:4  not YAML: this item is indented less than the one before it, in line 5: begin its - in column 5, too",
        ),
        (
            HEAD + "  memory:\n   - kind: window\n     size: 4\n    - kind: state\n",
            "x.yaml:7:5  not YAML: this item is indented deeper than the one before it, in line 5: begin its - in column 4, too",
        ),
        (
            HEAD + "    memory:\n  - full\n",
            'x.yaml:5:3  not YAML: this item is indented less than "memory" in line 4, whose list it is in: begin its - in column '
            "5, or further to the right",
        ),
        (
            HEAD + "    position: rope\n  memory: [full]\n",
            'x.yaml:5:3  not YAML: "memory" is indented unlike any key around it: begin it in column 5, as "posi'
            'tion" or 1, as "head"',
        ),
        (
            HEAD + "  memory:\n    - kind: window\n     size: 64\n",
            'x.yaml:6:6  not YAML: "size" is indented unlike any key around it',
        ),
        (
            HEAD + "  memory: [full]\n  recipe: {transfer: {lr: 1, epochs: 1}}\n",
            'x.yaml:5:3  head.recipe: unknown key "recipe"; it belongs beside "head": it is indented too far. Known keys: ',
        ),
        (
            HEAD + "  memory:\n    - kind: window\n      feature_map: elu\n",
            'x.yaml:6:7  head.memory[0].feature_map: unknown key "feature_map"; it belongs beside "memory": it is indented too',
        ),
        # What is not a matter of columns is told of as before; a key that is called like the part it stands in, too.
        (
            HEAD + "  memory: [{kind: delta, rate: {kind: fixed, rate: 0.5}}]\n",
            'x.yaml:4:46  head.memory[0].rate.rate: unknown key "rate". Known keys: kind, value',
        ),
        (HEAD + "  memory: full:\n", "x.yaml:4:15  not YAML: a `:` where no key is allowed"),
        (HEAD + "  memory: [window,\n  full]\n   read: shared", "x.yaml:6:4  not YAML: expected the end of the block, but found"),
        (HEAD + "  memory: [full]\n  raed: sum\n", 'x.yaml:5:3  head.raed: unknown key "raed"; did you mean "read"?'),
        (HEAD + '  position: "rope\n    memory: [full]\n', "x.yaml:5:19  not YAML: a quote is not closed"),
    ],
)
def test_keys_in_the_wrong_column_are_reported_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(text)
    assert message_of("x.yaml").startswith(message)


def test_the_suggested_indentation_is_a_valid_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(HEAD + "  position: rope\n  memory: [full]\n")
    assert message_of("x.yaml") == ""
