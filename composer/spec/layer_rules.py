"""Which heads each layer has: the rules of a spec, on so many layers and heads."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from pydantic import PositiveInt

from blocks.part import Closed, FieldPath
from composer.errors import GraphError
from composer.graph.composition import HeadSpec
from composer.spec.dimensions import Dimensions
from composer.spec.document import HeadsOf, Name, Spec
from composer.spec.places import nearest

TWICE = "names a head twice: give all its query heads to one group"
SOURCE = "source"
"""The name that layers use to keep the source's own attention: softmax, with the window and the caps of the model around it."""


class Group(Closed):
    """Consecutive heads of one layer that are composed alike."""

    head: Name
    heads: PositiveInt
    key_heads: PositiveInt


def layers_of(spec: Spec, dimensions: Dimensions, heads: Mapping[str, HeadSpec]) -> tuple[tuple[Group, ...], ...]:
    """Which heads each layer has: ``head`` where no rule says otherwise, then the rules in order."""
    every = groups_of("head", dimensions, heads, ("layers",)) if spec.head is not None else None
    chosen: list[tuple[Group, ...] | None] = [every] * dimensions.layers
    for number, rule in enumerate(spec.layers):
        named = layers_at(rule.at, dimensions.layers, ("layers", number, "at"))
        if not named:
            raise GraphError(f"this names none of the model's {dimensions.layers} layers", ("layers", number, "at"))
        groups = groups_of(rule.use, dimensions, heads, ("layers", number, "use"))
        for layer in named:
            chosen[layer] = groups
    if None in chosen:
        layer = chosen.index(None)
        raise GraphError(f"layer {layer} has no head: add a rule for it, or a `head:` for all that no rule names", ("layers",))
    return tuple(groups for groups in chosen if groups is not None)


def unknown(name: str, heads: Mapping[str, HeadSpec], path: FieldPath) -> GraphError:
    own = [head for head in heads if head != SOURCE]
    guess = nearest(name, [*own, SOURCE])
    there = f"{guess} There" if guess else "; there"
    return GraphError(f'there is no head "{name}"{there} are: {", ".join([*own, f"{SOURCE} (its own attention)"])}', path)


def named(use: str | tuple[HeadsOf, ...]) -> set[str]:
    return {use} if isinstance(use, str) else {group.head for group in use}


def layers_at(at: int | tuple[int, ...] | str, layers: int, path: FieldPath) -> list[int]:
    if isinstance(at, str):
        if at == "all":
            return list(range(layers))
        start, end, step = ([int(text) if text else None for text in at.split(":")] + [None])[:3]
        if step == 0:
            raise GraphError("a step of 0 never arrives", path)
        return list(range(layers))[start:end:step]
    numbers = (at,) if isinstance(at, int) else at
    for number in numbers:
        if not -layers <= number < layers:
            raise GraphError(f"layer {number} is not there: the model has {layers} layers, {-layers} to {layers - 1}", path)
    return [number % layers for number in numbers]


def groups_of(
    use: str | tuple[HeadsOf, ...], dimensions: Dimensions, heads: Mapping[str, HeadSpec], path: FieldPath
) -> tuple[Group, ...]:
    taken = (HeadsOf(head=use, heads=dimensions.heads),) if isinstance(use, str) else use
    for group in taken:
        if group.head not in heads:
            raise unknown(group.head, heads, path)
    per_key = dimensions.heads // dimensions.key_heads
    counts = {group.head: _count(group, dimensions.heads, per_key, path) for group in taken}
    if len(counts) < len(taken):
        raise GraphError(TWICE, path)
    if sum(counts.values()) != dimensions.heads:
        raise GraphError(
            f"these groups have {sum(counts.values())} query heads together, and the layer has {dimensions.heads}", path
        )
    return tuple(Group(head=name, heads=count, key_heads=count // per_key) for name, count in counts.items())


def _count(group: HeadsOf, heads: int, per_key: int, path: FieldPath) -> int:
    """The query heads of a group, out of ``heads`` of which ``per_key`` share each key head."""
    whole = isinstance(group.heads, int)
    count = Fraction(group.heads) if whole else Fraction(group.heads) * heads
    if count % per_key:
        said = f"{count} query heads" if whole else f"{group.heads} of {heads} query heads, which is {count}"
        wanted = (
            f"{per_key} of them share each key head: take a multiple of {per_key}" if per_key > 1 else "it can take whole ones only"
        )
        raise GraphError(f'"{group.head}" takes {said}, and {wanted}', path)
    return int(count)


def unused(spec: Spec, name: str, layers: int) -> GraphError:
    """The error that no layer has a head of `heads`, with the rules that name it and the later rules that override these."""
    path: FieldPath = ("heads", name)
    naming = [number for number, rule in enumerate(spec.layers) if name in named(rule.use)]
    if not naming:
        return GraphError("no layer uses this head; remove it, or name it in `layers`", path)
    given = {layer for number in naming for layer in layers_at(spec.layers[number].at, layers, ("layers", number, "at"))}
    taking = [
        number
        for number, rule in enumerate(spec.layers)
        if number > naming[0] and number not in naming and given & set(layers_at(rule.at, layers, ("layers", number, "at")))
    ]
    first, last = (" and ".join(f"layers[{number}]" for number in some) for some in (naming, taking))
    named_by, given_by = f"{first} {'names' if len(naming) == 1 else 'name'}", f"{last} {'gives' if len(taking) == 1 else 'give'}"
    return GraphError(
        f"no layer is left with this head: {named_by} it, and {given_by} all of those layers another. A later rule overrides an "
        "earlier one: let the rule for fewer layers come last, or remove this head and its rule",
        ("layers", taking[0]),
    )
