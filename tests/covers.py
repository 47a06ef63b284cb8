"""Few cases of a large product that together cover every pair of its choices. The others are marked ``full``, and run in
``make test-all``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Set
from functools import cache
from itertools import combinations, cycle, product
from typing import Any, TypeVar

import pytest

from composer.graph.composition import HeadSpec
from composer.spec.dimensions import Dimensions
from composer.spec.loading import load_spec
from composer.spec.resolve import resolve

SIZE = Dimensions(hidden_size=64, layers=8, heads=4, key_heads=2, head_dim=16, rope_theta=10000.0)
"""Layers enough for all that a hybrid has."""
PRODUCT = 3
"""As many marks make a product, of which few cases have each pair of choices."""
Name = TypeVar("Name", bound=Hashable)


def cover(contents: Mapping[Name, Set[Any]], missing: Set[Any] | None = None) -> list[Name]:
    """Return few names that together have all contents, in the order of the names. missing: only these contents count."""
    left = set().union(*contents.values()) if missing is None else set(missing)
    chosen = set()
    while left:
        best = max(contents, key=lambda name: len(contents[name] & left))
        chosen.add(best)
        left -= contents[best]
    return [name for name in contents if name in chosen]


def some(cases: Iterable[Any], chosen: Container[Any]) -> list[Any]:
    """Return the cases of a parametrised test. Those that are not chosen are marked ``full``."""
    return [case if case in chosen else _full(case) for case in cases]


def beyond_pairs(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the cases that are not needed for each pair of choices, of all tests that three or more marks parametrise.

    They do not depend on the order of the items, which pytest-randomly shuffles.
    """
    products = defaultdict[str, dict[pytest.Item, Set[Any]]](dict)
    for item in sorted(items, key=lambda item: item.nodeid):
        marks = list(item.iter_markers("parametrize"))
        if len(marks) >= PRODUCT and isinstance(item, pytest.Function):
            names = [mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0] for mark in marks]
            choices = [tuple((name, id(item.callspec.params[name.strip()])) for name in own) for own in names]
            products[item.nodeid.partition("[")[0]][item] = set(combinations(choices, 2))
    needed = {item for cases in products.values() for item in cover(cases)}
    return [item for cases in products.values() for item in cases if item not in needed]


def in_turns(names: Iterable[Name], choices: Iterable[Any], chosen: Container[Name] | None = None) -> list[Any]:
    """Return the product of names and choices. All but one choice of each name, in turn, are marked ``full``.

    chosen: all choices of other names are marked, too.
    """
    names, choices = list(names), list(choices)
    turns = {case for case in zip(names, cycle(choices), strict=False) if chosen is None or case[0] in chosen}
    return some(product(names, choices), turns)


def covering_specs(names: Iterable[str], *, pairs: bool = False) -> list[str]:
    """Return few specs whose heads together have every part in every role. pairs: and every pair of parts of one head."""
    return cover({name: _parts_of_spec(name, pairs) for name in names})


@cache
def _parts_of_spec(name: str, pairs: bool) -> Set[Any]:
    spec = load_spec(name)
    heads = resolve(load_spec(name, ["trunk=null"]) if spec.trunk else spec, SIZE).heads.values()
    return set().union(*(pairs_of_parts(head) if pairs else parts_of([head]) for head in heads))


def pairs_of_parts(head: HeadSpec) -> set[Any]:
    """Return the pairs of parts that a head joins."""
    return set(combinations(sorted(parts_of([head])), 2))


def parts_of(heads: Iterable[HeadSpec]) -> set[tuple[str, str]]:
    """Return the fields of the heads that have a part, each with the part's kind."""
    return {part for head in heads for part in _parts(head.model_dump(mode="json"))}


def _parts(value: Any, role: str = "head") -> set[tuple[str, str]]:
    """Return the roles in a document, each with the kind of its part."""
    if isinstance(value, list):
        return set().union(*(_parts(nested, role) for nested in value))
    if not isinstance(value, Mapping):
        return set()
    own = {(role, value["kind"])} if isinstance(value.get("kind"), str) else set()
    return own.union(*(_parts(nested, key) for key, nested in value.items()))


def _full(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
