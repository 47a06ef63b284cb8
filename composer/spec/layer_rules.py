"""Which heads each layer has: the rules of a spec, on so many layers and heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import groupby

from pydantic import Field, NonNegativeInt, PositiveInt

from blocks.part import Closed, FieldPath
from composer.errors import GraphError
from composer.graph.composition import HeadSpec
from composer.reporting.words import ranges
from composer.spec.dimensions import Dimensions
from composer.spec.document import REST, HeadsOf, Name, Spec
from composer.spec.places import nearest
from converters.bounded import list_first

TWICE = "names a head twice: put all its query heads into one group"
SOURCE = "source"
"""The name that layers use to keep the source's own attention: softmax, with the window and the caps of the model around it."""

MOST_RULES = 8
"""The most rules that one message names."""


class Group(Closed):
    """Heads of one layer that are composed alike. numbers: of the key heads, ascending; None if the groups of the layer follow each
    other, each with consecutive heads."""

    head: Name
    heads: PositiveInt
    key_heads: PositiveInt
    numbers: tuple[NonNegativeInt, ...] | None = Field(default=None, exclude_if=lambda numbers: numbers is None)


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
        layer_groups = () if layer in without else groups[number]
        if layer_groups is None:
            raise GraphError(f"layer {layer} has no head: add a rule for it, or a `head:` for all that no rule names", ("layers",))
        layers.append(layer_groups)
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
    remaining = set(range(layers))
    for number in reversed(range(len(spec.layers))):
        if not remaining:
            break
        at = layers_at(spec.layers[number].at, layers, ("layers", number, "at"))
        # Of a long range, only the remaining layers are visited, so that many rules for all layers are as fast as one.
        hit = (
            {layer for layer in remaining if layer in at}
            if isinstance(at, range) and len(at) > len(remaining)
            else remaining.intersection(at)
        )
        for layer in hit:
            last[layer] = number
        remaining -= hit
    return last


