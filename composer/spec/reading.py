"""YAML text becomes a document: YAML 1.2's core schema, no repeated keys, and the place of every key and value.

PyYAML follows YAML 1.1, where ``1e-3`` is text and ``on`` is true. Anchors, tags and merge keys are refused: ``extends`` and
``heads`` have the same use, and errors can name their places.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import NamedTuple

import yaml
from yaml.composer import Composer
from yaml.resolver import BaseResolver

from composer.errors import SpecError
from composer.spec.built_models import is_built, read_built
from composer.spec.places import DEEPEST, Place, SpecNode, at, brief
from converters.bounded import read_bytes, reason

_KEY = re.compile(r"""([ ]*(?:-[ ]+)*)([\w-]+|"[^"]*"|'[^']*')[ ]*:(?:[ ]+([^#\s].*)|[ ]*(?:#.*)?)$""")
_ITEM = re.compile(r"([ ]*)-(?:[ ]|$)")
_EMPTY = re.compile(r"[ ]*(#.*)?$")


class _Key(NamedTuple):
    """A line's first key. line, column: from 0. valued: whether a value follows it on the line."""

    line: int
    column: int
    name: str
    valued: bool


def find_misplaced(text: str, line: int) -> tuple[int, str] | None:
    """Return the column of the key that a line begins with, from 0, and what is wrong with it; None where nothing is. line: from
    0."""
    lines = text.split("\n")
    if line < len(lines) and (item := _ITEM.match(lines[line])) and (wrong := _item(lines, line, len(item[1]))):
        return wrong
    here = _key(lines, line)
    above = [number for number in range(min(line, len(lines)) - 1, -1, -1) if not _EMPTY.match(lines[number])]
    keys = [key for number in above if (key := _key(lines, number))]
    if here is None or not keys or keys[0].line != above[0]:
        return None
    last = keys[0]
    if here.column > last.column:
        if not last.valued:
            return None
        return here.column, (
            f'not YAML: "{here.name}" is indented deeper than "{last.name}" in line {last.line + 1}, which has its value already: '
            f"begin it in column {last.column + 1}, too"
        )
    outer = [last]
    for key in keys:
        if key.column < outer[-1].column:
            outer.append(key)
    if any(key.column == here.column for key in outer):
        return None
    columns = " or ".join(f'{key.column + 1}, as "{key.name}"' for key in outer)
    return here.column, f'not YAML: "{here.name}" is indented unlike any key around it: begin it in column {columns}'


def _item(lines: list[str], line: int, column: int) -> tuple[int, str] | None:
    """Return the column and the message for a list item that is indented like no open list."""
    before: tuple[int, int] | None = None
    for number in (number for number in range(line - 1, -1, -1) if not _EMPTY.match(lines[number])):
        key, item = _key(lines, number), _ITEM.match(lines[number])
        if key is not None and not key.valued and key.column <= column:
            break  # the item belongs to this key's list
        if item is not None:
            if len(item[1]) == column:
                return None
            before = len(item[1]), number
            if len(item[1]) < column:
                break
        elif key is not None and not key.valued and before is None:
            return column, (
                f'not YAML: this item is indented less than "{key.name}" in line {number + 1}, whose list it is in: begin its - in '
                f"column {key.column + 1}, or further to the right"
            )
    if before is None:
        return None
    direction = "less" if before[0] > column else "deeper"
    return column, (
        f"not YAML: this item is indented {direction} than the one before it, in line {before[1] + 1}: begin its - in column "
        f"{before[0] + 1}, too"
    )


def _key(lines: list[str], line: int) -> _Key | None:
    match = _KEY.match(lines[line]) if line < len(lines) else None
    return match and _Key(line, len(match[1]), match[2].strip("\"'"), bool(match[3]))


# Beside what YAML forbids: the line breaks of YAML 1.1 that 1.2 and editors do not count as such.
FORBIDDEN = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SURROGATE = re.compile("[\ud800-\udfff]")
VERSION = re.compile(r"""(?:^|[{,])[ \t]*["']?compose["']?[ \t]*:""", re.MULTILINE)
"""The key that every spec has, even one that is otherwise damaged."""
UNLIKE = re.compile("[\t\ufeff?]|[|>][-+0-9]*#")
"""Characters for which libyaml is more lenient than PyYAML, or counts other columns."""
LARGEST = 2**63
MOST_BYTES = 2**18
"""The size of a file, or of a chain of them. Shipped specs have a few thousand bytes; reading 30,000 needs about a second."""
LONGEST = 32
"""The most characters of a whole number."""

