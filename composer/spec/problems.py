"""All mistakes in a spec's meaning: those on any source first, then those on the sizes of one source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice

from blocks.part import FieldPath
from composer.errors import MOST_SHOWN, GraphError
from composer.graph.composition import HeadSpec
from composer.graph.rules import RESERVED, mistakes
from composer.spec.dimensions import Dimensions
from composer.spec.document import REST, HeadsOf, LayerRule, Spec
from composer.spec.layer_rules import (
    check_groups,
    check_rule,
    find_unused_heads,
    groups_of,
    layers_at,
    layers_of,
    names_in,
)
from composer.spec.resolve import complete_head, dimensions_and_trunk, heads_of, refuse_odd, reserved_name_error

ANY = Dimensions(hidden_size=2048, layers=1, heads=1, key_heads=1, head_dim=64, rope_theta=1e4)
"""The sizes to check a spec on where no source is named; rules about sizes are left out then."""


def problems(spec: Spec, size: Dimensions | None) -> list[GraphError]:
    """Return the mistakes on any source first, then those on this one, or on the spec's own trunk; each mistake once, the first of
    many.

    size: of the source; None where there is none.
    """
    errors = list(islice(_problems(spec, size), MOST_SHOWN + 1))
    if len(errors) > MOST_SHOWN:
        errors[MOST_SHOWN:] = [GraphError(f"and more mistakes: only the first {MOST_SHOWN} are shown")]
    return errors


def _problems(spec: Spec, size: Dimensions | None) -> Iterator[GraphError]:
    paths = set()
    for error in without_source(spec):
        paths.add(error.path)
        yield error
    if size is not None or spec.trunk is not None:
        yield from (error for error in _on_sizes(spec, size, paths) if error.path not in paths)


def without_source(spec: Spec) -> Iterator[GraphError]:
    """Yield the mistakes of each head by itself, and of the rules for layers, on any source."""
    try:
        heads = heads_of(spec)
    except GraphError as error:
        yield error
        heads = {**spec.heads, "head": spec.head} if spec.head is not None else dict(spec.heads)
    for path, head in heads_with_paths(spec):
        yield from _of_head(spec, path, head)
    for number, rule in enumerate(spec.layers):
        yield from _of_rule(rule, ("layers", number), heads)
    yield from find_unused_heads(spec, set[str]().union(*(names_in(rule.use) for rule in spec.layers)), 0)
    if not heads:
        yield GraphError("no layer has a head: add `head:`, or `heads:` and rules in `layers:` that use them", ("layers",))


def heads_with_paths(spec: Spec) -> Iterator[tuple[FieldPath, HeadSpec]]:
    """Yield all heads, and their places in the spec."""
    if spec.head is not None:
        yield ("head",), spec.head
    yield from ((("heads", name), head) for name, head in spec.heads.items())


def _of_head(spec: Spec, path: FieldPath, head: HeadSpec) -> Iterator[GraphError]:
    try:
        if path[0] == "heads" and path[-1] in RESERVED:
            raise reserved_name_error(str(path[-1]), path)
        shape = replace(ANY.shape(1), both_ways=spec.direction == "bidirectional")
        yield from mistakes(complete_head(head, ANY), shape, path, sizes=False)
    except GraphError as error:
        yield error


def _of_rule(rule: LayerRule, path: FieldPath, heads: dict[str, HeadSpec]) -> Iterator[GraphError]:
    if isinstance(rule.at, str):
        try:
            layers_at(rule.at, ANY.layers, (*path, "at"))  # on any source, only the step of a range can be wrong
        except GraphError as error:
            yield error
    groups = (HeadsOf(head=rule.use, heads="1/1"),) if isinstance(rule.use, str) else rule.use
    try:
        check_groups(groups, heads, (*path, "use"))
    except GraphError as error:
        yield error
        return
    shares = [Fraction(group.heads) for group in groups if isinstance(group.heads, str) and group.heads != REST]
    if len(shares) == len(groups) and (total := sum(shares)) != 1:
        yield GraphError(f"these groups are {total} of the query heads together, and have to be all of them", (*path, "use"))


def _on_sizes(spec: Spec, source: Dimensions | None, paths: set[FieldPath]) -> Iterator[GraphError]:
    """Yield the mistakes on one source. paths: of the mistakes on any source, which are not checked again."""
    try:
        dimensions, trunk = dimensions_and_trunk(spec, source)
        heads = heads_of(spec)
    except GraphError as error:
        yield error
        return
    wrong = [error for number in range(len(spec.layers)) for error in _of_rule_on(spec, number, dimensions, heads)]
    yield from wrong
    used: dict[str, set[int]] = {}
    if not wrong and not any(path[:1] == ("layers",) for path in paths):
        try:
            for layer in set(layers_of(spec, dimensions, heads)):
                for group in layer:
                    used.setdefault(group.head, set()).add(group.heads)
        except GraphError as error:
            yield error
        else:
            yield from find_unused_heads(spec, used, dimensions.layers)
    inside = {path[:length] for path in paths for length in (1, 2)}
    for path, head in heads_with_paths(spec):
        if path in inside:
            continue
        try:
            complete = complete_head(head, dimensions)
            if trunk is not None and spec.trunk is not None:
                refuse_odd(complete, trunk, spec.trunk)
            for count in sorted(used.get(str(path[-1]), ())):
                shape = replace(dimensions.shape(count), both_ways=spec.direction == "bidirectional")
                if errors := mistakes(complete, shape, path):
                    yield from errors
                    break
        except GraphError as error:
            yield error


def _of_rule_on(spec: Spec, number: int, dimensions: Dimensions, heads: dict[str, HeadSpec]) -> Iterator[GraphError]:
    rule, path = spec.layers[number], ("layers", number)
    try:
        check_rule(rule.at, dimensions, (*path, "at"))
    except GraphError as error:
        yield error
    try:
        groups_of(rule.use, dimensions, heads, (*path, "use"))
    except GraphError as error:
        yield error