def unknown_head_error(name: str, heads: Iterable[str], path: FieldPath) -> GraphError:
    names = [head for head in heads if head != SOURCE]
    guess = nearest(name, [*names, SOURCE])
    introduction = f"{guess} There" if guess else "; there"
    return GraphError(f'there is no head "{name}"{introduction} are: {list_first([*names, f"{SOURCE} (its own attention)"])}', path)


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
    """Return the groups of a layer. Groups by number are in the order of their first key heads, so that every order in which a spec
    lists them has the same meaning, and that of counts where each group is consecutive."""
    groups = (HeadsOf(head=use, heads=dimensions.heads),) if isinstance(use, str) else use
    check_groups(groups, heads, path)
    per_key = dimensions.heads // dimensions.key_heads
    if any(isinstance(group.heads, tuple) for group in groups):
        numbers = _numbers_of(groups, dimensions.key_heads, path)
        ordered = sorted(numbers, key=lambda name: numbers[name][0])
        are_consecutive = [number for name in ordered for number in numbers[name]] == list(range(dimensions.key_heads))
        return tuple(
            Group(
                head=name,
                heads=len(numbers[name]) * per_key,
                key_heads=len(numbers[name]),
                numbers=None if are_consecutive else numbers[name],
            )
            for name in ordered
        )
    counts = {group.head: 0 if group.heads == REST else _count(group, dimensions.heads, per_key, path) for group in groups}
    others = sum(counts.values())
    for group in groups:
        if group.heads == REST:
            if others >= dimensions.heads:
                raise GraphError(f'"{group.head}" has no heads: the other groups have {_of_layer(others, dimensions.heads)}', path)
            counts[group.head] = dimensions.heads - others
    if sum(counts.values()) != dimensions.heads:
        raise GraphError(f"these groups have {_of_layer(others, dimensions.heads)}", path)
    return tuple(Group(head=name, heads=count, key_heads=count // per_key) for name, count in counts.items())


def _of_layer(count: int, heads: int) -> str:
    return f"{count} query heads together, and the layer has {heads}"


def check_groups(groups: tuple[HeadsOf, ...], heads: Collection[str], path: FieldPath) -> None:
    """Raise GraphError for groups that are invalid on every source. heads: the names of the spec's heads."""
    for group in groups:
        if group.head not in heads:
            raise unknown_head_error(group.head, heads, path)
    if len({group.head for group in groups}) < len(groups):
        raise GraphError(TWICE, path)
    rests = [group.head for group in groups if group.heads == REST]
    if len(rests) > 1:
        raise GraphError(f'"{rests[0]}" and "{rests[1]}" both have the rest of the heads: only one group can', path)
    by_number = [group for group in groups if isinstance(group.heads, tuple)]
    by_count = [group for group in groups if not isinstance(group.heads, tuple) and group.heads != REST]
    if by_number and by_count:
        raise GraphError(
            f'"{by_number[0].head}" has numbers of key heads, and "{by_count[0].head}" a count or share: give every group of the '
            "layer numbers, or every group a count or share",
            path,
        )
    owners: dict[int, str] = {}
    for group in by_number:
        assert isinstance(group.heads, tuple)
        for number in group.heads:
            owner = owners.setdefault(number, group.head)
            if owner != group.head:
                raise GraphError(f'key head {number} is in two groups, "{owner}" and "{group.head}": list it once', path)
        if repeated := sorted(number for number, count in Counter(group.heads).items() if count > 1):
            raise GraphError(f'"{group.head}" lists {_key_heads(repeated)} twice: list each once', path)


def _numbers_of(groups: tuple[HeadsOf, ...], key_heads: int, path: FieldPath) -> dict[str, tuple[int, ...]]:
    """Return the key heads of each group, ascending, by the group's head.

    Raises GraphError unless each of the layer's ``key_heads`` is in one group."""
    numbers = {group.head: tuple(sorted(group.heads)) for group in groups if isinstance(group.heads, tuple)}
    for name, group_numbers in numbers.items():
        if group_numbers[-1] >= key_heads:
            absent = [number for number in group_numbers if number >= key_heads]
            raise GraphError(
                f'"{name}" lists {_key_heads(absent)}, and the layer has {key_heads}: choose among {ranges(range(key_heads))}', path
            )
    missing = tuple(sorted(set(range(key_heads)).difference(*numbers.values())))
    rest = next((group.head for group in groups if group.heads == REST), None)
    if rest is not None:
        if not missing:
            raise GraphError(f'"{rest}" has no heads: the other groups have all {key_heads} key heads of the layer', path)
        return numbers | {rest: missing}
    if missing:
        several = len(missing) > 1
        raise GraphError(
            f"{_key_heads(missing)} {'are' if several else 'is'} in no group: add {'them' if several else 'it'} to one, or write "
            f"`heads: {REST}` in one",
            path,
        )
    return numbers


def _key_heads(numbers: Sequence[int]) -> str:
    return f"key head{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def key_heads_of(layer: Sequence[Group]) -> tuple[Sequence[int], ...]:
    """Return the numbers of the key heads of each group of a layer, ascending."""
    numbers, first = list[Sequence[int]](), 0
    for group in layer:
        numbers.append(range(first, first + group.key_heads) if group.numbers is None else group.numbers)
        first += group.key_heads
    return tuple(numbers)


def runs_of(layer: Sequence[Group]) -> list[tuple[int, int]]:
    """Return a layer's key heads in order, as runs of neighbours in one group: the index of the group, and the length."""
    owners = sorted((number, index) for index, numbers in enumerate(key_heads_of(layer)) for number in numbers)
    return [(index, len(list(run))) for index, run in groupby(index for _, index in owners)]


def _count(group: HeadsOf, heads: int, per_key: int, path: FieldPath) -> int:
    """Return the query heads of a group with a count or a share, out of ``heads`` of which ``per_key`` share each key head."""
    assert not isinstance(group.heads, tuple), "a count, or a share"
    is_count = isinstance(group.heads, int)
    count = Fraction(group.heads) if is_count else Fraction(group.heads) * heads
    if count % per_key:
        described = f"{count} query heads" if is_count else f"{group.heads} of {heads} query heads, which is {count}"
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