_TAG = "tag:yaml.org,2002:"
_CORE = {
    "null": re.compile(r"(?:null|Null|NULL|~|)\Z"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "int": re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
    "float": re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
    ),
}
_PLAINER = {
    "mapping values are not allowed here": "a `:` where no key is allowed: is a space missing after another one?",
    "found unexpected end of stream": "a quote is not closed",
    "could not find expected ':'": "a key without `: ` after it",
    "'<stream end>'": "the end of the file",
    "<block end>": "the end of the block",
}


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that a spec may not have: anchors, tags, deep nesting."""


class _Nodes(Composer, BaseResolver):
    """Events become nodes, with the scalars of YAML 1.2."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012  PyYAML's own attribute
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # pyright: ignore[reportAttributeAccessIssue]  the parser's, of either reader
        problem = None
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            problem = "anchors and aliases (& and *) are no part of a spec: use `extends`, or name the head under `heads`"
        elif event.tag is not None:
            problem = f"tags ({brief(event.tag)}) are no part of a spec: leave it out"
        elif self.depth >= DEEPEST:
            problem = f"nested deeper than {DEEPEST} levels"
        if problem:
            raise _Refused(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _name, _pattern in _CORE.items():
    _Nodes.add_implicit_resolver(_TAG + _name, _pattern, None)


class _PyYAMLReader(_Nodes, yaml.SafeLoader):
    """PyYAML's own reader. Messages are made of its errors."""


if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # pyright: ignore[reportAttributeAccessIssue]

    class _LibYAMLReader(_Nodes, CParser):
        """libyaml's reader, ten times as fast. It has the same events and places as PyYAML's, and other error messages."""

        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            Composer.__init__(self)
            BaseResolver.__init__(self)

        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            node = super().compose_node(parent, index)
            if node is not None and node.start_mark.index == node.end_mark.index:  # libyaml has other places for empty values
                raise yaml.YAMLError
            return node


def read_file(path: Path, shown: str) -> SpecNode:
    """Read one spec, or that of a built model. shown: how messages name the file. Raises SpecError, which quotes nothing of a file
    that is no spec."""
    if is_built(path):
        return read_built(path, shown)
    try:
        content = read_bytes(path, MOST_BYTES)
    except IsADirectoryError:
        raise SpecError(f"{shown}: a folder; a spec is one YAML file") from None
    except FileNotFoundError:
        raise SpecError(f"{shown}: there is no such file") from None
    except OSError as error:
        raise SpecError(f"{shown}: cannot be read: {reason(error)}") from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        raise SpecError(at(Place(shown, line, column), (), "not UTF-8: save the file in that encoding")) from None
    return read_spec(text, shown)


def read_spec(text: str, shown: str) -> SpecNode:
    """Read the text of one spec, which must have its version. Raises SpecError. The error does not quote a text that is no spec."""
    try:
        root = read_text(text, shown)
    except SpecError:
        if text.strip() and not VERSION.search(text):
            raise SpecError(at(Place(shown, 1, 1), (), "no spec: it has no `compose: 1`")) from None
        raise
    if root.child("compose") is None:
        raise SpecError(at(root.start, ("compose",), "missing. A spec begins with `compose: 1`"))
    return root


@functools.lru_cache(maxsize=64)  # the variants of a sweep, and what they extend, are the same text again and again
def read_text(text: str, shown: str) -> SpecNode:
    """Read the text of one spec, a mapping at its top. shown: what messages call it. Raises SpecError."""
    root = _Document(text, shown).read()
    if root is None:
        raise SpecError(at(Place(shown, 1, 1), (), "empty: a spec begins with `compose: 1`"))
    if not isinstance(root.value, dict):
        actual = "a list" if isinstance(root.value, tuple) else json.dumps(root.value, ensure_ascii=False)
        raise SpecError(at(root.place, (), f"expected a mapping that begins with `compose: 1`, got {actual}"))
    return root


def read_value(text: str, option: str) -> SpecNode:
    """Read the value of an override; messages name ``option`` as the place of everything in it. Raises SpecError."""
    root = _Document(text, option, lines=False).read()
    if root is None:
        raise SpecError(f"{option}: no value after `=`; to remove a key, write null")
    return root


class _Document:
    """A text that is read into a SpecNode."""

    def __init__(self, text: str, shown: str, lines: bool = True) -> None:
        self.text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.end = len(self.text.removesuffix("\n"))
        self.shown = shown
        self.lines = lines

    def place(self, mark: yaml.Mark) -> Place:
        """Return the place of a mark. The end of the file counts as the end of its last line."""
        if not self.lines:
            return Place(self.shown)
        if mark.index < self.end:
            return Place(self.shown, mark.line + 1, mark.column + 1)
        return self.count(self.end)

    def count(self, index: int) -> Place:
        """Return the place of a character that no mark points at."""
        before = self.text[:index]
        return Place(self.shown, before.count("\n") + 1, len(before) - before.rfind("\n"))

    def read(self) -> SpecNode | None:
        """Return the document, or None where the text holds none."""
        match = FORBIDDEN.search(self.text)
        if match:
            place = self.count(match.start()) if self.lines else Place(self.shown)
            raise SpecError(at(place, (), f"the character U+{ord(match[0]):04X} is not allowed in YAML: remove it"))
        root = self.by_pyyaml() if UNLIKE.search(self.text) or not yaml.__with_libyaml__ else self.by_libyaml()
        return None if root is None else self.node(root)

    def by_libyaml(self) -> yaml.Node | None:
        """Return the node at the top, read by libyaml, or by PyYAML where libyaml finds an error."""
        try:
            return _LibYAMLReader(self.text).get_single_node()
        except yaml.YAMLError:
            return self.by_pyyaml()

    def by_pyyaml(self) -> yaml.Node | None:
        """Return the node at the top, read by PyYAML. Raises SpecError with its message."""
        reader = _PyYAMLReader(self.text)
        try:
            return reader.get_single_node()
        except yaml.MarkedYAMLError as error:
            raise self.not_yaml(error, error.problem_mark or reader.get_mark()) from None
        except (ValueError, OverflowError):  # PyYAML leaves these to chr() and int()
            raise self.error(reader.get_mark(), "not YAML: a number or an escape out of range") from None
        finally:
            reader.dispose()

    def error(self, mark: yaml.Mark, message: str) -> SpecError:
        return SpecError(at(self.place(mark), (), message))

    def not_yaml(self, error: yaml.MarkedYAMLError, mark: yaml.Mark) -> SpecError:
        problem = error.problem or "not readable"
        if isinstance(error, _Refused):
            return self.error(mark, problem)
        if problem == "but found another document":
            return self.error(mark, "a second document begins: a spec is one document a file")
        if self.text[mark.index : mark.index + 1] == "\t":
            return self.error(mark, "not YAML: a tab may not indent; use spaces")
        wrong = find_misplaced(self.text, mark.line) if self.lines else None
        if wrong is not None:
            return SpecError(at(Place(self.shown, mark.line + 1, wrong[0] + 1), (), wrong[1]))
        for words, plainer in _PLAINER.items():
            problem = problem.replace(words, plainer)
        since = self.place(error.context_mark) if error.context_mark else None
        if since and since.line != self.place(mark).line:
            problem += f" ({error.context}, line {since.line})"
        return self.error(mark, f"not YAML: {problem}")

    def node(self, node: yaml.Node, key: Place | None = None) -> SpecNode:
        place = self.place(node.start_mark)
        if isinstance(node, yaml.MappingNode):
            return SpecNode(self.mapping(node), place, key)
        if isinstance(node, yaml.SequenceNode):
            return SpecNode(tuple(self.node(item) for item in node.value), place, key)
        assert isinstance(node, yaml.ScalarNode)
        return SpecNode(self.scalar(node), place, key)

    def mapping(self, node: yaml.MappingNode) -> dict[str, SpecNode]:
        items: dict[str, SpecNode] = {}
        for key, value in node.value:
            name = self.scalar(key) if isinstance(key, yaml.ScalarNode) else None
            if not isinstance(name, str):
                hint = f"; write {json.dumps(key.value)}" if isinstance(key, yaml.ScalarNode) else ""
                raise self.error(key.start_mark, f"a key must be text{hint}")
            if name == "<<":
                raise self.error(key.start_mark, "merge keys (<<) are no part of YAML 1.2: use `extends`")
            if name in items:
                first = f", first at {items[name].key}" if self.lines else ""
                raise self.error(key.start_mark, f"the key {json.dumps(name)} is set twice{first}")
            items[name] = self.node(value, self.place(key.start_mark))
        return items

    def scalar(self, node: yaml.ScalarNode) -> str | int | float | bool | None:
        text, kind = node.value, node.tag.removeprefix(_TAG)
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if kind == "int":
            base = {"0o": 8, "0x": 16}.get(text[:2], 10)
            number = int(text[2:] if base != 10 else text, base) if len(text) <= LONGEST else LARGEST
            if not -LARGEST <= number < LARGEST:
                raise self.error(node.start_mark, "the number needs more than 64 bits")
            return number
        if SURROGATE.search(text):
            raise self.error(node.start_mark, "half a character (a surrogate escape): write the whole one")
        return text
