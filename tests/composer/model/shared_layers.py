"""Layers of several shipped specs in one model, so that slow steps such as compiling run once for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import islice
from typing import Any

from composer.graph.composition import HeadSpec
from composer.spec.loading import load_spec
from composer.spec.resolve import resolve
from tests.composer.programs import printed_behind_composer
from tests.covers import SIZE, cover, parts_of

MOST = 8
"""Layers of one model."""
Layer = tuple[tuple[int, HeadSpec], ...]
"""Groups of heads, by how many there are."""


def layers_of(names: Iterable[str], overrides: Callable[[str], Sequence[str]]) -> dict[str, Layer]:
    """Return the distinct layers of these specs, each with the first spec that has it."""
    layers: dict[Layer, str] = {}
    for name in names:
        spec = resolve(load_spec(name, overrides(name)), SIZE)
        for layer in dict.fromkeys(spec.layers):
            groups = tuple((group.heads, spec.heads[group.head]) for group in layer)
            layers.setdefault(groups, f"{name.replace('/', '-')}-{len(layers)}")
    return {name: layer for layer, name in layers.items()}


def covering(layers: Mapping[str, Layer], roles: Set[str] | None = None) -> dict[str, Layer]:
    """Return few layers that together have every part of all layers, each in every role in which a layer has it.

    roles: only the parts in these roles count.
    """
    parts = {name: parts_of(head for _, head in layer) for name, layer in layers.items()}
    missing = {part for own in parts.values() for part in own if roles is None or part[0] in roles}
    chosen = cover(parts, missing)
    return {name: layer for name, layer in layers.items() if name in chosen}


def dealt(layers: Mapping[str, Layer]) -> dict[str, dict[str, Layer]]:
    """Yield groups of layers of one model's size, named by the first and the last layer."""
    rest, parts = iter(layers.items()), {}
    while part := dict(islice(rest, MOST)):
        first, *_, last = *part, *part
        parts[f"{first} to {last}"] = part
    return parts


def printed_of(layers: Mapping[str, Layer], program: str, **options: object) -> str:
    """Return the output of a program that builds ``{spec}`` of ``{count}`` layers. If it fails, return the output for the first
    layer that fails alone. It runs in another process, since compilers cannot trace the shape checks of this one.
    """
    try:
        return printed_behind_composer(program.format(spec=document(layers), count=len(layers), **options))
    except AssertionError as error:
        if len(layers) == 1:
            raise AssertionError(f"{''.join(layers)}: {error}") from None
        for name, layer in layers.items():
            printed_of({name: layer}, program, **options)
        raise


def document(layers: Mapping[str, Layer]) -> dict[str, Any]:
    """Return a spec of these layers in order."""
    rules, heads = [], {}
    for at, (name, layer) in enumerate(layers.items()):
        groups = {f"{name}-{place}": group for place, group in enumerate(layer)}
        heads |= {head: spec.model_dump(mode="json", exclude_none=True) for head, (_, spec) in groups.items()}
        rules.append({"at": at, "use": [{"head": head, "heads": count} for head, (count, _) in groups.items()]})
    return {"compose": 1, "name": "together", "heads": heads, "layers": rules}
