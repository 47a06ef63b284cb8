"""``--set path=value``: the same as a child document with this value, and also for items of lists, by their index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel

from blocks.part import FieldPath
from composer.errors import SpecError
from composer.spec.document import setting_steps
from composer.spec.fields import Alternatives, fields, kind_words, parts, under
from composer.spec.inherit import heads_inherited, merge_nodes, spell_out
from composer.spec.messages import unknown_key_message
from composer.spec.places import DEEPEST, Place, SpecNode, at, brief
from composer.spec.reading import read_value
from converters.bounded import shorten

Overrides = str | Sequence[str] | Mapping[str, object]
"""``path=value``, one or several; or values by their paths."""
Steps = tuple[str, ...]
LONGEST = 200
"""Characters of an override that a message shows."""


def override_list(overrides: Overrides) -> tuple[str, ...]:
    """Return the overrides as a tuple of ``path=value``. Raises SpecError for a value that no document could hold."""
    if isinstance(overrides, str):
        return (overrides,)
    if not isinstance(overrides, Iterable):
        raise SpecError(f"overrides are `path=value`, several of them, or a mapping, not {shorten(repr(overrides))}")
    if not isinstance(overrides, Mapping):
        settings = tuple(overrides)
        for setting in settings:
            if not isinstance(setting, str):
                raise SpecError(f"overrides: {brief(setting)} is not text; expected path=value, such as head.memory.0.size=32")
        return settings
    for path, value in overrides.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise SpecError(f"overrides: {path} is {brief(value)}; expected a value that YAML can hold") from error
    return tuple(f"{path}={json.dumps(value, ensure_ascii=False)}" for path, value in overrides.items())


def override_value(document: SpecNode, override: str, here: Alternatives) -> SpecNode:
    """Return the document after ``path=value``. here: the alternatives of its top. Raises SpecError, also on an index out of range.

    ``head.memory.0.size=32`` has the effect of a child with that memory's size; lists keep their other items; null removes a value.
    """
    option = f"--set {shorten(override, LONGEST)}"
    path, separator, text = override.partition("=")
    steps = setting_steps(path.strip())
    if not separator or not all(steps):
        raise SpecError(f"{option}: expected path=value, such as head.memory.0.size=32")
    if steps == ("extends",):
        raise SpecError(f"{option}: extends is read before overrides: write it in a file")
    return setting(document, steps, read_value(text, option), here, Place(option))


def setting(document: SpecNode, steps: Steps, value: SpecNode, here: Alternatives, place: Place | None) -> SpecNode:
    """Return the document with ``value`` at this place. place: of the override. Raises SpecError if there is no such place."""
    if len(steps) > DEEPEST:
        raise SpecError(at(place, steps[:4], f"nested deeper than {DEEPEST} levels"))
    full_document = heads_inherited(document, here)  # the items of an inherited list are counted in the head that defines it
    return merge_nodes(document, _child(full_document, steps, value, here, place), here)


def _child(
    node: SpecNode | None, steps: Steps, value: SpecNode, here: Alternatives, place: Place | None, done: FieldPath = ()
) -> SpecNode:
    """Return the value of a child document at this place, which sets the rest of the path when it is merged over ``node``."""
    if not steps:
        return value
    step, following = steps[0], steps[1:]
    if node is not None and isinstance(node.value, tuple):
        index = _index(node.value, step, place, done)
        inside, path = under(here, index), (*done, index)
        before, item, after = node.value[:index], node.value[index], node.value[index + 1 :]
        if not following and value.value is None:
            return SpecNode((*before, *after), node.place, node.key)
        new = merge_nodes(item, _child(item, following, value, inside, place, path), inside)
        return SpecNode((*before, new, *after), node.place, node.key)
    if node is not None and parts(here):
        node = spell_out(node)
    if node is not None and node.value is not None and not isinstance(node.value, dict):
        raise SpecError(at(place, done, f'is {brief(node.value)} and has no key "{step}"'))
    if re.fullmatch(r"-?\d+", step):
        why = "it is no list" if node is not None and node.value is not None else "the spec has no value there"
        raise SpecError(at(place, done, f"has no item {step}: {why}"))
    if following and fields(here) and not under(here, step):
        raise SpecError(at(place, (*done, step), unknown_key_message((*done, step), here)))
    child = node.child(step) if node is not None else None
    new = _child(child, following, value, under(here, step), place, (*done, step))
    if following and child is None and isinstance(new.value, dict) and "kind" not in new.value:
        new = _of_default(node, new, step, here)
    if not following or child is None or child.value is None:
        new = SpecNode(new.value, place, place)
    return SpecNode({step: new})


def _of_default(node: SpecNode | None, new: SpecNode, step: str, here: Alternatives) -> SpecNode:
    """Return the new fields of a part that the document leaves at its default, with the default's kind, where they are fields of
    that."""
    kind = node.child("kind") if node is not None else None
    model = parts(here).get(kind.value) if kind and isinstance(kind.value, str) else None
    field = fields((model,) if model else here).get(step)
    default = type(field.default) if field and isinstance(field.default, BaseModel) else None
    words = kind_words(default) if default else ()
    if not words or not isinstance(new.value, dict) or not new.value.keys() <= fields((default,)).keys():
        return new
    return SpecNode({"kind": SpecNode(words[0]), **new.value}, new.place, new.key)


def _index(items: tuple[SpecNode, ...], step: str, place: Place | None, done: FieldPath) -> int:
    """Return an index of the list, counted from its start."""
    count = len(items)
    choices = f"0 to {count - 1}, or -1 for the last" if count else "none: it is empty"
    if not re.fullmatch(r"-?\d{1,9}", step):
        raise SpecError(at(place, done, f'is a list of {count}: use an index ({choices}), not "{step}"'))
    index = int(step)
    if not -count <= index < count:
        raise SpecError(at(place, done, f"has no item {step}; its items are {choices}"))
    return index % count
