"""Which heads each layer has: the rules of a spec, on so many layers and heads."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from fractions import Fraction

from pydantic import PositiveInt

from blocks.part import Closed, FieldPath
from composer.errors import GraphError
from composer.graph.composition import HeadSpec
from composer.spec.dimensions import Dimensions
from composer.spec.document import HeadsOf, Name, Spec
from composer.spec.places import nearest
from composer.words import ranges
from converters.bounded import list_first

TWICE = "names a head twice: put all its query heads into one group"
SOURCE = "source"
"""The name that layers use to keep the source's own attention: softmax, with the window and the caps of the model around it."""

MOST_RULES = 8
"""The most rules that one message names."""


class Group(Closed):
    """Consecutive heads of one layer that are composed alike."""

    head: Name
    heads: PositiveInt
    key_heads: PositiveInt


def layers_of(spec: Spec, dimensions: Dimensions, heads: Mapping[str, HeadSpec]) -> tuple[tuple[Group, ...], ...]:
    """Return the heads of each layer: ``head`` without a rule, otherwise by the rules in order. Layers without attention have
    none."""
    every = groups_of("head", dimensions, heads, ("layers",)) if spec.head is not None else None
    groups: dict[int | None, tuple[Group, ...] | None] = {None: every}
    for number, rule in enumerate(spec.layers):
        check_rule(rule.at, dimensions, ("layers", number, "at"))
        groups[number] = groups_of(rule.use, dimensions, heads, ("layers", number, "use"))
    without = set(dimensions.without_attention)
    layers: list[tuple[Group, ...]] = []
    for layer, number in enumerate(last_rules(spec, dimensions.layers)):
        own = () if layer in without else groups[number]
        if own is None:
            raise GraphError(f"layer {layer} has no head: add a rule for it, or a `head:` for all that no rule names", ("layers",))
        layers.append(own)
    return tuple(layers)


def check_rule(at: int | tuple[int, ...] | str, dimensions: Dimensions, path: FieldPath) -> None:
    """Raise GraphError if a rule names no layer, or names a layer that has no attention by its number.

    A range, and ``all``, leave out the layers of a hybrid that have no attention.
    """
    layers, without = layers_at(at, dimensions.layers, path), set(dimensions.without_attention)
    if not layers:
        raise GraphError(f"this names none of the model's {dimensions.layers} layers", path)
    absent = [layer for layer in layers if layer in without]
    if absent and (not isinstance(at, str) or len(absent) == len(layers)):
        raise GraphError(
            f"layer {absent[0]} of the source has no attention, so it has no heads to replace. The layers with attention are "
            f"{ranges(dimensions.with_attention)}: choose among these",
            path,
        )


def last_rules(spec: Spec, layers: int) -> list[int | None]:
    """Return the number of the last rule that names each layer, the one that counts; None for a layer that no rule names."""
    last: list[int | None] = [None] * layers
    left = set(range(layers))
    for number in reversed(range(len(spec.layers))):
        if not left:
            break
        at = layers_at(spec.layers[number].at, layers, ("layers", number, "at"))
        # Of a long range, only the remaining layers are visited, so that many rules for all layers are as fast as one.
        hit = {layer for layer in left if layer in at} if isinstance(at, range) and len(at) > len(left) else left.intersection(at)
        for layer in hit:
            last[layer] = number
        left -= hit
    return last


def unknown_head_error(name: str, heads: Mapping[str, HeadSpec], path: FieldPath) -> GraphError:
    own = [head for head in heads if head != SOURCE]
    guess = nearest(name, [*own, SOURCE])
    introduction = f"{guess} There" if guess else "; there"
    return GraphError(f'there is no head "{name}"{introduction} are: {list_first([*own, f"{SOURCE} (its own attention)"])}', path)


def names_in(use: str | tuple[HeadsOf, ...]) -> set[str]:
    return {use} if isinstance(use, str) else {group.head for group in use}


def layers_at(at: int | tuple[int, ...] | str, layers: int, path: FieldPath) -> Sequence[int]:
    """Return the layers that a rule names. Ranges are kept as ranges, which need no memory."""
    if isinstance(at, str):
        if at == "all":
            return range(layers)
        start, end, step = ([int(text) if text else None for text in at.split(":")] + [None])[:3]
        if step == 0:
            raise GraphError("a step of 0 never arrives", path)
        return range(layers)[start:end:step]
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
            raise unknown_head_error(group.head, heads, path)
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
    """Return the query heads of a group, out of ``heads`` of which ``per_key`` share each key head."""
    whole = isinstance(group.heads, int)
    count = Fraction(group.heads) if whole else Fraction(group.heads) * heads
    if count % per_key:
        described = f"{count} query heads" if whole else f"{group.heads} of {heads} query heads, which is {count}"
        wanted = (
            f"{per_key} of them share each key head: choose a multiple of {per_key}" if per_key > 1 else "expected a whole number"
        )
        raise GraphError(f'"{group.head}" has {described}; {wanted}', path)
    return int(count)


def find_unused_heads(spec: Spec, used: Container[str], layers: int) -> Iterator[GraphError]:
    """Yield an error for each head of ``heads`` that no layer has, with the rules that name it and those that override these.

    used: the heads that layers have. layers: of the model; 0 where there is none, and rules are then not compared.
    """
    naming: dict[str, list[int]] = {}
    for number, rule in enumerate(spec.layers):
        for name in names_in(rule.use):
            naming.setdefault(name, []).append(number)
    last: list[int | None] = []
    for name in spec.heads:
        if name in used:
            continue
        if name not in naming:
            yield GraphError("no layer uses this head; remove it, or name it in `layers`", ("heads", name))
            continue
        last = last or last_rules(spec, layers)
        overriding: set[int | None] = set()
        for number in naming[name]:
            overriding.update(map(last.__getitem__, layers_at(spec.layers[number].at, layers, ("layers", number, "at"))))
        yield _overridden_head_error(naming[name], sorted(number for number in overriding if number is not None))


def _overridden_head_error(naming: list[int], overriding: list[int]) -> GraphError:
    """Return the error of a head that rules name, on layers for which later rules name other heads."""
    first, later = (" and ".join(_some_rules(numbers)) for numbers in (naming, overriding))
    named_by = f"{first} {'names' if len(naming) == 1 else 'name'}"
    overridden_by = f"{later} {'gives' if len(overriding) == 1 else 'give'}"
    return GraphError(
        f"no layer has this head: {named_by} it, and {overridden_by} all of its layers another one. A later rule overrides an "
        "earlier one: put the rule for fewer layers last, or remove this head and its rule",
        ("layers", overriding[0]),
    )


def _some_rules(numbers: list[int]) -> list[str]:
    more = [f"{len(numbers) - MOST_RULES:,} more rules"] if len(numbers) > MOST_RULES else []
    return [*(f"layers[{number}]" for number in numbers[:MOST_RULES]), *more]
