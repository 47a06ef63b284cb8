"""The differences between two specs in meaning: their complete heads, without names, papers and recipes.

On a source they are compared layer by layer, with every dimension known. Without one, ``head`` is compared with ``head`` and each
rule of ``layers`` with the other's, its heads in place of their names. Values that only a source sets are left open in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import zip_longest
from typing import Any

from pydantic import BaseModel

from blocks.part import Closed, FieldPath
from composer.graph.composition import HeadSpec, without_names
from composer.spec.document import REST, Spec
from composer.spec.layer_rules import Group, unknown_head_error
from composer.spec.resolve import Resolved, complete_head, heads_of, meaning
from composer.spec.sweep import refuse_sweep


class Difference(Closed):
    """One difference. layers: those that have it; None if no source determines their number."""

    layers: tuple[int, ...] | None
    path: FieldPath
    first: Any
    second: Any


class _Group(Closed):
    """Query heads that are composed alike. heads: how many, a share in lowest terms, the numbers of their key heads, or ``rest``;
    None where they are all of the layer."""

    head: HeadSpec
    heads: int | str | tuple[int, ...] | None = None


class _Rule(Closed):
    at: int | tuple[int, ...] | str
    use: tuple[_Group, ...]


PARTED = (HeadSpec, _Group, _Rule)
"""Types whose fields are listed one by one if only one spec has them."""


def differences_of_specs(first: Spec, second: Spec) -> list[Difference]:
    """Return the differences head by head, for any source. Raises GraphError for a sweep, and for a name of a head that does not
    exist."""
    for spec in (first, second):
        refuse_sweep(spec)
    first_head, other = (spec.head and _head(complete_head(spec.head, None)) for spec in (first, second))
    differences = [
        *_between(first_head, other, ("head",)),
        *_between(_rules(first), _rules(second), ("layers",)),
        *_trunks(first, second),
    ]
    return [Difference(layers=None, path=path, first=value, second=other) for path, value, other in differences]


def differences_on_source(first: Resolved, second: Resolved) -> list[Difference]:
    """Return the differences layer by layer, on the same source, with equal ones joined. Empty exactly where the hashes are
    equal."""
    layers: dict[str, list[int]] = {}
    by_key: dict[str, tuple[FieldPath, Any, Any]] = {}
    ones, others = _heads(first), _heads(second)
    compared: dict[Any, list[tuple[str, tuple[FieldPath, Any, Any]]]] = {}
    for number, pair in enumerate(zip(first.layers, second.layers, strict=True)):
        if pair not in compared:  # most layers are alike
            differences = _between_layers(_groups(pair[0], ones), _groups(pair[1], others))
            compared[pair] = [(repr(difference), difference) for difference in differences]
        for key, difference in compared[pair]:
            layers.setdefault(key, []).append(number)
            by_key.setdefault(key, difference)
    return [
        Difference(layers=tuple(layers[key]), path=path, first=value, second=other) for key, (path, value, other) in by_key.items()
    ]


def _between_layers(groups: tuple[_Group, ...], other: tuple[_Group, ...]) -> Iterator[tuple[FieldPath, Any, Any]]:
    """Return the differences of two layers: of their heads, where each has one group, else of their groups."""
    if len(groups) == len(other) == 1:
        return _between(groups[0].head, other[0].head, ("head",))
    return _between(groups, other, ("groups",))


def _trunks(first: Spec, second: Spec) -> Iterator[tuple[FieldPath, Any, Any]]:
    trunk, other = (spec.trunk and spec.trunk.complete() for spec in (first, second))
    return _between(trunk, other, ("trunk",))


def _rules(spec: Spec) -> tuple[_Rule, ...]:
    heads = heads_of(spec)
    rules = []
    for number, rule in enumerate(spec.layers):
        uses = [(None, rule.use)] if isinstance(rule.use, str) else [(_lowest(group.heads), group.head) for group in rule.use]
        for _, name in uses:
            if name not in heads:
                raise unknown_head_error(name, heads, ("layers", number, "use"))
        if any(isinstance(count, tuple) for count, _ in uses):  # the order of groups by number has no meaning
            uses.sort(key=lambda use: (use[0] == REST, use[0]))
        groups = tuple(_Group(heads=count, head=_head(complete_head(heads[name], None))) for count, name in uses)
        rules.append(_Rule(at=rule.at, use=groups))
    return tuple(rules)


def _lowest(heads: int | str | tuple[int, ...]) -> int | str | tuple[int, ...]:
    """Return a share in lowest terms, and numbers ascending."""
    if isinstance(heads, tuple):
        return tuple(sorted(heads))
    return str(Fraction(heads)) if isinstance(heads, str) and heads != REST else heads


def _heads(spec: Resolved) -> dict[str, HeadSpec]:
    return {name: _head(head) for name, head in spec.heads.items()}


def _groups(layer: tuple[Group, ...], heads: Mapping[str, HeadSpec]) -> tuple[_Group, ...]:
    return tuple(_Group(heads=group.numbers or group.heads, head=heads[group.head]) for group in layer)


def _head(complete: HeadSpec) -> HeadSpec:
    """Return a completed head without names, and without its own position, which each of its memories has a copy of."""
    return without_names(complete).model_copy(update={"position": HeadSpec.model_fields["position"].default})


def _between(first: Any, second: Any, path: FieldPath) -> Iterator[tuple[FieldPath, Any, Any]]:
    """Yield the smallest places that differ: fields of the same kind of part, items of lists that hold the same kinds."""
    if meaning(first) == meaning(second):
        return
    if isinstance(first, BaseModel) and type(first) is type(second):
        for name in type(first).model_fields:
            if name != "name":
                yield from _between(getattr(first, name), getattr(second, name), (*path, name))
    elif isinstance(first, tuple) and isinstance(second, tuple) and _comparable(first, second):
        for index, (item, other) in enumerate(zip_longest(first, second)):
            yield from _between(item, other, (*path, index))
    elif (value := first if second is None else second) is not None and None in (first, second) and isinstance(value, PARTED):
        for name in meaning(value):
            item = getattr(value, name)
            nothing = () if isinstance(item, tuple) else None
            left, right = (item, nothing) if second is None else (nothing, item)
            yield from _between(left, right, (*path, name))
    else:
        yield path, meaning(first), meaning(second)


def _comparable(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Whether the items of two lists are compared one by one: items of the same kinds, and any number of groups and rules."""
    return _kinds(first) == _kinds(second) != [] or any(isinstance(item, PARTED) for item in (*first, *second))


def _kinds(items: tuple[Any, ...]) -> list[type[BaseModel]]:
    return [type(item) for item in items if isinstance(item, BaseModel)]
