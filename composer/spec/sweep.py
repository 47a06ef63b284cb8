"""``vary``: expand a document for a table of specs to its variants, each a separate document.

A variant is the document without ``vary``, with the values of its row as overrides, as by ``--set``, in the order of their paths.
``vary`` itself is inherited like any other mapping: a child adds paths or replaces their values, and removes it all with null.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from composer.errors import MOST_SHOWN, GraphError, Mistake, SpecError
from composer.spec.document import Spec, Vary, setting_steps
from composer.spec.inherit import MOST_VALUES, SEPARATOR
from composer.spec.overrides import setting
from composer.spec.places import SpecNode, at, brief, count, nearest
from converters.bounded import list_first

OWN = ("compose", "name", "extends", "vary")
"""Keys that a sweep cannot vary: they are read before it, or follow from the variant."""
LONGEST = 40
"""Characters of a value that may become part of a name."""

Combination = tuple[tuple[str, int], ...]
"""A variant: the index of the value of each path."""


def rows(vary: Vary) -> list[Combination]:
    """Return the variants in their order: for each combination of the grid, each side of the zip."""
    combinations = itertools.product(*([(path, index) for index in range(len(values))] for path, values in vary.grid.items()))
    count = next((len(values) for values in vary.zip.values()), 1)
    sides = [tuple((path, index) for path in vary.zip) for index in range(count)]
    return [combination + side for combination in combinations for side in sides]


def variant_names(vary: Vary) -> list[str]:
    """Return the names of the variants, without that of their sweep, in the order of ``rows``."""
    if vary.names is not None:
        return list(vary.names)
    names: dict[str, None] = {}
    counts: dict[str, int] = {}
    for row in rows(vary):
        words = [_word(path, (vary.grid | vary.zip)[path], index, is_only=len(row) == 1) for path, index in row]
        base_name = "-".join(words)
        name = base_name
        while name in names:
            counts[base_name] = counts.get(base_name, 1) + 1
            name = f"{base_name}-{counts[base_name]}"
        names[name] = None
    return list(names)


def variants(document: SpecNode, vary: Vary) -> dict[str, SpecNode]:
    """Return the documents, by their variants' names. Raises SpecError if a path leads nowhere."""
    common, vary_node = without_vary(document), document.child("vary")
    assert vary_node is not None
    if vary.count * count(common) > MOST_VALUES:
        message = f"{vary.count:,} variants of a document of {count(common):,} values; at most {MOST_VALUES:,} in all"
        raise SpecError(at(vary_node.start, ("vary",), message))
    lists = {path: node for key in ("grid", "zip") if (part := vary_node.child(key)) is not None for path, node in _items(part)}
    for path, node in lists.items():
        if setting_steps(path)[0] in OWN:
            raise SpecError(at(node.key or node.start, ("vary",), f'a sweep cannot vary "{path}": that is settled before it'))
    documents: dict[str, SpecNode] = {}
    problems: list[tuple[str, SpecError]] = []
    for name, row in zip(variant_names(vary), rows(vary), strict=True):
        try:
            documents[name] = _name_variant(common, name)
            for path, index in row:
                value = lists[path].child(index)
                assert value is not None
                documents[name] = setting(documents[name], setting_steps(path), value, (Spec,), value.start)
        except SpecError as error:
            problems.append((name, error))
    if problems:
        raise merge_errors(problems, vary)
    return documents


def choose_variant(document: SpecNode, vary: Vary, name: str) -> SpecNode:
    """Return the document of one variant. Raises SpecError if the sweep has no such variant."""
    documents = variants(document, vary)
    if name not in documents:
        place = node.start if (node := document.child("vary")) else None
        guess = nearest(name, documents) or "."
        raise SpecError(at(place, ("vary",), f"there is no variant {brief(name)}{guess} Variants: {list_first(documents)}"))
    return documents[name]


def without_vary(document: SpecNode) -> SpecNode:
    """Return the part of a sweep's document that all variants have in common."""
    return SpecNode({key: node for key, node in _items(document) if key != "vary"}, document.place)


def merge_errors(problems: list[tuple[str, SpecError]], vary: Vary, *, name_variants: bool = False) -> SpecError:
    """Return the mistakes of some variants as one error: each mistake once, at its first place, with the variants that have it.

    name_variants: name the variants in any case, as there are others that were not checked.
    """
    first: dict[tuple[str | None, str], Mistake] = {}
    having: dict[tuple[str | None, str], list[str]] = {}
    for name, error in problems:
        for mistake in error.mistakes:
            same = (mistake.path, mistake.message)
            first.setdefault(same, mistake)
            having.setdefault(same, []).append(name)
    mistakes = [
        replace(first[same], message=first[same].message + _in(names, vary, name_variants))
        for same, names in islice(having.items(), MOST_SHOWN)
    ]
    more = [f"and {len(having) - MOST_SHOWN:,} more mistakes"] if len(having) > MOST_SHOWN else []
    return SpecError(*mistakes, *more)


def refuse_sweep(spec: Spec) -> None:
    """Raise GraphError if one spec is needed and this is a table of them."""
    if spec.vary is not None:
        names = variant_names(spec.vary)
        raise GraphError(
            f"{spec.name} is a sweep of {len(names)} specs: {list_first(names)}. Name one of them after a colon, as in "
            f"SPEC{SEPARATOR}{names[0]}, or write them out: `compose show SPEC --expand -o FOLDER`",
            ("vary",),
        )


def _in(names: list[str], vary: Vary, name_variants: bool) -> str:
    """Return the variants as text: several by their names, a single one with its values, too."""
    names = list(dict.fromkeys(names))
    if len(names) == vary.count > 1 and not name_variants:
        return ""
    if len(names) > 1:
        return f" (in the variants {list_first(map(brief, names))})"
    row = rows(vary)[variant_names(vary).index(names[0])]
    settings = ", ".join(f"{path}={brief((vary.grid | vary.zip)[path][index])}" for path, index in row)
    return f" (in the variant {brief(names[0])}: {settings})"


def _items(node: SpecNode) -> Iterator[tuple[str, SpecNode]]:
    assert isinstance(node.value, dict)
    yield from node.value.items()


def _name_variant(document: SpecNode, name: str) -> SpecNode:
    name_node = document.child("name")
    assert name_node is not None
    return SpecNode(
        dict(_items(document)) | {"name": SpecNode(f"{name_node.value}-{name}", name_node.place, name_node.key)}, document.place
    )


def _word(path: str, values: tuple[object, ...], index: int, *, is_only: bool) -> str:
    """Return a value for a name: a word or a number, with its key if the value is ambiguous."""
    steps, value = setting_steps(path), values[index]
    key = _legal("-".join(steps[-2:] if steps[-1].lstrip("-").isdigit() else steps[-1:]))
    if value is None or isinstance(value, bool):
        return key if value else f"no-{key}"
    if isinstance(value, int | float):
        return _legal(f"{value:g}" if isinstance(value, float) else str(value)) if is_only else f"{key}-{_legal(str(value))}"
    return _short(value) or f"{key}-{index + 1}"


def _short(value: object) -> str:
    """Return the kind of a part, the items of a list, or the value itself; nothing where that makes no short name."""
    if isinstance(value, dict):
        return _short(value.get("kind", ""))
    if isinstance(value, tuple | list):
        words = [_short(item) for item in value]
        return "-".join(words) if all(words) and len("-".join(words)) <= LONGEST else ""
    return _legal(str(value)) if len(str(value)) <= LONGEST else ""


def _legal(text: str) -> str:
    """Return the text with only those characters that a name may have."""
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")
